from hypothesis import given
from hypothesis import strategies as st

from schemas.sensors import Opening, Reading
from services.forwarder import Gate, app, forwarded, late_readings, openings, readings
from tailrace.testing import END, Harness

GATE = Opening("hall", 1_000, 500)  # open from 1,000 up to, and without, 1,500


def reading(at_ms, sensor="hall"):
    return Reading(sensor, at_ms, 60.0)


def passed(h):
    return [event.at_ms for event in h.emitted(forwarded)]


AROUND = [reading(at_ms) for at_ms in (999, 1_000, 1_499, 1_500)]


def test_a_reading_that_comes_before_the_opening_that_lets_it_pass_has_waited_for_it():
    with Harness(app) as h:
        h.send(readings, *AROUND)
        assert passed(h) == []
        h.send(openings, GATE)
        h.end_of_input()
        assert passed(h) == [1_000, 1_499]
        h.replay()


def test_a_reading_waits_until_the_watermarks_of_both_inputs_have_reached_it():
    with Harness(app, partitions=1) as h:
        h.send(openings, GATE)
        h.send(readings, reading(1_200), reading(9_000))
        assert passed(h) == []  # an opening at or before 1,200 could still come
        h.send(openings, Opening("attic", 2_201, 1))
        assert passed(h) == [1_200]


def test_readings_wait_no_longer_for_openings_that_have_been_silent_for_five_seconds():
    with Harness(app) as h:
        h.send(openings, GATE)
        h.send(readings, reading(1_200), reading(2_201))
        h.advance_clock_by("4999ms")
        assert passed(h) == []
        h.advance_clock_by("1ms")
        assert passed(h) == [1_200]
        h.replay()


def test_readings_of_one_instant_all_pass_in_the_order_they_came():
    same = [Reading("hall", 1_200, float(degrees)) for degrees in (3, 1, 2)]
    with Harness(app) as h:
        h.send(openings, GATE)
        h.send(readings, *same)
        h.end_of_input()
        assert h.emitted(forwarded) == same


def test_a_late_reading_goes_aside():
    with Harness(app) as h:
        h.send(openings, GATE)
        h.advance_watermark(1_300)
        h.send(readings, reading(1_200))
        assert h.end_of_input().to(late_readings) == [reading(1_200)]
        assert passed(h) == []
        h.replay()


def test_what_can_concern_no_reading_any_more_is_forgotten():
    with Harness(app) as h:
        h.send(openings, GATE)
        h.send(readings, reading(1_200))
        h.advance_watermark(5_000)
        h.send(openings, Opening("hall", 6_000, 100))
        h.end_of_input()
        gate = h.state(Gate, "hall")
        assert gate is not None
        assert gate.known == [Opening("hall", 6_000, 100)]


WITHIN_A_SECOND, SENSORS = st.integers(10_000, 10_999), st.sampled_from(["hall", "attic"])
GATES = st.builds(Opening, SENSORS, WITHIN_A_SECOND, st.integers(0, 300)).map(lambda one: (openings, one))
MEASURED = st.builds(reading, WITHIN_A_SECOND, SENSORS).map(lambda one: (readings, one))


@given(st.lists(GATES | MEASURED, max_size=25), st.data())
def test_what_passes_depends_on_event_times_alone(items, data):
    shuffled = data.draw(st.permutations(items))
    gates = [event for _, event in items if isinstance(event, Opening)]
    expected = {
        name: sorted(
            event.at_ms
            for _, event in items
            if isinstance(event, Reading)
            and event.sensor == name
            and any(g.sensor == name and g.at_ms <= event.at_ms < g.at_ms + g.for_ms for g in gates)
        )
        for name in ("hall", "attic")
    }
    for order in (items, shuffled):
        with Harness(app) as h:
            h.run([*order, END])
            for name, times in expected.items():
                assert [one.at_ms for one in h.emitted(forwarded) if one.sensor == name] == times
            h.replay()
