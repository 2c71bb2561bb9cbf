"""A block: consecutive records of one topic-partition as bytes, column by column.

Theory. A million records a second leaves one microsecond for each, so no Python code runs per record: ``zip``
and ``map`` build and split the columns, and msgspec encodes them in one call. A block is encoded before the
append lock is taken, so it does not contain its offset. A header name that all records share is stored once.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter

import msgspec

from tailrace.core.errors import UsageError
from tailrace.core.records import Headers, InputRecord, RawOutput, record_of

MOST_RECORDS = 4096
"""Maximum number of records in a block: a reader of a few decodes few others."""
MOST_BYTES = 4 << 20
"""Maximum size of a block in bytes, unless a single record is larger."""

_NO_HEADERS: Headers = ()
_FIRST, _NAME, _VALUE = itemgetter(0), itemgetter(0), itemgetter(1)


class _Columns(msgspec.Struct, array_like=True):
    timestamps: bytes
    """Milliseconds as eight bytes each, little endian. The offsets have the same form."""
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    header_name: str | None = None
    """The name of the only header of each record; its values are in ``header_values``. Else None."""
    header_values: Sequence[bytes] = ()
    headers: Sequence[Headers] | None = None
    offsets: bytes | None = None
    """Offsets relative to the first one, if compaction has left gaps; None if they are consecutive."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)
_bytes_only = frozenset((bytes,)).issuperset


def encode_outputs(outputs: Sequence[RawOutput]) -> Iterator[tuple[bytes, int, int]]:
    """Blocks for outputs of one partition: bytes, number of records, highest timestamp.
    Raises UsageError: a timestamp or header is of a type that ``decode`` refuses.
    """
    for begin in range(0, len(outputs), MOST_RECORDS):
        yield from _encode_some(outputs[begin : begin + MOST_RECORDS])


def _encode_some(outputs: Sequence[RawOutput]) -> Iterator[tuple[bytes, int, int]]:
    _, keys, values, timestamps, headers = zip(*outputs, strict=True)
    data, max_timestamp_ms = _encode(keys, values, timestamps, headers, None)
    if len(data) > MOST_BYTES and len(outputs) > 1:
        half = len(outputs) // 2
        yield from _encode_some(outputs[:half])
        yield from _encode_some(outputs[half:])
    else:
        yield data, len(outputs), max_timestamp_ms


def encode_records(records: Sequence[InputRecord]) -> tuple[bytes, int]:
    """A block of records with their offsets, which may have gaps: its bytes and its highest timestamp."""
    offsets, timestamps, keys, values, headers = zip(*records, strict=True)
    base = offsets[0]
    relative = [offset - base for offset in offsets]
    return _encode(keys, values, timestamps, headers, relative)


def decode(data: bytes, base: int) -> list[InputRecord]:
    """The records of a block whose first offset is ``base``.
    Raises msgspec.DecodeError: the data is not a block. A check of its checksum finds this earlier.
    """
    columns = _decoder.decode(data)
    keys = columns.keys
    headers: Iterable[Headers]
    if columns.header_name is not None:
        # The inner zip makes (name, value), the outer one the tuple of headers around it.
        headers = zip(zip(repeat(columns.header_name), columns.header_values))  # repeat has no end
    elif columns.headers is not None:
        headers = columns.headers
    else:
        headers = repeat(_NO_HEADERS, len(keys))
    offsets: Iterable[int] = range(base, base + len(keys))
    if columns.offsets is not None:
        offsets = map(base.__add__, _numbers(columns.offsets))
    return list(
        map(record_of, zip(offsets, _numbers(columns.timestamps), keys, columns.values, headers, strict=True))
    )


def _encode(
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Sequence[int],
    headers: Sequence[Headers],
    offsets: Sequence[int] | None,
) -> tuple[bytes, int]:
    columns = _Columns(_bytes(timestamps), keys, values, offsets=None if offsets is None else _bytes(offsets))
    if any(headers):
        only = _only_header(headers)
        if only is None:
            columns.headers = _checked(headers)
        else:
            columns.header_name, columns.header_values = only
    return _encoder.encode(columns), max(timestamps)


def _only_header(headers: Sequence[Headers]) -> tuple[str, list[bytes]] | None:
    """Name and values of the only header, if each record has exactly one, with the same name; else None."""
    try:
        counts = list(map(len, headers))
        if counts.count(1) < len(counts):
            return None
        pairs = list(map(_FIRST, headers))
        names, values = list(map(_NAME, pairs)), list(map(_VALUE, pairs))
    except (TypeError, LookupError):
        return None  # these are no headers; see _checked
    alike = type(names[0]) is str and names.count(names[0]) == len(names) and _bytes_only(map(type, values))
    return (names[0], values) if alike else None


def _checked(headers: Sequence[Headers]) -> Sequence[Headers]:
    try:
        return msgspec.convert(headers, list[Headers], builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise UsageError(
            f"a header of a record is not a pair of a str and bytes: {error}",
            hint="Give headers as a tuple of pairs. Nothing of this commit was appended.",
        ) from None


def _bytes(numbers: Sequence[int]) -> bytes:
    try:
        column = array("q", numbers)
    except (TypeError, OverflowError) as error:
        raise UsageError(
            f"the timestamp of a record is not an int that fits 64 bits: {error}",
            hint="Give milliseconds since the epoch. Nothing of this commit was appended.",
        ) from None
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _numbers(data: bytes) -> array[int]:
    column = array("q")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
