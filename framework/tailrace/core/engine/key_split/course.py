"""What a task is split into: chunks of its steps, the records of each shard in them, and the course of the whole.

Plain data that goes from the first pass to the second, between processes too: every struct here can be encoded by msgspec.
The theory is in ``first_pass``.
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
"""Keeps the choice of a shard apart from that of a partition, and from other uses of the same hash."""


def shard_of(key: bytes, shards: int) -> int:
    """The shard of a key, by its bytes: the same in every process."""
    return zlib.crc32(key, _SEED) % shards


def is_of_shard(row: bytes, shard: int, shards: int) -> bool:
    """Whether a row of the state that a task starts from belongs to a shard; the task's own rows belong to all."""
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
    """What ``pack`` has packed."""
    packed: array[int] = array(kind)
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


class Series(msgspec.Struct, array_like=True, frozen=True):
    """At the end of which steps of a chunk a watermark or the clock moved, and to what; all of them only grow.

    The first entry is what holds when the chunk begins, and the step that brought it about. 64-bit columns, see ``pack``;
    one of ``watermarks`` for each operator.
    """

    steps: bytes
    watermarks: list[bytes]
    clocks: bytes

    @classmethod
    def of(cls, steps: Sequence[int], watermarks: Sequence[Sequence[int]], clocks: Sequence[int]) -> Series:
        """The series of these columns."""
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
    ``after`` entries of the chunk's series (32 bits). ``skips`` are those of these records, in numbers of inputs.
    """

    first: int
    steps: bytes
    inputs: bytes
    before: bytes
    after: bytes
    records: list[InputRecord]
    skips: list[tape.Skip]


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """A stretch of steps, ``first`` to ``last``: what all shards have to know, and what each one has to do."""

    number: int
    first: int
    last: int
    series: Series
    shards: list[ShardRecords]


class TimerSkip(msgspec.Struct, array_like=True, frozen=True):
    """The firing of a timer that failed: the how-manieth it was, and between which two steps it fell."""

    number: int
    first: int
    last: int
    headers: list[tuple[str, bytes]]


class Course(msgspec.Struct, array_like=True):
    """What a first pass has found out about the task as a whole: what its shards start from, and where they end.

    ``totals`` are what the task has counted from ``base`` to ``cut``, None where that is not known before the shards
    have run (the pass has stopped at a limit).
    """

    shards: int
    lineage: bytes
    base: bytes | None
    cut: bytes
    totals: tape.Totals | None
    steps: int
    timer_skips: list[TimerSkip]
    for_others: int = 0
    """Records that were redriven for other apps: they come to no shard."""

    def cut_with(self, gained: tape.Totals) -> bytes:
        """The cut, for a task whose shards have counted this much in sum."""
        cut = tape.decode_cut(self.cut)
        start = tape.Totals() if self.base is None else tape.decode_cut(self.base).totals
        cut.totals = summed(start, gained)
        return tape.encode(cut)


def summed(*parts: tape.Totals) -> tape.Totals:
    """Totals added up."""
    names = tape.Totals.__struct_fields__
    return tape.Totals(*(sum(getattr(part, name) for part in parts) for name in names))


def gained(before: tape.Totals, after: tape.Totals) -> tape.Totals:
    """What has been counted since."""
    names = tape.Totals.__struct_fields__
    return tape.Totals(*(getattr(after, name) - getattr(before, name) for name in names))
