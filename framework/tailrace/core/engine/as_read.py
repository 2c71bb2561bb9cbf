"""The rows of a key as their own version of the code reads them, to compare rows of different versions.

Equal bytes may be read differently, and different bytes may be read as equal. A row may lack a field that was
added later, and a key without rows reads its defaults. The stored schema has all of this, so no code is
needed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.engine.value_rows import KeyRows, joined, raw_fields
from tailrace.core.values.canonical_nan import canonical
from tailrace.core.values.defaults import NOT_CERTAIN, are_same, shown_default
from tailrace.core.values.stored_types import stored_struct, stored_type
from tailrace.core.values.type_schemas import ActorSchema, FieldSchema

_encode = msgspec.msgpack.Encoder().encode


class ReadAs:
    """Reads an actor's rows by the schema stored with them; ``only``: the names of the fields to compare."""

    def __init__(self, schema: ActorSchema, only: Collection[str] | None = None) -> None:
        fields = [one for one in schema.fields if only is None or one.name in only]
        self.fields = {one.name: one for one in fields if one.kind == "value"}
        plain = [*self.fields.values()]
        self._plain = _one_form(stored_struct(plain))
        self._entries = {
            ("m" if one.kind == "map" else "l", one.name): (one, _one_form(stored_type(one.type)))
            for one in fields
            if one.kind != "value"
        }
        defaults = {one.name: one.default for one in plain if one.default}
        has_blank = not any(one.required or one.default == NOT_CERTAIN for one in plain)
        self._blank = self._plain(joined(defaults)) if has_blank else None

    def read(self, found: KeyRows, beside: Collection[str] | None = None) -> KeyRows:
        """The rows of a key in one form, with a row for each timer. A key without rows has its defaults, unless fields are required.

        ``beside``: the fields of another version; defaults of fields that it does not have are left out.
        """
        found = rows.spread(found)
        kept = dict(self._others(found))
        value = found.get(b"")
        encoded = self._blank if value is None else self._plain(value[1:])
        if encoded is None:
            return kept
        if beside is not None:
            shown = {
                name: value
                for name, value in sorted(raw_fields(encoded).items())
                if name in beside or not _same_field(self.fields.get(name), value, None, None)
            }
            if not shown:
                return kept
            encoded = joined(shown)
        return {b"": rows.PLAIN + encoded, **kept}

    def _others(self, found: KeyRows) -> Iterator[tuple[bytes, bytes]]:
        for rest, value in found.items():
            if rest[:1] == b"t":
                if rest[2:3] != rows.EXPIRY or rest[4:].decode() in self.fields:
                    yield rest, value
            elif rest:
                name, _, entry = rest[1:].partition(b"\0")
                known = self._entries.get((rest[:1].decode(), name.decode()))
                if known is not None:
                    field, normal = known
                    yield rest, value if field.kind == "list" and not entry else _entry(normal, value)


def read_the_same(one: ReadAs, was: KeyRows, other: ReadAs, now: KeyRows) -> bool:
    """Whether two versions read the same state of a key; a field of only one must have its default."""
    before, after = one.read(was), other.read(now)
    fields = [raw_fields(side[b""][1:]) if b"" in side else {} for side in (before, after)]
    before.pop(b"", None)
    after.pop(b"", None)
    return before == after and all(
        _same_field(one.fields.get(name), fields[0].get(name), other.fields.get(name), fields[1].get(name))
        for name in fields[0].keys() | fields[1].keys()
    )


def defaults_apart(one: ReadAs, other: ReadAs) -> list[tuple[str, str, str]]:
    """The fields with different defaults in two versions, with both. A key without rows reads these."""
    return [
        (name, shown_default(field.default), shown_default(there.default))
        for name, field in one.fields.items()
        if (there := other.fields.get(name)) and field.default and there.default
        if not are_same(field.default, there.default)
    ]


def _same_field(
    one: FieldSchema | None, was: bytes | None, other: FieldSchema | None, now: bytes | None
) -> bool:
    if one is None or other is None:
        field, value = (other, now) if one is None else (one, was)
        default = None if field is None else field.default
        return value is None or (bool(default) and are_same(value, default or b""))
    if was is None or now is None:
        return was == now
    return was == now or (one.type != other.type and are_same(was, now))


def _one_form(declared: Any) -> Callable[[bytes], bytes]:
    """A function that converts encoded values that are read as equal to the same bytes."""
    decode = msgspec.msgpack.Decoder[Any](declared).decode

    def form(data: bytes) -> bytes:
        try:
            return _encode(decode(canonical(data)))
        except (msgspec.MsgspecError, ValueError):
            return data  # no version of the code can read it

    return form


def _entry(normal: Callable[[bytes], bytes], value: bytes) -> bytes:
    encoded, expiry = rows.unpack_entry(value)
    domain, time_ms = expiry or (rows.EVENT_TIME, None)
    return rows.pack_entry(normal(encoded), domain, time_ms)
