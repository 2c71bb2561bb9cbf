"""The columns of a topic's events: their fields, by the app's declaration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_origin

import msgspec

from tailrace.core.declare.annotations import members_of
from tailrace.core.declare.event_codec import EventCodec
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import DefinitionError, UnknownTopicError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.keys import KeyCodec
from tailrace.core.values.type_schemas import FieldSchema, TypeSchema, describe_type
from tailrace.core.values.types import check_emitted
from tailrace.state.columns import JSON, Column, column, columns_of, complete, plain

TYPE = "_type"
"""The column with the type of an event, in a topic of several types."""

NO_EVENT: dict[str, Any] = {}
"""The columns of a record without an event."""


class Events(NamedTuple):
    """How the events of a topic are read. The columns are of Arrow types."""

    decode: Callable[[bytes], Any]
    columns: tuple[Column, ...]
    """Columns of the fields, by their encoded names."""
    whole: bool
    """An event is not a struct: it is one column."""
    several: bool
    """There are several types of events, and the first column has the type."""
    key: Column
    key_codec: KeyCodec
    omits: bool
    """The encoding of an event may leave out fields that hold their defaults."""
    partitioned: bool
    """Each key is in its partition by murmur2."""

    def shown(self, events: Sequence[Any]) -> list[dict[str, Any]]:
        """The plain values of decoded events by column; none of them for an event that is None."""
        found: list[Any] = plain(complete(events) if self.omits else events)
        if self.whole:
            return [NO_EVENT if one is None else {"value": one} for one in found]
        if self.several:
            for event, one in zip(events, found, strict=True):
                if one is not None:
                    one[TYPE] = type(event).__name__
        return [NO_EVENT if one is None else one for one in found]


def events_of(plan: Plan, topic: str) -> Events:
    """How a topic is read. Raises UnknownTopicError: the app does not declare it."""
    declared = plan.topics
    if topic not in declared:
        raise UnknownTopicError(
            f"the app {plan.app!r} declares no such topic",
            topic=topic,
            hint=did_you_mean(topic, declared, f"It declares {', '.join(sorted(declared))}."),
        )
    found = declared[topic]
    columns, whole, several = _columns(found.type)
    return Events(
        _decoder(found),
        columns,
        whole,
        several,
        key=column("_key", schema_of(found.key_codec.type)),
        key_codec=found.key_codec,
        omits=_omits(found.type),
        partitioned=found.key_of is not None and not found.settings.repartition,
    )


def _decoder(topic: Topic[Any, Any]) -> Callable[[bytes], Any]:
    """The decoder of an event; for a dataclass or a pydantic model, of its JSON."""
    codec = topic.codec
    return codec.decode if isinstance(codec, EventCodec) else lambda data: codec.plain(codec.decode(data))


def schema_of(declared: Any) -> TypeSchema:
    """The schema of a type; JSON for one that has none, as it could not be stored."""
    try:
        return describe_type(declared)
    except TypeError:
        return JSON


def _omits(declared: Any) -> bool:
    try:
        check_emitted(declared, topic="")
    except DefinitionError:
        return True
    return False


def _columns(declared: Any) -> tuple[tuple[Column, ...], bool, bool]:
    members = members_of(declared)
    if not members or not all(_is_struct(one) for one in members):
        return (column("value", schema_of(declared)),), True, False
    if len(members) == 1:
        return tuple(columns_of(_fields(members[0]))), False, False
    merged: dict[str, TypeSchema] = {}
    for one in (field for member in members for field in _fields(member)):
        if merged.setdefault(one.name, one.type) != one.type:
            merged[one.name] = JSON  # of different types in different events
    return (column(TYPE, TypeSchema("str")), *(column(*one) for one in merged.items())), False, True


def _is_struct(declared: Any) -> bool:
    cls = get_origin(declared) or declared
    return isinstance(cls, type) and issubclass(cls, msgspec.Struct) and not cls.__struct_config__.array_like


def _fields(declared: Any) -> Sequence[FieldSchema]:
    return [FieldSchema(one.encode_name, schema_of(one.type)) for one in msgspec.structs.fields(declared)]
