import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.sensors import Average, Reading, RisingAlert
from services.sensors import Windows, app, averages, late_readings, readings, rising_alerts
from tailrace.testing import Harness


def celsius(sensor, at_ms, degrees):
    return Reading(sensor, at_ms, degrees * 9 / 5 + 32)


def test_the_average_of_a_window_comes_with_its_end_as_soon_as_the_watermark_has_its_last_millisecond():
    with Harness(app) as h:
        h.send(readings, celsius("hall", 0, 10), celsius("hall", 2_000, 20), celsius("hall", 4_999, 15))
        assert h.advance_watermark(4_998) == []
        assert h.advance_watermark(4_999).to(averages) == [Average("hall", 5_000, 15.0, 3)]
        assert h.advance_watermark(60_000) == []
        h.replay()


def test_a_late_reading_counts_while_its_window_is_open_and_goes_aside_when_it_is_closed():
    with Harness(app) as h:
        h.send(readings, celsius("hall", 8_000, 10))  # the watermark is at 6,999
        out = h.send(readings, celsius("hall", 6_000, 20), celsius("hall", 4_999, 30))
        assert h.late == 2
        assert out.to(late_readings) == [celsius("hall", 4_999, 30)]
        assert h.end_of_input().to(averages) == [Average("hall", 10_000, 15.0, 2)]
        h.replay()


def test_a_closed_window_leaves_nothing_behind():
    with Harness(app) as h:
        h.send(readings, celsius("hall", 0, 10))
        h.end_of_input()
        assert h.state(Windows, "hall") is None
        assert h.timers(Windows, "hall") == {}


@given(st.lists(st.tuples(st.sampled_from(["hall", "attic"]), st.integers(0, 20_000)), max_size=30))
def test_averages_are_what_a_loop_over_all_readings_gives(measured):
    sent = [celsius(sensor, at_ms, at_ms % 7) for sensor, at_ms in measured]
    sent.sort(key=lambda reading: reading.at_ms // 1_000)  # out of order, but by less than a second
    expected: dict[tuple[str, int], list[float]] = {}
    for reading in sent:
        end_ms = (reading.at_ms // 5_000 + 1) * 5_000
        expected.setdefault((reading.sensor, end_ms), []).append(reading.celsius)
    with Harness(app) as h:
        h.send(readings, *sent)
        h.end_of_input()
        assert h.late == 0
        found = {(a.sensor, a.window_end_ms): a for a in h.emitted(averages)}
        assert len(found) == len(h.emitted(averages))
        assert found.keys() == expected.keys()
        for place, degrees in expected.items():
            assert found[place].readings == len(degrees)
            assert found[place].celsius == pytest.approx(sum(degrees) / len(degrees))
        h.replay()


def alerts(*measured, until):
    """The instants of the alerts, when (clock, degrees) are measured and then the clock goes on."""
    ticks = itertools.count()
    with Harness(app, partitions=1) as h:
        for now_ms, degrees in measured:
            h.advance_clock(now_ms)
            h.send(readings, Reading("hall", next(ticks), degrees))
        h.advance_clock(until)
        h.replay()
        return h.emitted(rising_alerts)


def test_a_rise_without_a_fall_for_a_second_is_an_alert():
    assert alerts((0, 60.0), (500, 61.0), (900, 62.0), until=1_499) == []
    assert alerts((0, 60.0), (500, 61.0), (900, 62.0), until=1_500) == [RisingAlert("hall", 500, 62.0)]


def test_a_fall_stops_the_second_and_the_next_rise_begins_another():
    assert alerts((0, 60.0), (500, 61.0), (1_499, 60.0), until=9_000) == []
    found = alerts((0, 60.0), (500, 61.0), (1_000, 60.0), (1_200, 61.0), until=9_000)
    assert found == [RisingAlert("hall", 1_200, 61.0)]


def test_what_stays_level_neither_begins_nor_ends_a_rise():
    assert alerts((0, 60.0), (500, 60.0), until=9_000) == []
    assert alerts((0, 60.0), (500, 61.0), (1_000, 61.0), until=1_500) == [RisingAlert("hall", 500, 61.0)]


def test_after_an_alert_a_further_rise_begins_anew():
    found = alerts((0, 60.0), (100, 61.0), (1_200, 62.0), until=9_000)
    assert found == [RisingAlert("hall", 100, 61.0), RisingAlert("hall", 1_200, 62.0)]


def test_a_single_reading_is_no_rise():
    assert alerts((0, 60.0), until=9_000) == []
