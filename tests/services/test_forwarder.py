import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sensors import Opening, Reading
from services.forwarder import Gate, app, forwarded, late_readings, openings, readings
from tailrace.testing import END, Harness, Item

GATE = Opening("hall", 1_000, 500)  # open from 1,000 up to, and without, 1,500


def reading(at_ms, sensor="hall"):
    return Reading(sensor, at_ms, 60.0)


def passed(h):
    return [event.at_ms for event in h.emitted(forwarded)]


AROUND = [reading(at_ms) for at_ms in (999, 1_000, 1_499, 1_500)]


def test_readings_pass_from_the_opening_on_for_the_time_it_gives():
    with Harness(app) as h:
        h.send(openings, GATE)
        h.send(readings, *AROUND)
        h.end_of_input()
        assert passed(h) == [1_000, 1_499]
        h.replay()


def test_a_reading_that_comes_before_the_opening_that_lets_it_pass_has_waited_for_it():
    with Harness(app) as h:
        h.send(readings, *AROUND)
        assert passed(h) == []
        h.send(openings, GATE)
        h.end_of_input()
        assert passed(h) == [1_000, 1_499]
        h.replay()


def test_either_order_of_arrival_gives_the_same_records():
    with Harness(app) as h:
        h.send(openings, GATE)
        h.send(readings, *AROUND)
        control_first = h.end_of_input()
    with Harness(app) as h:
        h.send(readings, *AROUND)
        h.send(openings, GATE)
        reading_first = h.end_of_input()
    assert control_first
    assert control_first == reading_first


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


def test_another_sensors_gate_stays_shut():
    with Harness(app) as h:
        h.send(openings, GATE)
        h.send(readings, reading(1_200, "attic"))
        h.end_of_input()
        assert passed(h) == []


def test_openings_that_overlap_hold_the_gate_open_until_the_last_of_them_ends():
    with Harness(app) as h:
        h.send(openings, GATE, Opening("hall", 1_300, 500), Opening("hall", 1_400, 10))
        h.send(readings, reading(1_600), reading(1_799), reading(1_800))
        h.end_of_input()
        assert passed(h) == [1_600, 1_799]


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


def test_a_crash_anywhere_loses_nothing_and_repeats_nothing(survives):
    items: list[Item] = [
        (readings, reading(1_200)),
        (openings, GATE),
        (readings, reading(1_600)),
        (readings, reading(999)),
        END,
    ]
    assert survives(app, items) == {("forwarded", "hall"): [(reading(1_200), 1_200)]}


WITHIN_A_SECOND = st.integers(10_000, 10_999)
GATES = st.builds(Opening, st.just("hall"), WITHIN_A_SECOND, st.integers(0, 300)).map(
    lambda one: (openings, one)
)
MEASURED = WITHIN_A_SECOND.map(lambda at_ms: (readings, reading(at_ms)))


@given(st.lists(GATES | MEASURED, max_size=25), st.data())
def test_what_passes_depends_on_event_times_alone(items, data):
    shuffled = data.draw(st.permutations(items))
    gates = [event for _, event in items if isinstance(event, Opening)]
    expected = sorted(
        event.at_ms
        for _, event in items
        if isinstance(event, Reading) and any(g.at_ms <= event.at_ms < g.at_ms + g.for_ms for g in gates)
    )
    for order in (items, shuffled):
        with Harness(app) as h:
            h.run([*order, END])
            assert passed(h) == expected
            h.replay()


@pytest.mark.parametrize("partitions", [1, 4])
def test_the_order_of_forwarded_readings_is_that_of_their_times(partitions):
    with Harness(app, partitions=partitions) as h:
        h.send(openings, Opening("hall", 0, 100_000))
        h.send(readings, *[reading(at_ms) for at_ms in (1_500, 1_000, 2_400, 1_600)])
        h.end_of_input()
        assert passed(h) == [1_000, 1_500, 1_600, 2_400]
