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
from functools import partial
from typing import Any, Literal, NoReturn, get_args, get_origin
from uuid import UUID

import msgspec

from tailrace.core.errors import BadRecordError, DefinitionError
from tailrace.core.values.key_paths import members_of, unwrapped
from tailrace.core.values.map_keys import fixed_values, of_fixed_values
from tailrace.core.values.types import spell

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
    alternatives = members_of(declared)
    if len(alternatives) != 1:
        raise DefinitionError(
            f"{spell(declared)} cannot be a key: it is not one type",
            hint="Use one type; a tuple for several fields.",
        )
    bare: Any = alternatives[0]
    if bare in _SCALARS:
        return _scalar(bare)
    if (members := fixed_values(bare)) is not None:
        return _values(bare, members)
    if get_origin(bare) is tuple:
        return _array(bare)
    raise DefinitionError(
        f"{spell(declared)} cannot be a key",
        hint=_HINTS.get(bare, "A key is a str, bytes, int, UUID, date, an enum, or a tuple of these."),
    )


_SCALARS: Mapping[Any, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    str: (str.encode, bytes.decode),
    bytes: (bytes, bytes),
    int: (
        partial(int.to_bytes, length=8, byteorder="big", signed=True),
        partial(int.from_bytes, byteorder="big", signed=True),
    ),
    UUID: (lambda key: str(key).encode(), lambda data: UUID(data.decode())),
    date: (lambda key: key.isoformat().encode(), lambda data: date.fromisoformat(data.decode())),
}
"""How keys of these types are written and read."""


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


def _scalar(kind: Any) -> KeyCodec:
    write, read = _SCALARS[kind]

    def encode(key: Any) -> bytes:
        if type(key) is not kind:
            _refuse(key, kind)
        try:
            return write(key)
        except OverflowError:
            _refuse(key, kind, "it does not fit 64 bits with a sign")
        except UnicodeEncodeError as error:
            _refuse(key, kind, str(error))

    def decode(data: bytes) -> Any:
        try:
            key = read(data)
            if write(key) != data:
                raise ValueError(f"{key} is written differently")
        except (OverflowError, ValueError) as error:
            raise _unreadable(data, kind, error) from None
        return key

    return KeyCodec(kind, encode, decode, kind)


def _values(declared: Any, members: Mapping[Any, Any]) -> KeyCodec:
    encode, decode, kind, _ = of_fixed_values(
        declared,
        members,
        _scalar,
        "a key",
        _refuse,
        lambda data: _unreadable(data, declared, ValueError("it has no such value")),
    )
    return KeyCodec(declared, encode, decode, kind)


def _array(declared: Any) -> KeyCodec:
    items = tuple(unwrapped(item) for item in get_args(declared))
    forms = tuple(key_codec_for(item) for item in items if item is not Ellipsis)
    if len(forms) != len(items) or not items or any(form.type is bytes or form.items for form in forms):
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
