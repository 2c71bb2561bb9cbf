"""The source of an event's time, and the watermarks that a service computes itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
from msgspec import inspect

from tailrace.core.durations import to_datetime, to_ms
from tailrace.core.errors import BadRecordError, DefinitionError, UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import event_fields, kind_of
from tailrace.core.values.types import spell

YEAR_2200_MS: Final = 7_258_118_400_000


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
    """The message and hint for an event time that looks like seconds. ``source``: the topic's ``event_time``."""
    meant = to_datetime(time_ms * 1_000).isoformat()
    path = source if isinstance(source, str) else "at"
    what = f"the event time {time_ms} ms ({to_datetime(time_ms).isoformat()}) looks like seconds since 1970 ({meant})"
    hint = (
        "Event times are milliseconds: multiply by 1000 where the event is made, or with "
        f"event_time=lambda event: event.{path} * 1000. If these really are milliseconds of 1970, "
        f"give the topic a time_range that includes them: time_range=(0, {YEAR_2200_MS})."
    )
    return what, hint


class WatermarkGenerator(msgspec.Struct):
    """Computes the watermark of an input from its events: subclass it, and give an instance to ``app.topic(watermark=...)``.

    It is a ``msgspec.Struct`` whose fields are durable. Each task has its own copy of the instance. The watermark must depend
    on nothing but its fields and the events in their order: no clock, no randomness.
    """

    def on_event(self, event: Any, event_time_ms: int, /) -> int | None:
        """The new watermark in milliseconds since 1970, or None to leave it unchanged. Called for each event, in order.

        A watermark states that all events up to it have been seen: an event at or before it is late. A value below the
        current watermark is ignored.
        """
        raise NotImplementedError


Leaf = Literal["int", "datetime", "none"]


def time_reader(
    event_type: Any, source: str | Callable[[Any], Any], where: str
) -> Callable[[Any], int | None]:
    """A function that gives an event's time in milliseconds since the epoch, or None where the event has none.

    ``source`` is the path of a field (an int of milliseconds, or an aware datetime, rounded down) or a function of the
    event. ``where`` begins the message of the DefinitionError for a field that does not exist or does not hold a time. The
    function raises UsageError for a value that is not an instant, such as a naive datetime.
    """
    if not isinstance(source, str):
        return _converted(source)
    leaves: set[Leaf] = set()
    optional = _walk(inspect.type_info(event_type), source.split("."), source, where, leaves)
    read = _lenient(source) if optional else attrgetter(source)
    return read if "datetime" not in leaves else _converted(read)


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


def _walk(node: inspect.Type, names: list[str], path: str, where: str, leaves: set[Leaf]) -> bool:
    """Collect the types that the path may end at. Returns whether a value before its end may be None."""
    if isinstance(node, inspect.Metadata):
        return _walk(node.type, names, path, where, leaves)
    if isinstance(node, inspect.UnionType):
        optional = [_walk(member, names, path, where, leaves) for member in node.types]  # each is looked at
        return any(optional)
    if not names:
        leaves.add(_leaf(node, path, where))
        return False
    if isinstance(node, inspect.NoneType):
        return True
    if not isinstance(node, inspect.StructType | inspect.DataclassType | inspect.CustomType) or not kind_of(
        node.cls
    ):
        raise DefinitionError(
            f"{where} takes its event time from {path!r}, but {names[0]!r} is looked for in a {_kind(node)}",
            hint="Name a field of a struct.",
        )
    if isinstance(node, inspect.CustomType):
        fields = {one.name: inspect.type_info(one.type) for one in event_fields(node.cls).values()}
    else:
        fields = {one.name: one.type for one in node.fields}
    found = fields.get(names[0])
    if found is None:
        known = list(fields)
        raise DefinitionError(
            f"{where} takes its event time from {path!r}, but {node.cls.__name__} has no field {names[0]!r}",
            hint=did_you_mean(names[0], known, f"It has {', '.join(known)}."),
        )
    return _walk(found, names[1:], path, where, leaves)


def _leaf(node: inspect.Type, path: str, where: str) -> Leaf:
    if isinstance(node, inspect.IntType):
        return "int"
    if isinstance(node, inspect.DateTimeType) or (
        isinstance(node, inspect.CustomType)
        and spell(node.cls) in ("AwareDatetime", "PastDatetime", "FutureDatetime")
    ):  # these are pydantic's
        return "datetime"
    if isinstance(node, inspect.NoneType):
        return "none"
    raise DefinitionError(
        f"{where} takes its event time from {path!r}, which is a {_kind(node)}",
        hint="Name an int of milliseconds since 1970 or a datetime, or give a function of the event that returns one.",
    )


def _kind(node: inspect.Type) -> str:
    return type(node).__name__.removesuffix("Type").lower()
