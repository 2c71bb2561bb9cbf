"""Durations and instants: the forms that a user may write, and the integer milliseconds used inside.

An instant is an ``int``: milliseconds since 1970-01-01T00:00:00Z. A duration is an ``int`` of milliseconds.
Both are exact. A part of a millisecond is refused in a duration and rounded down in an instant.

Both have limits, checked where a user writes them, so that every sum of an instant and durations fits into
the 64 bits in which times are stored, and nothing overflows at run time::

    NO_WATERMARK            -2**62                  before any event: below every instant less a duration
    an instant              -2**61 < t < 2**61      73 million years around 1970
    a duration              0 <= d <= 100000d       operating systems can wait that long, too
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tailrace.core.errors import DefinitionError, UnfitValueError, UsageError

INSTANT_LIMIT_MS: Final = 1 << 61
"""An instant is less than this many milliseconds from 1970, on either side."""
NO_WATERMARK: Final = -(1 << 62)
"""The watermark before the first event, in milliseconds: ``-2**62``. It is below every instant."""
BESIDE_NO_WATERMARK_MS: Final = 1 << 60
"""A time at most this far above ``NO_WATERMARK`` is not an instant: it was computed from ``NO_WATERMARK``."""
A_MINUTE_MS: Final = 60_000
A_DAY_MS: Final = 86_400_000
LONGEST_MS: Final = 100_000 * A_DAY_MS
"""The longest duration."""

SECONDS_FIRST_MS: Final = 1_000_000_000
SECONDS_LAST_MS: Final = 4_102_444_800
"""The years 2001 to 2100 in seconds since 1970. As milliseconds they are five weeks from 12 January 1970 on.
"""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d{1,18})\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern}\s*)+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_EXAMPLES = 'Write for example "500ms", "1s", "30m", "1h30m", "7d", a timedelta, or an int of milliseconds.'


def duration(value: str | int | timedelta) -> int:
    """A duration in milliseconds, zero or more.

    Strings are whole numbers with a unit of ``ms``, ``s``, ``m``, ``h``, ``d`` or ``w``, one or several, such
    as ``"1h30m"``. An int is milliseconds. Raises UsageError for anything else, for a negative duration, for
    one of more than 100000 days and for a part of a millisecond.
    """
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value.strip()):
            raise UsageError(f"{value!r:.60} is not a duration", hint=_EXAMPLES)
        milliseconds = sum(int(number) * _UNIT_MS[unit] for number, unit in _PART.findall(value))
    elif isinstance(value, timedelta):
        milliseconds, rest = divmod(value, _MS)
        if rest:
            raise UsageError(f"the duration {value!r} is not a whole number of milliseconds", hint=_EXAMPLES)
    elif type(value) is int:
        milliseconds = value
    else:
        raise UsageError(f"{value!r} is not a duration", hint=_EXAMPLES)
    if milliseconds < 0:
        raise UsageError(f"the duration {value!r:.60} is negative", hint=_EXAMPLES)
    if milliseconds > LONGEST_MS:
        raise UsageError(
            f"the duration {value!r:.60} is longer than 100000d, the longest there is (about 270 years)",
            hint="Give a shorter one, and check its unit: an int is milliseconds.",
        )
    return milliseconds


def declared_duration(where: str, option: str, value: Any, zero: str = "") -> int:
    """An option that is a duration, in milliseconds. ``zero``: it may not be zero, and what to do instead.

    Raises DefinitionError, for ``where`` the option was given.
    """
    try:
        milliseconds = duration(value)
    except UsageError as error:
        raise DefinitionError(f"{where} has a wrong {option}: {error.what}", hint=error.hint) from None
    if milliseconds == 0 and zero:
        raise DefinitionError(f"{where} has {option}={value!r}, which is zero", hint=zero)
    return milliseconds


def spelled(milliseconds: int) -> str:
    """A duration as a user may write it, in the largest unit that gives a whole number: ``90s``, ``2h``."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _UNIT_MS[unit] == 0:
            return f"{milliseconds // _UNIT_MS[unit]}{unit}"
    return f"{milliseconds}ms"


def to_ms(instant: datetime | int) -> int:
    """An instant as milliseconds since the epoch, rounded down. An int must already be that.

    Raises UnfitValueError for a naive datetime, whose instant depends on where the program runs, and for an int of
    2**61 or more, on either side of 1970.
    """
    if type(instant) is int:
        if not -INSTANT_LIMIT_MS < instant < INSTANT_LIMIT_MS:
            raise UnfitValueError(
                f"the instant {instant} ms is out of range: instants are less than 2**61 ms from 1970",
                hint="Give milliseconds since 1970 in UTC, and check for another unit.",
            )
        return instant
    if isinstance(instant, datetime):
        if instant.utcoffset() is None:
            raise UnfitValueError(
                f"the datetime {instant!r} has no time zone",
                hint="Give it a time zone, for example datetime(..., tzinfo=UTC) or datetime.now(UTC).",
            )
        return (instant - _EPOCH) // _MS
    raise UsageError(
        f"{instant!r} is not an instant",
        hint="Give an aware datetime, or an int of milliseconds since 1970 in UTC.",
    )


def parsed_instant(text: str) -> int:
    """The instant in a text, in milliseconds: ``1357017420000ms``, ``2013-01-01``, ``2013-01-01T05:17:00Z``.
    Raises UsageError: it has no time zone, or is out of range; ValueError: it is not such a text.
    """
    if found := re.fullmatch(r"(-?\d+)ms", text, re.ASCII):
        return to_ms(int(found[1]))
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        text += "T00:00:00Z"
    return to_ms(datetime.fromisoformat(text))


def is_instant(time_ms: int) -> bool:
    """Whether a watermark, or a timer's time, is an instant, and not computed from ``NO_WATERMARK``."""
    return time_ms > NO_WATERMARK + BESIDE_NO_WATERMARK_MS


def to_datetime(instant_ms: int) -> datetime:
    """The instant as an aware datetime in UTC. Raises UnfitValueError outside the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=instant_ms)
    except OverflowError:
        raise UnfitValueError(
            f"{instant_ms} ms is not a date between the years 1 and 9999",
            hint="Instants are milliseconds since 1970; check for another unit.",
        ) from None
