"""Writes records of another log into the embedded log, at the offsets that they have there.

Offsets without a record become what compaction leaves: a gap inside of a block, or before or after its records.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from tailrace.core.errors import UsageError
from tailrace.core.records import InputRecord
from tailrace.log.embedded.appending import Appender
from tailrace.log.embedded.blocks import MOST_BYTES, MOST_RECORDS, encode_records
from tailrace.log.embedded.database import PARTITIONS
from tailrace.log.embedded.rows import Bounds, Changes
from tailrace.log.interface import PublishedAt, Stretch, TopicPartition


class EmbeddedPlacer:
    """A placer of an ``EmbeddedLog``. Each call is one commit."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender

    def begin_at(self, place: TopicPartition, offset: int, /) -> None:
        with self._appender.turn("copying records of another log") as changes:
            number = changes.place(*place)
            bounds = changes.bounds(number)
            if bounds.start < bounds.end or bounds.end > offset:
                raise _not_at(place, bounds.end, offset)
            changes.put(PARTITIONS, (number,), Bounds(start=offset, end=offset))

    def append(self, stretches: Sequence[Stretch], /) -> None:
        with self._appender.turn("copying records of another log") as changes:
            for place, records, end in stretches:
                _append(changes, place, records, end)

    def publish(self, topic: str, publications: Sequence[PublishedAt], /) -> None:
        """See ``Placer.publish``.

        Here a publication holds where all of its topic's partitions ended at that moment, on Kafka where its publisher's records
        ended. So the ends are raised to those of the publications before: it never holds too soon.
        """
        with self._appender.turn("copying watermarks of another log") as changes:
            number, last = changes.topic(topic).first_place, changes.ends(topic)
            before = changes.published_before(number, 1 << 62)
            reached = [0] * len(last) if before is None else list(before.ends)
            for one in publications:
                reached = [
                    max(low, min(end, high)) for low, end, high in zip(reached, one.ends, last, strict=True)
                ]
                changes.publish(number, one.name, one.watermark_ms, reached)

    def close(self) -> None:
        """See ``Placer.close``."""


def _append(changes: Changes, place: TopicPartition, records: Sequence[InputRecord], stop: int) -> None:
    number = changes.place(*place)
    end = changes.bounds(number).end
    if end > (records[0].offset if records else stop):
        raise _not_at(place, end, records[0].offset if records else stop)
    for some in _blocks(records):
        data, max_ms = encode_records(some)
        base, last, checksum = some[0].offset, some[-1].offset, zlib.crc32(data)
        end = changes.append(
            number, data, base=base, last=last, end=last + 1, max_ms=max_ms, checksum=checksum
        )
    if end < stop:
        changes.append(number, b"", base=end, last=end - 1, end=stop, max_ms=Bounds().highest_ms, checksum=0)


def _blocks(records: Sequence[InputRecord]) -> Iterator[Sequence[InputRecord]]:
    """The records, in parts that fit a block."""
    first = size = 0
    for at, record in enumerate(records):
        length = len(record.key or b"") + len(record.value or b"")
        if at > first and (at - first == MOST_RECORDS or size + length > MOST_BYTES):
            yield records[first:at]
            first, size = at, 0
        size += length
    if first < len(records):
        yield records[first:]


def _not_at(place: TopicPartition, end: int, offset: int) -> UsageError:
    return UsageError(
        f"{place.topic!r} partition {place.partition} ends at {end}, and records from offset {offset} on cannot be placed there",
        hint="Copy into a partition that ends before them.",
    )
