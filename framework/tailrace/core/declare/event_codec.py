"""The codec of a topic's events: it encodes and decodes record values, and names the field at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any, NamedTuple, get_origin

import msgspec
from msgspec import inspect

from tailrace.core.errors import DefinitionError, EmittedTypeError, EventValueError, UsageError
from tailrace.core.values.event_values import Change, canonical_writer, change_of, is_comparable, json_writer
from tailrace.core.values.types import check_emitted, parts_of, spell

_KEEP = 'Emit None or nothing where there is no number, or declare the topic with format="msgpack".'
_CONVERT = "Convert it before it is emitted, or declare the field with the type that it holds."
_AS_BYTES = (bytes, datetime)
"""Types that MessagePack has a form of its own for."""


class RecordFormat(NamedTuple):
    """A ``format=`` of topics besides JSON and MessagePack, and what makes the codec of a topic and its type."""

    name: str
    codec: Callable[[str, Any], EventCodec]


class EventCodec:
    """The codec of a topic's events.

    ``encode`` writes the same bytes for equal events, whatever the order of a dict or set, or the sign of a
    NaN. It raises EventValueError, with the field, for a float that JSON cannot write (nan, infinity).
    ``check`` looks at all other values. ``decode`` is msgspec's own function.
    """

    __slots__ = ("_compare", "_json", "_write", "decode", "encode", "topic", "type")

    def __init__(self, topic: str, type: Any, format: str) -> None:
        self.topic = topic
        self.type = type
        self._json = format == "json"
        self.decode: Callable[[bytes], Any] = (
            (msgspec.json if self._json else msgspec.msgpack).Decoder[Any](type).decode
        )
        _check_parts(topic, type)
        self._write = _writer(topic, type, json=self._json)
        self._compare = is_comparable(type)
        self.encode: Callable[[Any], bytes] = (
            json_writer(type, self._write, self._encode_checked)
            if self._json
            else canonical_writer(type, self._write)
        )

    def prepare(self) -> None:
        """Get ready to encode, before a service handles its first record."""

    def check_emitted(self) -> None:
        """Raise DefinitionError for a type whose records would depend on more than the event."""
        check_emitted(self.type, topic=self.topic)

    def check(self, event: Any) -> None:
        """Raise EmittedTypeError unless a record's readers get an equal event. Slow: only for tests."""
        change = self._change(event)
        if change is not None:
            raise EmittedTypeError(
                self._describe(event, change),
                topic=self.topic,
                field=change.path or None,
                hint=f"{_CONVERT} Only tests check this; a live service would write the event.",
            )

    def unwritable(self, event: Any, error: Exception) -> Exception:
        """The error to raise for an ``error`` of ``encode`` (see CODEC_ERRORS), with topic and field."""
        change = self._change(event)
        return error if change is None else self._refused(event, change)

    def _encode_checked(self, event: Any) -> bytes:
        """``encode`` for an event with a float that is not finite."""
        change = self._change(event)
        if change is not None:
            raise self._refused(event, change)
        return self._write(event)

    def _change(self, event: Any) -> Change | None:
        return change_of(event, self._write, self.decode, json=self._json, compare=self._compare)

    def _refused(self, event: Any, change: Change) -> Exception:
        if change.mistake:
            return UsageError(f"{self._describe(event, change)} (topic {self.topic!r})", hint=_CONVERT)
        return EventValueError(
            self._describe(event, change),
            topic=self.topic,
            field=change.path or None,
            hint=_KEEP if change.lost else _CONVERT,
        )

    def _describe(self, event: Any, change: Change) -> str:
        return f"an event of type {spell(type(event))} cannot be written as it is: {change}"


def _check_parts(topic: str, declared: Any) -> None:
    """Refuse a dataclass with defaults on its class, classes of attrs, and a TypedDict that msgspec reads without some fields.

    msgspec does not set a missing field of a decoded event if its class has the default, and it encodes only
    the fields that are set. So two equal events would have different records.
    """
    for part in parts_of(inspect.type_info(declared), set()):
        if isinstance(part, inspect.TypedDictType):
            for name in (one.encode_name for one in part.fields if not one.encode_name.isascii()):
                raise DefinitionError(
                    f"the topic {topic!r} cannot hold {spell(part.cls)}: msgspec does not read {name!r}, a name beyond ASCII of a TypedDict",
                    hint="Declare the class as a msgspec.Struct.",
                )
        if isinstance(part, inspect.DataclassType):
            cls = get_origin(part.cls) or part.cls
            if not is_dataclass(cls):
                raise DefinitionError(
                    f"the topic {topic!r} cannot hold {spell(cls)}, a class of attrs",
                    hint="Declare the class with @dataclass(slots=True), or as a msgspec.Struct.",
                )
            for one in fields(cls):
                is_slot = isinstance(getattr_static(cls, one.name, None), MemberDescriptorType)
                if one.default is not MISSING and not is_slot:
                    raise DefinitionError(
                        f"the topic {topic!r} cannot hold {spell(cls)}: {one.name} has a default and no "
                        "slot, so a decoded event would be encoded without it",
                        hint="Declare the class with @dataclass(slots=True), or as a msgspec.Struct.",
                    )


def _writer(topic: str, declared: Any, *, json: bool) -> Callable[[Any], bytes]:
    keys = {
        kind
        for part in parts_of(inspect.type_info(declared), set())
        if isinstance(part, inspect.DictType)
        for kind in [_kinds_of_key(part.key_type)]
    }
    if any(len(one) > 1 for one in keys):
        return _refuse_keys(topic, declared)
    if all(one <= {str} for one in keys):
        encoder = msgspec.json.Encoder if json else msgspec.msgpack.Encoder
        return encoder(order="deterministic").encode
    # msgspec's encoders sort only keys of type str.
    convert = msgspec.to_builtins
    if json:
        write = msgspec.json.Encoder(order="deterministic").encode
        return lambda event: write(convert(event, str_keys=True, order="deterministic"))
    pack = msgspec.msgpack.Encoder().encode
    return lambda event: pack(convert(event, builtin_types=_AS_BYTES, order="deterministic"))


def _kinds_of_key(node: inspect.Type) -> frozenset[type]:
    """The kinds of keys in a dict; keys of one kind can be sorted."""
    match node:
        case inspect.Metadata():
            return _kinds_of_key(node.type)
        case inspect.UnionType():
            return frozenset(kind for one in node.types for kind in _kinds_of_key(one))
        case inspect.AnyType() | inspect.StrType():
            return frozenset((str,))
        case inspect.LiteralType():
            return frozenset(map(type, node.values))
        case _:
            return frozenset((type(node),))


def _refuse_keys(topic: str, declared: Any) -> Callable[[Any], bytes]:
    def refuse(_: Any) -> bytes:
        raise DefinitionError(
            f"events of type {spell(declared)} cannot be written to {topic!r}: a dict in it has keys of "
            "several types, which have no order, and may be the same key as text (1 and '1')",
            hint="Declare its keys as one type, or use a list of pairs.",
        )

    return refuse
