"""A transaction of the embedded log: collected in memory, encoded as it grows, written in one transaction of SQLite.

No part of an open transaction is in the log. So it never hides the commits of others, an abort leaves no gap, and a
writer that dies leaves nothing to clean up.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tailrace.core.errors import CommitUnknownError, FencedError
from tailrace.core.records import CHANNEL, RawOutput
from tailrace.log.embedded.appending import Appender
from tailrace.log.embedded.blocks import MOST_RECORDS, encode_outputs
from tailrace.log.embedded.database import OFFSETS, WRITERS
from tailrace.log.embedded.rows import Changes, Rows
from tailrace.log.interface import TopicPartition
from tailrace.log.routing import Router


class _Encoded(NamedTuple):
    data: bytes
    records: int
    checksum: int
    max_timestamp_ms: int


class Batch:
    """Records for one commit. The slow work is done before the lock is taken."""

    def __init__(self) -> None:
        self._plain: dict[TopicPartition, list[RawOutput]] = {}
        self._encoded: dict[TopicPartition, list[_Encoded]] = {}

    def add(self, outputs: Mapping[TopicPartition, list[RawOutput]]) -> None:
        """Add records."""
        for place, some in outputs.items():
            before = self._plain.get(place)
            if before is None:
                before = self._plain[place] = some
            else:
                before += some
            if len(before) >= MOST_RECORDS:
                self._encode(place)

    def encoded(self) -> Mapping[TopicPartition, Sequence[_Encoded]]:
        """The blocks of each partition."""
        while self._plain:
            self._encode(next(iter(self._plain)))
        return self._encoded

    def clear(self) -> None:
        """Drop everything."""
        self._plain, self._encoded = {}, {}

    def _encode(self, place: TopicPartition) -> None:
        """Encode the waiting records of a partition. If one cannot be encoded, all stay waiting."""
        blocks = [
            _Encoded(data, records, zlib.crc32(data), max_timestamp_ms)
            for data, records, max_timestamp_ms in encode_outputs(self._plain[place])
        ]
        del self._plain[place]
        self._encoded.setdefault(place, []).extend(blocks)


def commit_batch(
    changes: Changes,
    batch: Batch,
    *,
    offsets: Mapping[TopicPartition, int],
    group: str,
    watermarks: Mapping[str, int | None],
    publisher: str,
) -> dict[TopicPartition, int]:
    """Write a batch as rows, in a turn of the appender. Returns the new end of each partition written."""
    ends: dict[TopicPartition, int] = {}
    for at, blocks in batch.encoded().items():
        place = changes.place(*at)
        base = changes.bounds(place).end
        for data, records, checksum, max_ms in blocks:
            end = base + records
            base = changes.append(
                place, data, base=base, last=end - 1, end=end, max_ms=max_ms, checksum=checksum
            )
        ends[at] = base
    for at, offset in offsets.items():
        changes.put(OFFSETS, (group, *at), (offset,))
    for name, watermark_ms in watermarks.items():
        topic, mark, channel = name.partition(CHANNEL)
        changes.publish(
            changes.topic(topic).first_place, f"{publisher}{mark}{channel}", watermark_ms, changes.ends(topic)
        )
    return ends


class EmbeddedWriter:
    """A writer of an ``EmbeddedLog``. It holds the open transaction in memory."""

    shared, lost = None, False

    def __init__(self, appender: Appender, router: Router, transactional_id: str, epoch: int) -> None:
        self.transactional_id = transactional_id
        self.epoch = epoch
        self._appender = appender
        self._view = appender.view
        self._router = router
        self._batch = Batch()
        self._in_doubt = False

    def append(self, outputs: Iterable[RawOutput], /, partition: int | None = None) -> None:
        self._enter()
        self._batch.add(self._router.split(outputs, partition))

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        self._enter()
        self._batch.encoded()
        try:
            with self._appender.turn() as changes:
                self._require_holder(changes)
                ends = commit_batch(
                    changes,
                    self._batch,
                    offsets=offsets or {},
                    group=group,
                    watermarks=watermarks or {},
                    publisher=self.transactional_id,
                )
        except CommitUnknownError:
            self._in_doubt = True
            self._batch.clear()
            raise
        self._batch.clear()
        return ends

    def abort(self) -> None:
        self._enter()
        self._batch.clear()

    def close(self) -> None:
        self._batch.clear()

    def _enter(self) -> None:
        with self._view.moment() as rows:
            self._require_holder(rows)
        if self._in_doubt:
            raise CommitUnknownError(
                f"the last commit of {self.transactional_id!r} has an unknown outcome",
                hint="Take the transactional id over again and read what is there.",
            )

    def _require_holder(self, rows: Rows) -> None:
        if rows.get(WRITERS, self.transactional_id) != (self.epoch,):
            raise FencedError(
                f"the transactional id {self.transactional_id!r} was taken over by another",
                hint="Stop this task; its new owner continues from the last commit.",
            )
