import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.durations import LONGEST_MS, duration, spelled, to_datetime, to_ms
from tailrace.core.errors import UsageError
from tests.core.durable import naive


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        *(("500ms", 500), ("1s", 1_000), ("30m", 1_800_000), ("1h", 3_600_000), ("7d", 604_800_000)),
        *(("2w", 1_209_600_000), ("1h30m", 5_400_000), (" 1 h 30 m ", 5_400_000), ("0s", 0), (0, 0)),
        *((250, 250), (dt.timedelta(hours=1), 3_600_000), (dt.timedelta(days=100_000), LONGEST_MS)),
        *(("100000d", LONGEST_MS), (LONGEST_MS, LONGEST_MS)),
    ],
)
def test_a_duration_is_whole_milliseconds(written: Any, milliseconds: int) -> None:
    assert duration(written) == milliseconds


@given(st.integers(0, LONGEST_MS))
def test_a_duration_that_is_spelled_is_read_back(milliseconds: int) -> None:
    assert duration(spelled(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("milliseconds", "said"), [(0, "0ms"), (90_000, "90s"), (3_600_000, "1h"), (5, "5ms")]
)
def test_a_duration_is_spelled_in_its_largest_unit(milliseconds: int, said: str) -> None:
    assert spelled(milliseconds) == said


@pytest.mark.parametrize(
    "written",
    [
        *("", "5", "m", "1 hour", "1h-30m", "-1s", "1e3s", "1.5s"),
        *(f"1{'0' * 400}ms", "s1", -1, True, 1.0, None, b"1s"),
        *(dt.timedelta(microseconds=1), dt.timedelta(seconds=-1)),
    ],
)
def test_what_is_no_duration_is_refused_with_examples(written: Any) -> None:
    with pytest.raises(UsageError, match="30m"):
        duration(written)


@pytest.mark.parametrize(
    "written",
    [
        *(LONGEST_MS + 1, 2**63 - 1, 10**30, "100000d1ms", "300000000d"),
        *(dt.timedelta.max - dt.timedelta(microseconds=999), dt.timedelta(days=100_000, milliseconds=1)),
    ],
    ids=lambda written: f"{type(written).__name__}",
)
def test_a_duration_that_is_too_long_is_refused_with_the_limit(written: Any) -> None:
    with pytest.raises(UsageError, match="longer than 100000d"):
        duration(written)


@given(st.datetimes(timezones=st.sampled_from([dt.UTC, ZoneInfo("Europe/Paris")])))
def test_an_instant_is_rounded_down_to_its_millisecond(instant: dt.datetime) -> None:
    back = to_datetime(to_ms(instant)) if instant.year > 1 else instant
    assert dt.timedelta(0) <= instant - back < dt.timedelta(milliseconds=1)


@given(
    st.integers(to_ms(dt.datetime.min.replace(tzinfo=dt.UTC)), to_ms(dt.datetime.max.replace(tzinfo=dt.UTC)))
)
def test_milliseconds_survive_being_a_datetime(instant_ms: int) -> None:
    assert to_ms(to_datetime(instant_ms)) == instant_ms == to_ms(instant_ms)
    assert to_datetime(instant_ms).tzinfo is dt.UTC


def test_a_naive_datetime_is_refused_with_the_mend() -> None:
    with pytest.raises(UsageError, match=r"no time zone.*tzinfo=UTC"):
        to_ms(naive(2020, 1, 1))


@pytest.mark.parametrize("instant", [True, 1.5, "2020-01-01", None, dt.date(2020, 1, 1)])
def test_what_is_no_instant_is_refused(instant: Any) -> None:
    with pytest.raises(UsageError, match="not an instant"):
        to_ms(instant)


@pytest.mark.parametrize("instant_ms", [1 - 2**61, -1, 0, 2**61 - 1])
def test_an_instant_is_less_than_its_limit_from_1970(instant_ms: int) -> None:
    assert to_ms(instant_ms) == instant_ms


@pytest.mark.parametrize("instant_ms", [2**61, -(2**61), 2**63 - 1, -(2**63), 10**30], ids=int.bit_length)
def test_an_instant_at_its_limit_or_past_it_is_refused(instant_ms: int) -> None:
    with pytest.raises(UsageError, match=r"out of range: instants are less than 2\*\*61 ms from 1970"):
        to_ms(instant_ms)


@pytest.mark.parametrize("instant_ms", [10**18, -(10**18), 10**30])
def test_an_instant_outside_the_calendar_is_refused(instant_ms: int) -> None:
    with pytest.raises(UsageError, match="years 1 and 9999"):
        to_datetime(instant_ms)
