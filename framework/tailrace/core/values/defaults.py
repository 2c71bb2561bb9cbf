"""The defaults of fields as bytes, so that one that has changed is noticed where there is state of the old code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from tailrace.core.values.types import CODEC_ERRORS

NOT_CERTAIN: Final = b""
"""Stands for a default that nobody can go by."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class VaryingDefaultError(Exception):
    """A ``default_factory`` that does not give the same value each time it is called."""


def encoded_default(
    default: Any, default_factory: Callable[[], Any] | Any, node: inspect.Type | None = None
) -> bytes | None:
    """A field's default as it is stored; None if it has none, ``NOT_CERTAIN`` if it cannot be made or stored.

    ``node`` is the field's type: an int is stored as a float where the field is one.

    Raises:
        VaryingDefaultError: It is made by a function that gives another value at each call.
    """
    if default_factory is msgspec.NODEFAULT:
        return None if default is msgspec.NODEFAULT else _encoded(default, node)
    try:
        made = default_factory(), default_factory()
    except Exception:  # noqa: BLE001  # it is the user's: what is wrong with it is said to who makes an instance
        return NOT_CERTAIN
    first, second = (_encoded(one, node) for one in made)
    if first != second:
        raise VaryingDefaultError
    return first


def _encoded(value: Any, node: inspect.Type | None) -> bytes:
    if type(value) is int and isinstance(node, inspect.FloatType):
        value = float(value)
    try:
        return _encode(value)
    except CODEC_ERRORS:
        return NOT_CERTAIN


def are_same(one: bytes, other: bytes) -> bool:
    """Whether two stored defaults read as the same value: 0 in a field that is a float now is 0.0."""
    return one == other or _decode(one) == _decode(other)


def shown_default(encoded: bytes) -> str:
    """A stored default, for a person."""
    return repr(_decode(encoded))
