"""Durations and instants: what a user may write, and the integer milliseconds used everywhere inside.

An instant is an ``int``: milliseconds since 1970-01-01T00:00:00Z. A duration is an ``int`` of milliseconds.
Both are exact; what cannot be a whole millisecond is refused in a duration and rounded down in an instant.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tailrace.core.errors import UsageError

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_EXAMPLES = 'Write for example "500ms", "1s", "30m", "1h30m", "7d", a timedelta, or an int of milliseconds.'


def duration(value: str | int | timedelta) -> int:
    """A duration in milliseconds, zero or more.

    Strings are numbers with a unit of ``ms``, ``s``, ``m``, ``h``, ``d`` or ``w``, one or several:
    ``"1h30m"``, ``"1.5s"``. An int is milliseconds. Raises UsageError for anything else, for a negative
    duration and for a part of a millisecond.
    """
    if isinstance(value, str):
        return _parsed(value)
    if isinstance(value, timedelta):
        milliseconds, rest = divmod(value, _MS)
        if rest:
            raise UsageError(f"the duration {value!r} is not a whole number of milliseconds", mend=_EXAMPLES)
    elif type(value) is int:
        milliseconds = value
    else:
        raise UsageError(f"{value!r} is not a duration", mend=_EXAMPLES)
    if milliseconds < 0:
        raise UsageError(f"the duration {value!r} is negative", mend=_EXAMPLES)
    return milliseconds


def _parsed(text: str) -> int:
    trimmed = text.strip()
    if not _WHOLE.fullmatch(trimmed):
        raise UsageError(f"{text!r} is not a duration", mend=_EXAMPLES)
    total = 0
    for number, unit in _PART.findall(trimmed):
        whole, _, decimals = number.partition(".")
        part, rest = divmod(int(whole + decimals) * _UNIT_MS[unit], 10 ** len(decimals))
        if rest:
            raise UsageError(f"the duration {text!r} is not a whole number of milliseconds", mend=_EXAMPLES)
        total += part
    return total


def to_ms(instant: datetime | int) -> int:
    """An instant as milliseconds since the epoch, rounded down; an int is taken to be that already.

    A naive datetime raises UsageError: which instant it means depends on where the program runs.
    """
    if type(instant) is int:
        return instant
    if isinstance(instant, datetime):
        if instant.utcoffset() is None:
            raise UsageError(
                f"the datetime {instant!r} has no time zone",
                mend="Give it one, for example datetime(..., tzinfo=UTC) or datetime.now(UTC).",
            )
        return (instant - _EPOCH) // _MS
    raise UsageError(
        f"{instant!r} is not an instant",
        mend="Give an aware datetime, or an int of milliseconds since 1970 in UTC.",
    )


def to_datetime(instant_ms: int) -> datetime:
    """The instant as an aware datetime in UTC; UsageError outside the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=instant_ms)
    except OverflowError:
        raise UsageError(
            f"{instant_ms} ms is no date between the years 1 and 9999",
            mend="Instants are milliseconds since 1970; check for another unit.",
        ) from None
