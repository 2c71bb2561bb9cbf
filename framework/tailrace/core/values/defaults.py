"""The defaults of fields as bytes, to detect a changed default where there is state of the old code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from tailrace.core.values.canonical_nan import canonical
from tailrace.core.values.types import CODEC_ERRORS

NOT_CERTAIN: Final = b""
"""In place of a default that cannot be relied on."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class VaryingDefaultError(Exception):
    """A ``default_factory`` that does not return the same value at each call."""


def encoded_default(
    default: Any, default_factory: Callable[[], Any] | Any, node: inspect.Type | None = None
) -> bytes | None:
    """A field's default as it is stored: None if it has none, ``NOT_CERTAIN`` if it cannot be made or stored.

    ``node`` is the field's type: an int is stored as a float where the field is one. Raises
    VaryingDefaultError if its default_factory returns a different value at each call.
    """
    if default_factory is msgspec.NODEFAULT:
        return None if default is msgspec.NODEFAULT else _encoded(default, node)
    try:
        made = default_factory(), default_factory()
    except Exception:  # noqa: BLE001  # the factory is the user's, and raises when an instance is created
        return NOT_CERTAIN
    first, second = (_encoded(one, node) for one in made)
    if first != second:
        raise VaryingDefaultError
    return first


def _encoded(value: Any, node: inspect.Type | None) -> bytes:
    if type(value) is int and isinstance(node, inspect.FloatType):
        value = float(value)
    try:
        return canonical(_encode(value))
    except CODEC_ERRORS:
        return NOT_CERTAIN


def are_same(one: bytes, other: bytes) -> bool:
    """Whether two stored defaults are read as the same value: 0 in a field that is now a float is 0.0."""
    one, other = canonical(one), canonical(other)
    return one == other or _decode(one) == _decode(other)


def shown_default(encoded: bytes) -> str:
    """A stored default, for a message."""
    return repr(_decode(encoded))
