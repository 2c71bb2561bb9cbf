"""The one byte form of an actor's key, which its events are partitioned by and its state is stored under.

Other clients of the log write such a key in the same form, so services in other languages agree on it:

================  ============================================================================
a key of type     its bytes
================  ============================================================================
str               UTF-8
bytes             itself
int               Kafka's Long: 8 bytes, big-endian, two's complement
UUID, date        its text, in ISO form
enum, Literal     those of its value
a tuple of these  a JSON array, compact, in UTF-8 (without bytes)
================  ============================================================================

A key has the *exact* declared type (``True`` is not 1, a ``str`` subclass is not a ``str``), so a decoded key
is indistinguishable from the encoded one. Map keys have a form of their own: ``map_keys``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum, Flag
from typing import Any, Literal, NoReturn, get_args, get_origin
from uuid import UUID

import msgspec

from tailrace.core.errors import BadRecordError, DefinitionError
from tailrace.core.values.key_paths import key_getter, key_type_of, members_of, unwrapped
from tailrace.core.values.map_keys import MapKeyCodec, map_key_codec_for
from tailrace.core.values.types import spell

__all__ = [
    "KeyCodec",
    "MapKeyCodec",
    "key_codec_for",
    "key_getter",
    "key_type_of",
    "map_key_codec_for",
]

_MISSING = (None, msgspec.UNSET)
_HINTS: dict[Any, str] = {
    bool: "Use an enum, or route by another field.",
    float: "Use an int, a str or a Decimal's text.",
}


@dataclass(frozen=True, slots=True)
class KeyCodec:
    """Encodes and decodes an actor's keys.

    ``encode(key)`` raises BadRecordError: reason ``missing-key`` for None, ``bad-key`` for a key of another
    type or out of range. ``decode(data)`` raises it with ``bad-key`` for bytes that are not such a key. The
    decoded key has the value and the type of the encoded one.
    """

    type: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    kind: Any
    """The class of every key."""
    items: tuple[Any, ...] = ()
    """The classes of a tuple's items."""

    def are_exact(self, keys: Iterable[Any]) -> bool:
        """Whether all keys have exactly their declared type. If so, equal keys have the same bytes.

        Python finds ``True``, ``1`` and ``1.0``, or a str and a member of a StrEnum, under the same key of a
        dict. So a key is checked before anything is looked up by it.
        """
        if self.items:
            return all(type(key) is tuple and tuple(map(type, key)) == self.items for key in keys)
        return {self.kind}.issuperset(map(type, keys))


def key_codec_for(declared: Any) -> KeyCodec:
    """The codec of a key type. DefinitionError for a type without one byte form."""
    members = members_of(declared)
    if len(members) != 1:
        raise DefinitionError(
            f"{spell(declared)} cannot be a key: it is not one type",
            hint="Use one type; a tuple for several fields.",
        )
    bare: Any = members[0]
    if bare is str:
        return _text()
    if bare is bytes:
        return _bytes()
    if bare is int:
        return _long()
    if bare in (UUID, date):
        return _iso(bare)
    if get_origin(bare) is Literal:
        return _literal(bare)
    if isinstance(bare, type) and issubclass(bare, Enum) and not issubclass(bare, Flag):
        return _enum(bare)
    if get_origin(bare) is tuple:
        return _array(bare)
    raise DefinitionError(
        f"{spell(declared)} cannot be a key",
        hint=_HINTS.get(bare, "A key is a str, bytes, int, UUID, date, an enum, or a tuple of these."),
    )


def _refuse(key: object, declared: Any, why: str = "") -> NoReturn:
    if any(key is missing for missing in _MISSING):
        raise BadRecordError(
            "the event has no key",
            reason="missing-key",
            hint="Look at what its producer sends, or at the key's function.",
        )
    raise BadRecordError(
        f"the key {key!r} is not of type {spell(declared)}: {why or spell(type(key))}",
        reason="bad-key",
        hint=f"Convert it to {spell(declared)}, or declare the key with the type that it has.",
    )


def _unreadable(data: bytes, declared: Any, error: Exception) -> BadRecordError:
    return BadRecordError(
        f"the bytes {data!r} are not a key of type {spell(declared)}: {error}",
        reason="bad-key",
        hint="They were written with another key type or serializer: check the topic's producer.",
    )


