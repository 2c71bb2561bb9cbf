"""The data for the second pass: chunks of a task's steps, their records by shard, and the task's overview.

Plain data that the first pass sends to the second, also between processes: msgspec can encode every struct
here. The theory is in ``first_pass``.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.records import InputRecord

Columns: TypeAlias = tuple[list[int], list[list[int]], list[int]]
"""Of a series: steps, watermarks by operator, clock readings."""

_SEED: Final = 0x7A11_24CE
"""Makes the choice of a shard independent of the choice of a partition, and of other uses of the same hash.
"""


def shard_of(key: bytes, shards: int) -> int:
    """The shard of a key, by its bytes. It is the same in every process."""
    return zlib.crc32(key, _SEED) % shards


def is_of_shard(row: bytes, shard: int, shards: int) -> bool:
    """Whether a row of a task's starting state belongs to a shard. The task's own rows belong to all."""
    if row[:1] == rows.STATE:
        return shard_of(rows.read_state_row(row).key, shards) == shard
    if row[:1] == rows.INDEX:
        return shard_of(rows.read_index_row(row)[2], shards) == shard
    return True


def pack(kind: str, values: Iterable[int]) -> bytes:
    """Numbers of an ``array`` type code as bytes, little-endian."""
    packed = array(kind, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(kind: str, data: bytes) -> list[int]:
    """The inverse of ``pack``."""
    packed: array[int] = array(kind)
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


class Series(msgspec.Struct, array_like=True, frozen=True):
    """The steps of a chunk that moved a watermark or the clock, with the new values, which never decrease.

    The first entry has the values at the start of the chunk, and the step that set them. The columns are
    64-bit, see ``pack``; ``watermarks`` has one for each operator.
    """

    steps: bytes
    watermarks: list[bytes]
    clocks: bytes

    @classmethod
    def of(cls, steps: Sequence[int], watermarks: Sequence[Sequence[int]], clocks: Sequence[int]) -> Series:
        """A series from these columns."""
        return cls(pack("q", steps), [pack("q", one) for one in watermarks], pack("q", clocks))

    def columns(self) -> Columns:
        """Steps, watermarks by operator, clock readings."""
        return (
            unpack("q", self.steps),
            [unpack("q", one) for one in self.watermarks],
            unpack("q", self.clocks),
        )


class ShardRecords(msgspec.Struct, array_like=True, frozen=True):
    """The records of one shard in one chunk, as columns.

    ``steps`` count from ``first`` (32 bits), ``inputs`` are the numbers of inputs (16 bits), ``before`` and
    ``after`` are entries of the chunk's series (32 bits). ``skips`` are theirs, by number of the input.
    """

    first: int
    steps: bytes
    inputs: bytes
    before: bytes
    after: bytes
    records: list[InputRecord]
    skips: list[tape.Skip]


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """A range of steps, ``first`` to ``last``: the data for all shards, and the records of each shard."""

    number: int
    first: int
    last: int
    series: Series
    shards: list[ShardRecords]


class Overview(msgspec.Struct, array_like=True):
    """What a first pass knows about the task as a whole: the start and the end of its shards.

    ``totals`` are the task's counts from ``base`` to ``cut``; None if they are only known after the shards
    have run (the pass has stopped at a limit).
    """

    shards: int
    lineage: bytes
    base: bytes | None
    cut: bytes
    totals: tape.Totals | None
    steps: int
    for_others: int = 0
    """Records that were redriven for other apps: no shard gets them."""

    def cut_with(self, gained: tape.Totals) -> bytes:
        """The cut, with totals that include ``gained``, the sum of the shards' counts."""
        cut = tape.decode_cut(self.cut)
        start = tape.Totals() if self.base is None else tape.decode_cut(self.base).totals
        cut.totals = summed(start, gained)
        return tape.encode(cut)


def summed(*parts: tape.Totals) -> tape.Totals:
    """The sum of totals."""
    names = tape.Totals.__struct_fields__
    return tape.Totals(*(sum(getattr(part, name) for part in parts) for name in names))


def gained(before: tape.Totals, after: tape.Totals) -> tape.Totals:
    """The difference of two totals."""
    names = tape.Totals.__struct_fields__
    return tape.Totals(*(getattr(after, name) - getattr(before, name) for name in names))
