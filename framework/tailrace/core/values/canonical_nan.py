"""One encoding for every NaN: the quiet NaN ``7ff8 0000 0000 0000``, with a positive sign and no payload.

The sign of a computed NaN is not a function of the operands. ``-nan + nan`` is one or the other, by the order
in which the processor gets the operands: CPython swaps them when it specialises the bytecode of a loop, so
the first calls of a process differ from later ones. ``inf - inf`` is negative on x86 and positive on ARM.
State and outputs are compared byte for byte, so such a bit must never reach them.

    state       a NaN is replaced when the handler returns, in the live value as well: a guard (``guards``)
                accepts only the canonical NaN, and a value without a guard is decoded from bytes with
                canonical NaNs (``ValueCodec.settle``)
    events,     the bytes have canonical NaNs (``event_values.canonical_writer``). JSON has no NaN: such an
    messages    event is refused
    keys        floats are no keys

Two things remain as they are. A NaN that was read from a record has the bits of the record, which are the
same at each replay. Within a handler, and in an event that is passed to a stream, a computed NaN has the bits
that Python gave it: do not look at its sign (``math.copysign``) or its bytes (``struct.pack``). ``-0.0`` and
the infinities are never changed.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final

import msgspec

NAN_BYTES: Final = b"\x7f\xf8\0\0\0\0\0\0"
pack_float: Final = struct.Struct(">d").pack
"""The bytes of a float in MessagePack, after its type byte."""

_other_nan: Final = re.compile(
    rb"\xcb(?!\x7f[\xf0\xf8]\0{6}|\xff\xf0\0{6})[\x7f\xff][\xf0-\xff]", re.DOTALL
).search
"""Finds what may be another NaN: neither canonical nor an infinity. It may also be part of a text."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def canonical(data: bytes) -> bytes:
    """MessagePack of our encoder with one form of NaN; ``data`` itself if there is nothing to change."""
    if not may_have_other_than_finite(data) or _other_nan(data) is None:
        return data
    return _encode(_with_one_nan(_decode(data)))


def may_have_other_than_finite(data: bytes) -> bool:
    """Whether MessagePack may have a NaN or an infinity: a fast look at the first two bytes of floats."""
    return b"\xcb\x7f" in data or b"\xcb\xff" in data


def _with_one_nan(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return float("nan")
    if isinstance(value, (list, tuple)):
        return [_with_one_nan(one) for one in value]  # pyright: ignore[reportUnknownVariableType]  # any value
    if isinstance(value, dict):
        return {_as_key(key): _with_one_nan(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]  # any value
    return value


def _as_key(key: Any) -> Any:
    return tuple(map(_as_key, key)) if isinstance(key, tuple) else _with_one_nan(key)  # pyright: ignore[reportUnknownArgumentType]  # any value