def _text() -> KeyCodec:
    def encode(key: Any) -> bytes:
        if type(key) is not str:
            _refuse(key, str)
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            _refuse(key, str, str(error))

    def decode(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _unreadable(data, str, error) from None

    return KeyCodec(str, encode, decode, str)


def _bytes() -> KeyCodec:
    def encode(key: Any) -> bytes:
        if type(key) is not bytes:
            _refuse(key, bytes)
        return key

    return KeyCodec(bytes, encode, bytes, bytes)


def _long() -> KeyCodec:
    def encode(key: Any) -> bytes:
        if type(key) is not int:
            _refuse(key, int)
        try:
            return key.to_bytes(8, "big", signed=True)
        except OverflowError:
            _refuse(key, int, "it does not fit 64 bits with a sign")

    def decode(data: bytes) -> int:
        if len(data) != 8:
            raise _unreadable(data, int, ValueError(f"{len(data)} bytes instead of 8"))
        return int.from_bytes(data, "big", signed=True)

    return KeyCodec(int, encode, decode, int)


def _iso(kind: type[UUID] | type[date]) -> KeyCodec:
    read: Callable[[str], Any] = UUID if kind is UUID else date.fromisoformat

    def encode(key: Any) -> bytes:
        if type(key) is not kind:
            _refuse(key, kind)
        return str(key).encode()

    def decode(data: bytes) -> Any:
        try:
            key = read(data.decode())
        except ValueError as error:
            raise _unreadable(data, kind, error) from None
        if str(key).encode() != data:
            raise _unreadable(data, kind, ValueError(f"{key} is written differently"))
        return key

    return KeyCodec(kind, encode, decode, kind)


def _enum(cls: type[Enum]) -> KeyCodec:
    values = {member: member.value for member in cls}
    form = _form_of_values(cls, list(values.values()))
    written = {member.name: form.encode(value) for member, value in values.items()}
    members = {written[member.name]: member for member in cls}

    def encode(key: Any) -> bytes:
        if type(key) is not cls:
            _refuse(key, cls)
        return written[key.name]

    return KeyCodec(cls, encode, _looked_up(cls, members), cls)


def _literal(declared: Any) -> KeyCodec:
    values = get_args(declared)
    form = _form_of_values(declared, values)

    def encode(key: Any) -> bytes:
        if type(key) is not form.type or key not in values:
            _refuse(key, declared)
        return form.encode(key)

    members = {form.encode(value): value for value in values}
    return KeyCodec(declared, encode, _looked_up(declared, members), form.kind)


def _form_of_values(declared: Any, values: Any) -> KeyCodec:
    kinds: set[Any] = {type(value) for value in values}
    if kinds == {str}:
        return _text()
    if kinds == {int}:
        return _long()
    raise DefinitionError(
        f"{spell(declared)} cannot be a key", hint="Its values must be all str, or all int."
    )


def _looked_up(declared: Any, members: Mapping[bytes, Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return members[data]
        except KeyError:
            raise _unreadable(data, declared, ValueError("it has no such value")) from None

    return decode


def _array(declared: Any) -> KeyCodec:
    items = tuple(unwrapped(item) for item in get_args(declared))
    forms = tuple(key_codec_for(item) for item in items if item is not Ellipsis)
    if len(forms) != len(items) or not items or any(form.type is bytes or _is_array(form) for form in forms):
        raise DefinitionError(
            f"{spell(declared)} cannot be a key",
            hint="Several fields make a key if each is a str, int, UUID, date or enum, and their number is "
            "fixed.",
        )
    kinds = tuple(form.type for form in forms)
    exact = tuple(form.kind for form in forms)
    # JSON would accept an int of any size, and any value where a Literal is declared.
    strict = [
        (at, one.encode) for at, one in enumerate(forms) if one.type is int or get_origin(one.type) is Literal
    ]
    write = msgspec.json.Encoder().encode
    shape: Any = tuple.__class_getitem__(kinds)
    read = msgspec.json.Decoder[tuple[Any, ...]](shape).decode

    def encode(key: Any) -> bytes:
        if key.__class__ is not tuple or tuple(map(type, key)) != exact:
            if key.__class__ is tuple and any(item is missing for item in key for missing in _MISSING):
                _refuse(None, declared)
            _refuse(key, declared)
        for at, check in strict:
            check(key[at])
        try:
            return write(key)
        except UnicodeEncodeError as error:
            _refuse(key, declared, str(error))

    def decode(data: bytes) -> Any:
        try:
            key = read(data)
        except msgspec.DecodeError as error:
            raise _unreadable(data, declared, error) from None
        if write(key) != data:
            raise _unreadable(data, declared, ValueError(f"{key} is written differently"))
        return key

    return KeyCodec(declared, encode, decode, tuple, exact)


def _is_array(form: KeyCodec) -> bool:
    return get_origin(form.type) is tuple
