"""Reads values that an earlier version of the code stored, with the meaning that they had for that code.

The decoder of the type declared now cannot handle two differences:

    a missing field              It was added after the value was stored. It was read as the default with which it was added,
                                 and keeps that value, its *fill*, if the default changes.
    an int in a float field      Most ints decode to an equal float. An int above 2**53 may have none: it is refused.

``reader_of`` compiles a merged schema to a function from stored bytes to bytes that have all such fields. Most schemas have
no such fields, and no reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tailrace.core.errors import IncompatibleStateError
from tailrace.core.values.defaults import are_same
from tailrace.core.values.type_schemas import FieldSchema, TypeSchema

OldValueReader: TypeAlias = Callable[[bytes], bytes]

_encode = msgspec.msgpack.Encoder().encode
_fields_of = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_items_of = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_pairs_of = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode
_plain_of = msgspec.msgpack.Decoder().decode

_Around: TypeAlias = tuple[list[OldValueReader] | None, ...]


class LossyIntError(ValueError):
    """A stored int without an equal float, where the type is now float."""

    def __init__(self, value: int, path: tuple[str, ...] = ()) -> None:
        self.value, self.path = value, path
        super().__init__(f"{'.'.join(path) or 'a value'} is {value}, an int without an equal float")

    def as_incompatible(self, actor: str, key: object, collection: str = "") -> IncompatibleStateError:
        """The error for the operator."""
        field = ".".join(filter(None, (collection, *self.path)))
        return IncompatibleStateError(
            f"{actor}.{field} of the key {key!r} is {self.value}: it was stored as an int, and there is no "
            "equal float",
            actor=actor,
            field=field,
            stored="int",
            declared="float",
            hint="Declare the field as int | float, and convert such values in a handler.",
        )


def reader_of(schema: TypeSchema, *, every_fill: bool = False) -> OldValueReader | None:
    """A function that adds the missing fields to a stored value of a type. None if there are none.

    ``every_fill``: also add fields whose fill equals the declared default.
    """
    return _Compiler(every_fill).type(schema, ())


def reader_of_fields(fields: Sequence[FieldSchema], *, every_fill: bool = False) -> OldValueReader | None:
    """Like ``reader_of``, for a row of the plain fields of an actor."""
    struct = TypeSchema("struct", fields=tuple(one for one in fields if one.kind == "value"))
    return reader_of(struct, every_fill=every_fill)


class _Compiler:
    def __init__(self, every_fill: bool) -> None:
        self._every_fill = every_fill

    def type(self, schema: TypeSchema, around: _Around) -> OldValueReader | None:
        """``around``: for each enclosing struct, the outermost first, where its reader will be; None if it has none."""
        if not self._concerns(schema, tuple(one is not None for one in around)):
            return None
        match schema.kind:
            case "recursive":
                return _enclosing(around[~schema.up])
            case "float":
                return _checked_float
            case "union":
                return self._union(schema, around)
            case "list" | "tuple...":
                return _each(self._or_same(schema.of[0], around))
            case "tuple":
                return _positions([self._or_same(one, around) for one in schema.of], [], 0)
            case "dict":
                return _each_value(self._or_same(schema.of[1], around))  # keys never change
            case _:
                return self._struct(schema, around)

    def _concerns(self, schema: TypeSchema, around: tuple[bool, ...]) -> bool:
        if schema.kind == "recursive":
            return schema.up < len(around) and around[~schema.up]
        if schema.kind in ("struct", "namedtuple"):
            inside = (*around, False)
            return any(self._is_filled(one) or self._concerns(one.type, inside) for one in schema.fields)
        return schema.ints or any(self._concerns(one, around) for one in schema.of)

    def _is_filled(self, field: FieldSchema) -> bool:
        if field.fill is None or not field.absent:
            return False
        return self._every_fill or not field.default or not are_same(field.fill, field.default)

    def _or_same(self, schema: TypeSchema, around: _Around) -> OldValueReader:
        return self.type(schema, around) or bytes

    def _struct(self, schema: TypeSchema, around: _Around) -> OldValueReader:
        here: list[OldValueReader] = []
        inside = (*around, here)
        readers = {one.name: found for one in schema.fields if (found := self.type(one.type, inside))}
        fills = {one.name: one.fill for one in schema.fields if self._is_filled(one) and one.fill is not None}
        if schema.kind == "namedtuple" or schema.array_like:
            last = [one.fill if one.fill is not None else one.default for one in schema.fields]
            reader = _positions(
                [readers.get(one.name, bytes) for one in schema.fields], last, int(schema.tag is not None)
            )
        else:
            reader = _named(readers, fills)
        here.append(reader)
        return reader

    def _union(self, schema: TypeSchema, around: _Around) -> OldValueReader:
        """The reader of a union: it selects the member by the value's first byte, and a struct by its tag."""
        found = [(one, reader) for one in schema.of if (reader := self.type(one, around))]
        by_wire: dict[str, list[tuple[TypeSchema, OldValueReader]]] = {}
        for one, reader in found:
            by_wire.setdefault(_wire_of(one), []).append((one, reader))
        if any(one.kind == "int" or (one.values and type(one.values[0]) is int) for one in schema.of):
            by_wire.pop("int", None)  # an int stays an int

        def read(data: bytes) -> bytes:
            for one, reader in by_wire.get(_wire(data[0]), ()):
                if one.tag is None or _tag(one, data) == one.tag:
                    return reader(data)
            return data

        return read


