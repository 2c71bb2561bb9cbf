"""Writes the next generation of a sealed segment: the same records at the same offsets, without the removed ones.

The single commits are not needed any more. So the new file is ordered by partition, and records of blocks that compaction has
thinned out are merged into full blocks. Of the other data, only the state at the front and the published watermarks are kept;
everything else is in the states of later segments.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence

from tailrace.core.records import InputRecord
from tailrace.log.embedded import blocks as blocks_
from tailrace.log.embedded.frames import (
    BlockPlace,
    Meta,
    Published,
    SegmentName,
    encode_frame,
    encode_segment_head,
)
from tailrace.log.embedded.index import HOLDS_NOBODY_BACK, Blocks, SegmentIndex
from tailrace.log.embedded.view import View
from tailrace.log.interface import TopicPartition

_FRAME_BYTES = 16 << 20

Stays = Mapping[TopicPartition, "Sequence[array[int] | None] | None"]


def rewritten(view: View, index: SegmentIndex, name: SegmentName, stays: Stays) -> Iterator[bytes]:
    """The bytes of the new segment, piece by piece."""
    _, _, first = next(view.frames(index.name))
    yield encode_segment_head(name)
    yield encode_frame(first, 0, 1, 0)
    sequence = 1
    for place, blocks in index.blocks.items():
        frame = _Frame(place)
        for data, base, end, max_timestamp_ms, at_ms in _kept(view, place, blocks, stays[place]):
            frame.add(data, base, end, max_timestamp_ms, at_ms)
            if frame.length >= _FRAME_BYTES:
                sequence += 1
                yield from frame.take(sequence)
        if frame.length:
            sequence += 1
            yield from frame.take(sequence)
    at_ms = first.at_ms
    for topic, publications in index.publications.items():
        published = [
            Published(
                topic,
                publisher,
                None if watermark_ms == HOLDS_NOBODY_BACK else watermark_ms,
                [publications.end(number, partition) for partition in range(publications.partitions)],
            )
            for number, (publisher, watermark_ms) in enumerate(
                zip(publications.publishers, publications.watermarks_ms, strict=True)
            )
        ]
        sequence += 1
        yield encode_frame(Meta(at_ms, published=published), 0, sequence, 0)
    yield encode_frame(Meta(at_ms, sealed=True), 0, sequence + 1, 0)


class _Frame:
    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.length = 0
        self._places: list[BlockPlace] = []
        self._buffers: list[bytes] = []

    def add(self, data: bytes, base: int, end: int, max_timestamp_ms: int, at_ms: int) -> None:
        checksum = zlib.crc32(data)
        self._places.append(
            BlockPlace(*self.place, base, end, self.length, len(data), checksum, max_timestamp_ms, at_ms)
        )
        self._buffers.append(data)
        self.length += len(data)

    def take(self, sequence: int) -> list[bytes]:
        at_ms = max(place.at_ms for place in self._places)
        pieces = [encode_frame(Meta(at_ms, blocks=self._places), self.length, sequence, 0), *self._buffers]
        self.length, self._places, self._buffers = 0, [], []
        return pieces


def _kept(
    view: View, place: TopicPartition, blocks: Blocks, stays: Sequence[array[int] | None] | None
) -> Iterator[tuple[bytes, int, int, int, int]]:
    """The new blocks: data, base, end, highest timestamp, time of commit."""
    gathered: list[InputRecord] = []
    gathered_bytes = 0
    time_ms = 0
    for number in range(len(blocks)):
        stay = None if stays is None else stays[number]
        if stay is not None and not stay:
            continue
        data = view.raw_block(place, blocks, number)
        base, end = blocks.bases[number], blocks.ends[number]
        if gathered and (
            len(gathered) >= blocks_.MOST_RECORDS
            or gathered_bytes >= blocks_.MOST_BYTES
            or (stay is None and end - base >= blocks_.MOST_RECORDS // 2)
        ):
            yield _gathered(gathered, time_ms)
            gathered, gathered_bytes = [], 0
        if stay is None and not gathered and end - base >= blocks_.MOST_RECORDS // 2:
            yield data, base, end, blocks.max_timestamps_ms[number], blocks.times_ms[number]
            continue
        records = blocks_.decode(data, base)
        time_ms = blocks.times_ms[number]
        gathered += records if stay is None else [records[at] for at in stay]
        gathered_bytes += len(data)
    if gathered:
        yield _gathered(gathered, time_ms)


def _gathered(records: list[InputRecord], time_ms: int) -> tuple[bytes, int, int, int, int]:
    data, max_timestamp_ms = blocks_.encode_records(records)
    return data, records[0].offset, records[-1].offset + 1, max_timestamp_ms, time_ms
