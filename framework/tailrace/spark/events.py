"""The columns of a topic's events: their fields, by the app's declaration or by a type alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_origin

import msgspec
from msgspec import inspect

from tailrace.core.declare.annotations import members_of
from tailrace.core.declare.event_codec import EventCodec
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import BadRecordError, DefinitionError, UnknownTopicError, UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import kind_of
from tailrace.core.values.keys import KeyCodec, key_codec_for
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.type_schemas import FieldSchema, TypeSchema, describe_type
from tailrace.core.values.types import check_emitted, spell
from tailrace.processes.app_loading import find_app
from tailrace.spark.columns import JSON, Column, column, columns_of
from tailrace.spark.options import Options

TYPE = "_type"
"""The column with the type of an event, in a topic of several types."""


class Events(NamedTuple):
    """How the events of a topic are read. ``partitioned``: each key is in its partition by murmur2."""

    decode: Callable[[bytes], Any]
    columns: tuple[Column, ...]
    """Of the fields, by their encoded names."""
    whole: bool
    """An event is no struct, and is the one column itself."""
    several: bool
    """There are several types of events, and the first column says which."""
    key: Column
    key_codec: KeyCodec
    omits: bool
    """What an event is encoded as may leave out fields that hold their defaults."""
    partitioned: bool = False

    def _encode_key(self, shown: Any) -> bytes:
        """The bytes of a key as its column shows it, or as text.

        Raises:
            UsageError: It is not a key of this topic.
        """
        codec = self.key_codec
        kind = bytes if codec.type is bytes else codec.type
        try:
            return codec.encode(msgspec.convert(shown, kind, strict=False))
        except (msgspec.ValidationError, BadRecordError) as error:
            said = error.what if isinstance(error, BadRecordError) else str(error)
            raise UsageError(
                f"{shown!r} is not a key of this topic: {said}", hint=f"Its keys are of type {spell(kind)}."
            ) from None

    def key_of_text(self, text: str) -> bytes:
        """The bytes of a key that was given as an option: a tuple as a JSON list."""
        if self.key_codec.type is bytes:
            return text.encode()
        if get_origin(self.key_codec.type) is tuple:
            try:
                return self._encode_key(msgspec.json.decode(text))
            except msgspec.DecodeError:
                pass  # the error below reports it
        return self._encode_key(text)

    def partitions_of(self, keys: frozenset[bytes], count: int) -> set[int] | None:
        """The partitions that records of these keys can be in. None if they are not known."""
        return {partition_of(key, count) for key in keys} if self.partitioned else None


def events_of(options: Options, topic: str) -> Events | None:
    """How a topic is read. None if neither an app nor a type is named: then keys and values are bytes.

    Raises:
        UsageError, UnknownAppError, UnknownTopicError: An app, topic or type named in the options does not exist.
    """
    if "app" in options:
        options.refuse("schema", "format", because="the app declares the topic")
        declared = find_app(options.required("app")).plan().topics
        if topic not in declared:
            raise UnknownTopicError(
                f"{options.required('app')} declares no such topic",
                topic=topic,
                hint=did_you_mean(
                    topic,
                    declared,
                    f"It declares {', '.join(sorted(declared))}. Without the option app, the topic is read as bytes.",
                ),
            )
        found = declared[topic]
        key = Column("_key", *column("", _schema(found.key_codec.type))[1:])
        by_murmur2 = found.key_of is not None and not found.settings.repartition
        return Events(
            _decoder(found), *_columns(found.type), key, found.key_codec, _omits(found.type), by_murmur2
        )
    if "schema" not in options:
        options.refuse("format", "undecodable", because="values are read as bytes without app or schema")
        return None
    type_ = _named_type(options.required("schema"))
    decoder = msgspec.msgpack if options.one_of("format", "json", "msgpack") == "msgpack" else msgspec.json
    codec = key_codec_for(bytes)
    key = column("_key", _schema(bytes))
    return Events(decoder.Decoder(type_).decode, *_columns(type_), key, codec, _omits(type_))


def _decoder(topic: Topic[Any, Any]) -> Callable[[bytes], Any]:
    """What makes an event out of a record; for a pydantic model, what it says as JSON."""
    codec = topic.codec
    return codec.decode if isinstance(codec, EventCodec) else lambda data: codec.plain(codec.decode(data))


def _named_type(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        inspect.type_info(found)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"schema is {reference!r}: {error}",
            hint="Write the module and the type in it: package.module:Type.",
        ) from None
    if kind_of(found) == "model":
        raise UsageError(
            f"schema is {reference!r}, a pydantic model, which is read as an app declares it",
            hint='Give the app with .option("app", "package.module:app").',
        )
    return found


def _schema(declared: Any) -> TypeSchema:
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
        return (column("value", _schema(declared)),), True, False
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
    return [FieldSchema(one.encode_name, _schema(one.type)) for one in msgspec.structs.fields(declared)]
