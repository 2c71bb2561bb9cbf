"""The schema of an actor's stored state, and the row of a task's state that holds all its actors' schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from tailrace.core import rows
from tailrace.core.declare.actor import Declaration, declaration_of, key_type_of_actor
from tailrace.core.declare.fields import Field
from tailrace.core.declare.handlers import TimerRole
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import CorruptStateError, DefinitionError
from tailrace.core.formats import check_format
from tailrace.core.values.defaults import VaryingDefaultError, encoded_default
from tailrace.core.values.key_paths import stored_path
from tailrace.core.values.type_schemas import ActorSchema, FieldSchema, describe_type

FORMAT: Final = 3
"""Version of the row."""


class SchemaRow(msgspec.Struct, frozen=True):
    """The schemas of a task's state, by name of actor: of all actors that may have state, declared or not."""

    format: int
    actors: dict[str, ActorSchema]


class _Version(msgspec.Struct):
    format: int


_encoder = msgspec.json.Encoder(order="deterministic")
_version = msgspec.json.Decoder(_Version)
_decoder = msgspec.json.Decoder(SchemaRow)


def describe(cls: type[Any]) -> ActorSchema:
    """The schema of an actor class whose annotations are resolved; the same in every process."""
    declaration = declaration_of(cls)
    structs = {one.name: one for one in msgspec.structs.fields(cls)}
    fields = sorted(declaration.fields, key=lambda one: one.name)
    timers = {
        timer_family(role.domain, role.family): role.payload
        for handler in declaration.handlers
        for role in handler.roles
        if isinstance(role, TimerRole)
    }
    payloads = {name: describe_type(one) for name, one in sorted(timers.items()) if one is not None}
    return ActorSchema(
        describe_type(key_type_of_actor(cls)),
        tuple(_described(one, structs) for one in fields),
        timers=tuple(sorted(timers)),
        inputs=_inputs(declaration),
        meaning=declaration.meaning,
        payloads=tuple(FieldSchema(name, one, kind="list") for name, one in payloads.items()),
        migrated=declaration.migrations[-1].versions[-1] if declaration.migrations else "",
    )


def _inputs(declaration: Declaration) -> dict[str, str]:
    """For each topic that the actor takes, by name: the fields of the key in its events."""
    topics = {
        edge.name: edge
        for handler in declaration.handlers
        for edge in handler.edges
        if isinstance(edge, Topic) and edge.settings.key is not None
    }
    return {name: _key(topic) for name, topic in sorted(topics.items())}


def _key(topic: Topic[Any, Any]) -> str:
    key = topic.settings.key
    return "" if callable(key) else stored_path(topic.type, key)


def timer_family(domain: int, family: str) -> str:
    """A family of timers as one word, for ``--drop-state`` after the actor's name: ``timers:overdue``.

    Timers without a name are ``timers:``. A family is the part of a timer's name before the first colon.
    """
    return f"{'processing-' if domain == rows.PROCESSING_TIME else ''}timers:{family}"


def _described(one: Field, structs: Mapping[str, msgspec.structs.FieldInfo]) -> FieldSchema:
    ttl_time = None if one.ttl_ms is None else "event" if one.ttl_domain == rows.EVENT_TIME else "processing"
    return FieldSchema(
        one.name,
        describe_type(one.annotation if one.kind == "value" else one.types[-1]),
        kind=one.kind,
        key=describe_type(one.types[0]) if one.kind == "map" else None,
        required=one.required,
        ttl_ms=one.ttl_ms,
        ttl_time=ttl_time,
        default=_default(one, structs[one.attr]) if one.kind == "value" else None,
    )


def _default(one: Field, struct: msgspec.structs.FieldInfo) -> bytes | None:
    try:
        return encoded_default(struct.default, struct.default_factory, inspect.type_info(one.annotation))
    except VaryingDefaultError:
        raise DefinitionError(
            f"{one.where} has a default_factory that returns a different value at each call",
            hint="A new instance must be the same at any time and in any process: give it a constant "
            "default, and set the field in a handler.",
        ) from None


def encode_schemas(actors: dict[str, ActorSchema]) -> bytes:
    """The row, as JSON: any tool can read it."""
    return _encoder.encode(SchemaRow(FORMAT, actors))


def decode_schemas(row: bytes) -> dict[str, ActorSchema]:
    """The schemas of a row.

    Raises FormatError if another version wrote it, CorruptStateError if it is damaged.
    """
    try:
        written = _version.decode(row).format
        check_format("the schema stored with the state", written, FORMAT)
        return _decoder.decode(row).actors
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptStateError(
            f"the schema stored with the state cannot be read: {error}",
            hint="Restore this task's state from the log or from a snapshot.",
        ) from error
