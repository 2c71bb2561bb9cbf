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
from collections.abc import Iterator
from typing import Final

NAN_BYTES: Final = b"\x7f\xf8\0\0\0\0\0\0"
pack_float: Final = struct.Struct(">d").pack
"""The bytes of a float in MessagePack, after its type byte."""

_FLOAT64: Final = 0xCB
_other_nan: Final = re.compile(
    rb"\xcb(?!\x7f[\xf0\xf8]\0{6}|\xff\xf0\0{6})[\x7f\xff][\xf0-\xff]", re.DOTALL
).search
"""Finds what may be another NaN: neither canonical nor an infinity. It may also be part of a text."""

_SIZES: Final = {
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1, 0xD4), 3),
    **dict.fromkeys((0xCE, 0xD2, 0xCA), 5),
    **dict.fromkeys((0xCF, 0xD3, 0xCB), 9),
    0xD5: 4,  # this and the next three: ext of a fixed size
    0xD6: 6,
    0xD7: 10,
    0xD8: 18,
    **dict.fromkeys((0xDC, 0xDE), 3),  # the heads of arrays and maps; their items follow
    **dict.fromkeys((0xDD, 0xDF), 5),
}
"""Bytes of a token of MessagePack, by its type byte."""
_LENGTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length that follows the type byte of bytes, ext and str."""
_EXT: Final = (0xC7, 0xC8, 0xC9)


def canonical(data: bytes) -> bytes:
    """Encoded MessagePack with one form of NaN; ``data`` itself if there is nothing to change."""
    if _other_nan(data) is None:
        return data
    changed = bytearray(data)
    for at in _floats(data):
        value = data[at : at + 8]
        if value != NAN_BYTES and _is_nan(value):
            changed[at : at + 8] = NAN_BYTES
    return bytes(changed)


def _is_nan(value: bytes) -> bool:
    bits = int.from_bytes(value, "big") & 0x7FFF_FFFF_FFFF_FFFF
    return bits > 0x7FF0_0000_0000_0000


def _floats(data: bytes) -> Iterator[int]:
    """The places of each float's eight bytes, without recursion: a collection's items follow its head."""
    at = 0
    while at < len(data):
        kind = data[at]
        if kind == _FLOAT64:
            yield at + 1
        if 0xA0 <= kind < 0xC0:  # a short str
            at += 1 + (kind & 0x1F)
        elif kind in _LENGTHS:
            start = at + 1 + _LENGTHS[kind]
            at = start + int.from_bytes(data[at + 1 : start], "big") + (kind in _EXT)
        else:
            at += _SIZES.get(kind, 1)
