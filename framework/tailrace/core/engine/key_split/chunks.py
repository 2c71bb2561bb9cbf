"""The data for the second pass: chunks of a task's steps, their records by shard, and the task's overview.

Plain data that the first pass sends to the second, also between processes: msgspec can encode every struct
here. The theory is in ``first_pass``.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.records import InputRecord

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


class Series(msgspec.Struct, array_like=True, frozen=True):
    """The steps of a chunk that moved a watermark or the clock, with the new values, which never decrease.

    The first entry has the values at the start of the chunk, and the step that set them. ``watermarks`` has
    one column for each operator.
    """

    steps: list[int]
    watermarks: list[list[int]]
    clocks: list[int]


class ShardRecords(msgspec.Struct, array_like=True, frozen=True):
    """The records of one shard in one chunk, as columns.

    ``inputs`` are the numbers of inputs, ``before`` and ``after`` entries of the chunk's series. ``skips``
    are theirs, by number of the input.
    """

    steps: list[int]
    inputs: list[int]
    before: list[int]
    after: list[int]
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