def _enclosing(reader: list[OldValueReader] | None) -> OldValueReader | None:
    """The reader of an enclosing struct, which is set by the time that it is called."""

    def read(data: bytes) -> bytes:
        assert reader is not None
        return reader[0](data)

    return None if reader is None else read


def _wire_of(schema: TypeSchema) -> str:
    if schema.kind in ("list", "tuple...", "tuple", "namedtuple") or schema.array_like:
        return "array"
    return "int" if schema.kind == "float" else "map"


def _wire(first: int) -> str:
    """The kind of a value by its first byte, as far as it matters here."""
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        return "map"
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        return "array"
    return "int" if first <= 0x7F or first >= 0xE0 or 0xCC <= first <= 0xD3 else ""


def _tag(schema: TypeSchema, data: bytes) -> Any:
    if schema.array_like:
        items = _items_of(data)
        return _plain_of(items[0]) if items else None
    raw = _fields_of(data).get(schema.tag_field or "")
    return None if raw is None else _plain_of(raw)


# --- readers


def _checked_float(data: bytes) -> bytes:
    if _wire(data[0]) == "int":
        value = _plain_of(data)
        if value != int(float(value)):
            raise LossyIntError(value)
    return data


def _named(readers: Mapping[str, OldValueReader], fills: Mapping[str, bytes]) -> OldValueReader:
    def read(data: bytes) -> bytes:
        fields: dict[str, Any] = dict(_fields_of(data))
        changed = False
        for name, fill in fills.items():
            if name not in fields:
                fields[name] = msgspec.Raw(fill)
                changed = True
        for name, reader in readers.items():
            raw = fields.get(name)
            if raw is not None:
                before = bytes(raw)
                try:
                    after = reader(before)
                except LossyIntError as error:
                    raise LossyIntError(error.value, (name, *error.path)) from None
                if after is not before:
                    fields[name] = msgspec.Raw(after)
                    changed = True
        return _encode(fields) if changed else data

    return read


def _positions(readers: Sequence[OldValueReader], last: Sequence[bytes | None], start: int) -> OldValueReader:
    """``last``: what stands at a place where a value ends before it. The places begin at ``start``."""

    def read(data: bytes) -> bytes:
        items = [bytes(one) for one in _items_of(data)]
        size = len(items) - start
        items += [one for one in last[size:] if one is not None]
        after = [*items[:start], *(reader(one) for reader, one in zip(readers, items[start:], strict=False))]
        return _encode([msgspec.Raw(one) for one in (*after, *items[len(after) :])])

    return read


def _each(reader: OldValueReader) -> OldValueReader:
    return lambda data: _encode([msgspec.Raw(reader(bytes(one))) for one in _items_of(data)])


def _each_value(reader: OldValueReader) -> OldValueReader:
    return lambda data: _encode(
        {key: msgspec.Raw(reader(bytes(one))) for key, one in _pairs_of(data).items()}
    )
