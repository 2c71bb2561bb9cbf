import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.durations import duration, to_datetime, to_ms
from tailrace.core.errors import UsageError
from tests.core.durable import naive


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("500ms", 500),
        ("1s", 1_000),
        ("30m", 1_800_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1h30m", 5_400_000),
        (" 1 h 30 m ", 5_400_000),
        ("1.5s", 1_500),
        ("0.001s", 1),
        ("0s", 0),
        (0, 0),
        (250, 250),
        (dt.timedelta(hours=1), 3_600_000),
        (dt.timedelta.max, dt.timedelta.max // dt.timedelta(milliseconds=1)),
    ],
)
def test_a_duration_is_whole_milliseconds(written: Any, milliseconds: int) -> None:
    if written == dt.timedelta.max:
        written -= dt.timedelta(microseconds=999)
    assert duration(written) == milliseconds


@pytest.mark.parametrize(
    "written",
    [
        *("", "5", "m", "1 hour", "1h-30m", "-1s", "1e3s", "0.0005s", "s1", -1, True, 1.0, None, b"1s"),
        *(dt.timedelta(microseconds=1), dt.timedelta(seconds=-1)),
    ],
)
def test_what_is_no_duration_is_refused_with_examples(written: Any) -> None:
    with pytest.raises(UsageError, match="30m"):
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


@pytest.mark.parametrize("instant_ms", [10**18, -(10**18), 10**30])
def test_an_instant_outside_the_calendar_is_refused(instant_ms: int) -> None:
    with pytest.raises(UsageError, match="years 1 and 9999"):
        to_datetime(instant_ms)
