"""The byte form of a map's keys: exactly invertible, and in the order of the keys.

A map in state is iterated in the order of its keys' bytes, which must be an order that users expect:

=============  =====================================================================================
a key of type  its bytes
=============  =====================================================================================
str            UTF-8, which orders by code point, as Python does
bytes          itself
int            8 bytes, big-endian, sign bit flipped
bool           00 or 01
UUID           its 16 bytes
date           4 bytes, big-endian: days since year 1
datetime       8 bytes, big-endian: microseconds since 1970 in UTC, sign bit flipped
enum, Literal  those of its value
tuple          its items one after the other; a str or bytes ends with 00 00, and a 00 in it becomes
               00 FF, as in FoundationDB's tuple layer
=============  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, Flag
from typing import Any, Literal, NoReturn, get_args, get_origin
from uuid import UUID

from tailrace.core.errors import (
    CorruptStateError,
    DefinitionError,
    DurableValueError,
    UnfitValueError,
    UsageError,
)
from tailrace.core.values.key_paths import members_of, unwrapped
from tailrace.core.values.types import spell

_BIAS = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_END = b"\0\0"
_ESCAPED = b"\0\xff"


@dataclass(frozen=True, slots=True)
class MapKeyCodec:
    """Encodes and decodes a map's keys, in order.

    ``encode(key)`` raises DurableValueError for a key that is not of the declared type; ``decode(data)``
    raises CorruptStateError for bytes that are not an encoded key. A datetime is decoded in UTC, any other
    key unchanged. ``size`` is the number of bytes, or None where it varies. ``encode_prefix`` gives what the bytes
    of all keys begin with that have these first characters, bytes or items.
    """

    type: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    size: int | None
    encode_prefix: Callable[[Any], bytes]


def map_key_codec_for(declared: Any) -> MapKeyCodec:
    """The codec of a map's key type. DefinitionError for a type whose keys have no order in bytes."""
    members = members_of(declared)
    if len(members) == 1 and unwrapped(declared) == members[0]:
        bare = members[0]
        if bare in _SCALARS:
            return _scalar(bare)
        if (fixed := fixed_values(bare)) is not None:
            return _values(bare, fixed)
        if get_origin(bare) is tuple and Ellipsis not in get_args(bare):
            return _tuple(bare, [map_key_codec_for(item) for item in get_args(bare)])
    raise DefinitionError(
        f"{spell(declared)} cannot be the key of a map",
        hint="A map's key is a str, bytes, int, bool, UUID, date, datetime, an enum, or a tuple of these.",
    )


def fixed_values(declared: Any) -> Mapping[Any, Any] | None:
    """The values of a Literal, or an enum's members by their values; None for any other type."""
    if get_origin(declared) is Literal:
        return {value: value for value in get_args(declared)}
    if isinstance(declared, type) and issubclass(declared, Enum) and not issubclass(declared, Flag):
        return {member.value: member for member in declared}
    return None


def of_fixed_values(
    declared: Any,
    members: Mapping[Any, Any],
    scalar: Callable[[Any], Any],
    use: str,
    refuse: Callable[[Any, Any], NoReturn],
    unreadable: Callable[[bytes], Exception],
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any], Any, Any]:
    """How keys are written and read that have ``fixed_values``: by these. Also their class, and the codec of the values.

    Raises DefinitionError: the values are not of one type.
    """
    kinds: set[Any] = {type(value) for value in members}
    if kinds not in ({str}, {int}):
        raise DefinitionError(
            f"{spell(declared)} cannot be {use}", hint="Its values must be all str, or all int."
        )
    form = scalar(*kinds)
    kind: Any = next(iter(members.values())).__class__
    # A dict lookup would accept 1 for True and a str for its StrEnum: check the type first.
    written: dict[Any, bytes] = {member: form.encode(value) for value, member in members.items()}
    read = {data: member for member, data in written.items()}

    def encode(key: Any) -> bytes:
        if type(key) is not kind or key not in written:
            refuse(key, declared)
        return written[key]

    def decode(data: bytes) -> Any:
        if data not in read:
            raise unreadable(data)
        return read[data]

    return encode, decode, kind, form


def _int_bytes(key: int) -> bytes:
    return (key + _BIAS).to_bytes(8, "big")


def _bytes_int(data: bytes) -> int:
    return int.from_bytes(data, "big") - _BIAS


