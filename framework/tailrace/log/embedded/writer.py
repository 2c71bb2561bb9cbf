"""A transaction of the embedded log: collected in memory, encoded as it grows, and appended as one frame.

No part of an open transaction is in the log. So it never hides the commits of others, an abort leaves no gap, and a writer that
dies leaves nothing to clean up.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tailrace.core.errors import CommitUnknownError, FencedError
from tailrace.core.records import CHANNEL, Output
from tailrace.log.embedded.appending import Appender, now_ms
from tailrace.log.embedded.blocks import MOST_RECORDS, encode_outputs
from tailrace.log.embedded.catalog import Catalog
from tailrace.log.embedded.frames import BlockPlace, Meta, Published
from tailrace.log.embedded.routing import Router
from tailrace.log.interface import TopicPartition


class _Encoded(NamedTuple):
    data: bytes
    records: int
    checksum: int
    max_timestamp_ms: int


class Batch:
    """Records for one frame. The slow work is done before the lock is taken."""

    def __init__(self) -> None:
        self._plain: dict[TopicPartition, list[Output]] = {}
        self._encoded: dict[TopicPartition, list[_Encoded]] = {}

    def add(self, outputs: Mapping[TopicPartition, list[Output]]) -> None:
        """Add records."""
        for place, some in outputs.items():
            before = self._plain.get(place)
            if before is None:
                before = self._plain[place] = some
            else:
                before += some
            if len(before) >= MOST_RECORDS:
                self._encode(place, self._plain.pop(place))

    def encoded(self) -> Mapping[TopicPartition, Sequence[_Encoded]]:
        """The blocks of each partition."""
        while self._plain:
            place = next(iter(self._plain))
            self._encode(place, self._plain.pop(place))
        return self._encoded

    def clear(self) -> None:
        """Drop everything."""
        self._plain, self._encoded = {}, {}

    def _encode(self, place: TopicPartition, outputs: list[Output]) -> None:
        blocks = self._encoded.setdefault(place, [])
        for data, records, max_timestamp_ms in encode_outputs(outputs):
            blocks.append(_Encoded(data, records, zlib.crc32(data), max_timestamp_ms))


def commit_batch(
    appender: Appender,
    batch: Batch,
    catalog: Catalog,
    *,
    offsets: Mapping[TopicPartition, int],
    group: str,
    watermarks: Mapping[str, int | None],
    publisher: str,
) -> dict[TopicPartition, int]:
    """Append a batch as one frame, in a turn of the appender. Returns the new end of each partition written."""
    at_ms = now_ms()
    places: list[BlockPlace] = []
    buffers: list[bytes] = []
    ends: dict[TopicPartition, int] = {}
    position = 0
    for place, blocks in batch.encoded().items():
        base = catalog.ends[place.topic][place.partition]
        for data, records, checksum, max_timestamp_ms in blocks:
            end = base + records
            places.append(
                BlockPlace(*place, base, end, position, len(data), checksum, max_timestamp_ms, at_ms)
            )
            buffers.append(data)
            position += len(data)
            base = end
        ends[place] = base
    published: list[Published] = []
    for name, watermark_ms in watermarks.items():
        topic, mark, channel = name.partition(CHANNEL)
        catalog.settings(topic)
        reached = [
            ends.get(TopicPartition(topic, number), end) for number, end in enumerate(catalog.ends[topic])
        ]
        published.append(Published(topic, f"{publisher}{mark}{channel}", watermark_ms, reached))
    if places or offsets or published:
        meta = Meta(
            at_ms,
            blocks=places,
            group=group,
            offsets=[(topic, partition, at) for (topic, partition), at in offsets.items()],
            published=published,
        )
        appender.write(meta, buffers)
    return ends


class EmbeddedWriter:
    """A writer of an ``EmbeddedLog``; see ``tailrace.log.Writer``. It holds the open transaction in memory."""

    def __init__(self, appender: Appender, router: Router, transactional_id: str, epoch: int) -> None:
        self.transactional_id = transactional_id
        self.epoch = epoch
        self._appender = appender
        self._view = appender.view
        self._router = router
        self._batch = Batch()
        self._in_doubt = False

    def append(self, outputs: Iterable[Output], /, partition: int | None = None) -> None:
        """See ``Writer.append``."""
        self._enter()
        self._batch.add(self._router.split(outputs, partition))

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        """See ``Writer.commit``."""
        self._enter()
        self._batch.encoded()
        try:
            with self._appender.turn() as view:
                self._require_holder()
                ends = commit_batch(
                    self._appender,
                    self._batch,
                    view.catalog,
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
        """See ``Writer.abort``."""
        self._enter()
        self._batch.clear()

    def close(self) -> None:
        """See ``Writer.close``."""
        self._batch.clear()

    def _enter(self) -> None:
        self._view.refresh()
        self._require_holder()
        if self._in_doubt:
            raise CommitUnknownError(
                f"the last commit of {self.transactional_id!r} has an unknown outcome",
                hint="Take the transactional id over again and read what is there.",
            )

    def _require_holder(self) -> None:
        if self._view.catalog.epochs.get(self.transactional_id) != self.epoch:
            raise FencedError(
                f"the transactional id {self.transactional_id!r} was taken over by another",
                hint="Stop this task; its new owner continues from the last commit.",
            )
