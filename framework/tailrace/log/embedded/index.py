"""The positions of the blocks, per segment and topic-partition, in arrays: a few dozen bytes for each block.

A block holds up to thousands of records, so the index of a hundred million records has a few megabytes. The index of a sealed
segment is written to a file once. If that file is missing or damaged, the segment's metas are read instead.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from tailrace.log.embedded.frames import BlockPlace, Published, SegmentName
from tailrace.log.interface import TopicPartition

HOLDS_NOBODY_BACK = -(1 << 63)
"""The value in a column of watermarks for a publisher that holds no reader back."""
_NUMBERS = ("bases", "ends", "positions", "lengths", "checksums", "max_timestamps_ms", "times_ms")


class Blocks:
    """The blocks of one topic-partition in one segment, in the order of their offsets."""

    __slots__ = (*_NUMBERS, "segment")

    def __init__(self, segment: SegmentName) -> None:
        self.segment = segment
        self.bases = array("q")
        self.ends = array("q")
        self.positions = array("q")
        self.lengths = array("q")
        self.checksums = array("q")
        self.max_timestamps_ms = array("q")
        self.times_ms = array("q")

    def __len__(self) -> int:
        return len(self.bases)

    def add(self, block: BlockPlace, position: int) -> None:
        """Add a block that is at ``position`` of the segment."""
        self.bases.append(block.base)
        self.ends.append(block.end)
        self.positions.append(position)
        self.lengths.append(block.length)
        self.checksums.append(block.checksum)
        self.max_timestamps_ms.append(block.max_timestamp_ms)
        self.times_ms.append(block.at_ms)

    def at_or_after(self, offset: int) -> int:
        """The number of the first block that ends after ``offset``; ``len(self)`` if none does."""
        return bisect_right(self.ends, offset)

    def columns(self) -> list[bytes]:
        """The columns as they are stored, in this machine's byte order."""
        return [getattr(self, name).tobytes() for name in _NUMBERS]

    def extend(self, columns: Sequence[bytes]) -> None:
        """Append columns that ``columns`` returned."""
        for name, column in zip(_NUMBERS, columns, strict=True):
            getattr(self, name).frombytes(column)


class Publications:
    """The watermarks published for one topic in one segment, in order. All fields are parallel."""

    __slots__ = ("ends", "partitions", "publishers", "watermarks_ms")

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.publishers: list[str] = []
        self.watermarks_ms = array("q")
        self.ends = array("q")
        """``partitions`` end offsets for each publication."""

    def __len__(self) -> int:
        return len(self.publishers)

    def add(self, published: Published) -> None:
        """Add the next publication."""
        watermark_ms = published.watermark_ms
        self.publishers.append(published.publisher)
        self.watermarks_ms.append(HOLDS_NOBODY_BACK if watermark_ms is None else watermark_ms)
        self.ends.extend(published.ends)

    def end(self, number: int, partition: int) -> int:
        """The position in a partition from which on a publication is valid."""
        return self.ends[number * self.partitions + partition]


class _StoredBlocks(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    columns: list[bytes]


class _StoredPublications(msgspec.Struct, array_like=True):
    topic: str
    partitions: int
    publishers: list[str]
    watermarks_ms: bytes
    ends: bytes


class _Stored(msgspec.Struct, array_like=True):
    format: int
    item_bytes: int
    """Size of an array item. A machine with another size, or another byte order (``one``), reads the segment instead."""
    one: bytes
    number: int
    generation: int
    blocks: list[_StoredBlocks]
    publications: list[_StoredPublications]
    first: list[Published]


_ONE = array("q", [1]).tobytes()
_FORMAT = 1


class SegmentIndex:
    """The index of a segment. ``first`` has the last publication of each publisher before this segment."""

    __slots__ = ("blocks", "first", "name", "publications")

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.blocks: dict[TopicPartition, Blocks] = {}
        self.publications: dict[str, Publications] = {}
        self.first: list[Published] = []

    def add_block(self, block: BlockPlace, position: int) -> Blocks | None:
        """Add a block at ``position`` of the segment. Returns the partition's ``Blocks`` if this is its first block here."""
        place = TopicPartition(block.topic, block.partition)
        found = self.blocks.get(place)
        new = None
        if found is None:
            found = new = self.blocks[place] = Blocks(self.name)
        found.add(block, position)
        return new

    def add_published(self, published: Published) -> None:
        """Add a publication."""
        found = self.publications.get(published.topic)
        if found is None:
            found = self.publications[published.topic] = Publications(len(published.ends))
        found.add(published)

    def encode(self) -> bytes:
        """The content of the index file: a checksum and the encoded index."""
        stored = _Stored(
            _FORMAT,
            array("q").itemsize,
            _ONE,
            self.name.number,
            self.name.generation,
            [_StoredBlocks(*place, blocks.columns()) for place, blocks in self.blocks.items()],
            [
                _StoredPublications(
                    topic, one.partitions, one.publishers, one.watermarks_ms.tobytes(), one.ends.tobytes()
                )
                for topic, one in self.publications.items()
            ],
            self.first,
        )
        data = msgspec.msgpack.encode(stored)
        return zlib.crc32(data).to_bytes(4, "little") + data


def decode_index(data: bytes, name: SegmentName) -> SegmentIndex | None:
    """Decode an index file. Returns None if it is damaged or of another kind of machine; it can be rebuilt."""
    if len(data) < 4 or zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
        return None
    try:
        stored = msgspec.msgpack.decode(data[4:], type=_Stored)
    except msgspec.MsgspecError:
        return None
    ours = (_FORMAT, array("q").itemsize, _ONE, *name)
    if (stored.format, stored.item_bytes, stored.one, stored.number, stored.generation) != ours:
        return None
    index = SegmentIndex(name)
    index.first = stored.first
    for one in stored.blocks:
        blocks = index.blocks[TopicPartition(one.topic, one.partition)] = Blocks(name)
        blocks.extend(one.columns)
    for each in stored.publications:
        publications = index.publications[each.topic] = Publications(each.partitions)
        publications.publishers = each.publishers
        publications.watermarks_ms.frombytes(each.watermarks_ms)
        publications.ends.frombytes(each.ends)
    return index