def _datetime_bytes(key: datetime) -> bytes:
    if key.tzinfo is None:
        raise ValueError("it has no time zone")
    return _int_bytes((key - _EPOCH) // _MICROSECOND)


_SCALARS: Mapping[Any, tuple[Callable[[Any], bytes], Callable[[bytes], Any], int | None]] = {
    str: (str.encode, bytes.decode, None),
    bytes: (bytes, bytes, None),
    int: (_int_bytes, _bytes_int, 8),
    bool: (lambda key: b"\1" if key else b"\0", lambda data: data == b"\1", 1),
    UUID: (lambda key: key.bytes, lambda data: UUID(bytes=data), 16),
    date: (
        lambda key: key.toordinal().to_bytes(4, "big"),
        lambda data: date.fromordinal(int.from_bytes(data, "big")),
        4,
    ),
    datetime: (_datetime_bytes, lambda data: _EPOCH + _bytes_int(data) * _MICROSECOND, 8),
}
"""How keys of these types are written and read, and their size."""


def _refuse(key: object, declared: Any, why: object = "") -> NoReturn:
    raise (UnfitValueError if why else DurableValueError)(
        f"the map key {key!r} is not of type {spell(declared)}: {why or spell(type(key))}",
        hint=f"Convert it to {spell(declared)}, or declare the map with the keys it has.",
    )


def _scalar(kind: Any) -> MapKeyCodec:
    write, read, size = _SCALARS[kind]

    def encode(key: Any) -> bytes:
        if type(key) is not kind:
            _refuse(key, kind)
        try:
            return write(key)
        except (OverflowError, ValueError) as error:
            _refuse(key, kind, error)

    def decode(data: bytes) -> Any:
        try:
            key = read(data)
            if write(key) == data:
                return key
        except (OverflowError, ValueError):
            pass
        raise _damaged(data, kind)

    return MapKeyCodec(kind, encode, decode, size, encode if kind in (str, bytes) else _no_prefix)


def _no_prefix(prefix: object) -> NoReturn:
    raise UsageError(
        f"the keys of this map have no prefix {prefix!r}",
        hint="A prefix selects strings or bytes by their beginning, and tuples by their first items. Use start and stop.",
    )


def _damaged(data: bytes, declared: Any) -> CorruptStateError:
    return CorruptStateError(
        f"a stored map key {data!r} is not of type {spell(declared)}",
        hint="Restore this task's state from the log or a snapshot.",
    )


def _values(declared: Any, members: Mapping[Any, Any]) -> MapKeyCodec:
    encode, decode, _, form = of_fixed_values(
        declared, members, _scalar, "the key of a map", _refuse, lambda data: _damaged(data, declared)
    )
    return MapKeyCodec(declared, encode, decode, form.size, _no_prefix)


def _tuple(declared: Any, items: Sequence[MapKeyCodec]) -> MapKeyCodec:
    length = len(items)

    def encode(key: Any) -> bytes:
        if key.__class__ is not tuple or len(key) != length:
            _refuse(key, declared)
        return encode_prefix(key)

    def encode_prefix(prefix: Any) -> bytes:
        if prefix.__class__ is not tuple or len(prefix) > length:
            _no_prefix(prefix)
        return b"".join(
            [_ended(one.encode(part), one.size) for one, part in zip(items, prefix, strict=False)]
        )

    def decode(data: bytes) -> Any:
        parts: list[Any] = []
        rest = data
        for one in items:
            part, rest = _split(rest, one.size, data, declared)
            parts.append(one.decode(part))
        if rest:
            raise _damaged(data, declared)
        return tuple(parts)

    sizes = [one.size for one in items]
    size = None if None in sizes else sum(size or 0 for size in sizes)
    return MapKeyCodec(declared, encode, decode, size, encode_prefix)


def _ended(part: bytes, size: int | None) -> bytes:
    return part if size is not None else part.replace(b"\0", _ESCAPED) + _END


def _split(data: bytes, size: int | None, whole: bytes, declared: Any) -> tuple[bytes, bytes]:
    """The first part of a tuple's bytes, as it was before ``_ended``, and the remaining bytes."""
    if size is not None:
        return data[:size], data[size:]
    at = data.find(b"\0")
    while data[at : at + 2] == _ESCAPED:
        at = data.find(b"\0", at + 2)
    if data[at : at + 2] != _END:
        raise _damaged(whole, declared)
    return data[:at].replace(_ESCAPED, b"\0"), data[at + 2 :]
