"""The source of an event's time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from tailrace.core.durations import SECONDS_FIRST_MS, SECONDS_LAST_MS, to_datetime, to_ms
from tailrace.core.errors import BadRecordError, DefinitionError, UnfitValueError, UsageError
from tailrace.core.values.key_paths import types_at
from tailrace.core.values.types import spell

YEAR_2200_MS: Final = 7_258_118_400_000
_OF_TODAY_MS: Final = 1_000 * SECONDS_FIRST_MS
"""2001. A handler whose event time is here or later does not mean a time in the first weeks of 1970."""
_PYDANTIC_DATETIMES = ("AwareDatetime", "PastDatetime", "FutureDatetime")


class TimeSource(Enum):
    """An event time that is not in the event."""

    RECORD = "record"
    ARRIVAL = "arrival"

    def __repr__(self) -> str:
        return f"tailrace.{self.name}_TIME"


RECORD_TIME: Final = TimeSource.RECORD
"""``event_time=tr.RECORD_TIME``, the default: an event's time is the timestamp of its record."""

ARRIVAL_TIME: Final = TimeSource.ARRIVAL
"""``event_time=tr.ARRIVAL_TIME``: an event's time is the clock reading at which the task took the record.

The reading is recorded, so a replay or rebuild along the tape gives the event the same time.
"""


def seconds_taken_for_ms(time_ms: int, source: Any) -> tuple[str, str]:
    """Message and hint for an event time that looks like seconds. ``source``: the topic's ``event_time``."""
    meant = to_datetime(time_ms * 1_000).isoformat()
    path = source if isinstance(source, str) else "at"
    shown = to_datetime(time_ms).isoformat()
    what = f"the event time {time_ms} ms ({shown}) looks like seconds since 1970 ({meant})"
    hint = (
        "Event times are milliseconds: multiply by 1000 where the event is made, or with "
        f"event_time=lambda event: event.{path} * 1000. If these really are milliseconds of 1970, "
        f"give the topic a time_range that includes them: time_range=(0, {YEAR_2200_MS})."
    )
    return what, hint


def refuse_seconds(time_ms: int, here_ms: int, does: str) -> None:
    """Refuse a time that a handler gives and that must be in seconds, or a duration: it is in 1970, the handler's in this century.

    ``does`` begins the message of the UnfitValueError.
    """
    if here_ms >= _OF_TODAY_MS and 0 < time_ms < SECONDS_FIRST_MS:
        raise UnfitValueError(
            f"{does} at {time_ms} ms ({to_datetime(time_ms).isoformat()}), which looks like a duration: the handler's time is "
            f"{to_datetime(here_ms).isoformat()}",
            hint="Times are instants: add it to one, such as ctx.event_time or ctx.now.",
        )
    if here_ms >= _OF_TODAY_MS and SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS:
        meant = to_datetime(time_ms * 1_000).isoformat()
        raise UnfitValueError(
            f"{does} at {time_ms} ms ({to_datetime(time_ms).isoformat()}), which looks like seconds since 1970 ({meant}): the "
            f"handler's time is {to_datetime(here_ms).isoformat()}",
            hint="Times are milliseconds: multiply by 1000, or give an aware datetime.",
        )


def time_reader(
    event_type: Any, source: str | Callable[[Any], Any], where: str
) -> Callable[[Any], int | None]:
    """A function that gives an event's time in ms since the epoch, or None where the event has none.

    ``source`` is the path of a field (an int of milliseconds, or an aware datetime, rounded down) or a
    function of the event. ``where`` begins the message of the DefinitionError for a field that does not exist
    or does not hold a time. The function raises UsageError for a non-instant, such as a naive datetime.
    """
    if not isinstance(source, str):
        return _converted(source)
    what = f"{where}: the event time {source!r} of {spell(event_type)}"
    found, optional = types_at(event_type, source, what)
    for one in found:
        if one not in (int, datetime) and spell(one) not in _PYDANTIC_DATETIMES:
            raise DefinitionError(
                f"{what} is of type {spell(one)}",
                hint="Name an int of milliseconds since 1970 or a datetime, or give a function of the event "
                "that returns one.",
            )
    read = _lenient(source) if optional else attrgetter(source)
    return read if set(found) <= {int} else _converted(read)


def _converted(read: Callable[[Any], Any]) -> Callable[[Any], int | None]:
    def time_of(event: Any) -> int | None:
        instant = read(event)
        if type(instant) is int or instant is None:
            return instant
        try:
            return to_ms(instant)
        except UsageError as error:
            raise BadRecordError(error.what, reason="bad-time", hint=error.hint) from None

    return time_of


def _lenient(path: str) -> Callable[[Any], Any]:
    """Reads a path on which a value may be None."""
    names = path.split(".")

    def read(event: Any) -> Any:
        for name in names:
            if event is None:
                return None
            event = getattr(event, name)
        return event

    return read
