"""Structured streaming: a topic, or the changes of a state, in batches of Spark.

An offset of a stream is a map of partition to offset of the log, with the id of the topic. Spark writes the offset of a batch
to the checkpoint before it runs the batch::

    where the query stops                        after a restart from the checkpoint
    before the offset of a batch is written      the next offset is asked for: nothing was read
    after it, before the batch is committed      the same offsets are read again, and the batch has the same number
    after the batch is committed                 the next batch begins where this one ended

So a batch is read through the same cut as a table: whole, or not at all. What the log no longer has, and a topic that was
deleted and created again, are errors.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tailrace.core.errors import OffsetGoneError, TopicReplacedError
from tailrace.log.interface import OneCommitLog
from tailrace.spark.options import Options
from tailrace.spark.reporting import reported
from tailrace.spark.topics import TopicReader, TopicTable

_HINT = (
    "The stream cannot continue from its checkpoint without a gap. If an archive has the records, name it (option archive). "
    "Otherwise begin again with a new checkpoint."
)
Offset = dict[str, Any]
"""``topicId``, and ``offsets`` by partition: the next one to read. What Spark writes to the checkpoint, as JSON."""


@dataclass(frozen=True)
class Part(ds.InputPartition):
    """What one task of Spark reads of a batch, and how."""

    reader: TopicReader
    slice: ds.InputPartition


class TopicStream(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes to a topic; see the head of this file."""

    def __init__(self, options: Options, table: TopicTable) -> None:
        options.refuse("endingOffsets", "endingTime", because="a stream has no end")
        self._options, self._table = options, table
        self._most = options.count("recordsPerBatch", 0)
        self._last: Mapping[str, int] | None = None
        """With a trigger of what is available: where the query ends."""

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins."""
        with self._opened(self._table) as log:
            spans = self._table.spans(log, self._ends(self._table, log))
            return self._offset(log, [one.start for one in spans])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """``recordsPerBatch``."""
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """The query ends at what is there now."""
        self._last = self._there_now()["offsets"]

    def reportLatestOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """For the progress of the query."""
        return self._there_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """The end of the next batch: as of one commit, unless ``recordsPerBatch`` ends it before."""
        table = self._at(start)
        with self._opened(table) as log:
            spans = table.spans(log, self._ends(table, log))
            starts = [one.start for one in spans]
            stops = [one.stop for one in spans]
            if self._last is not None:
                stops = [
                    max(begin, min(stop, self._last.get(str(number), 0)))
                    for number, (begin, stop) in enumerate(zip(starts, stops, strict=True))
                ]
            if isinstance(limit, ReadMaxRows):
                stops = _shared_out(starts, stops, limit.max_rows)
            return self._offset(log, stops)

    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """The tasks of a batch."""
        table = self._at(start, end)
        with reported(), _as_stream():
            reader = table.reader()
            return [Part(reader, one) for one in reader.partitions()]

    def read(self, partition: ds.InputPartition) -> Iterator[Any]:
        """The record batches of a task."""
        if isinstance(partition, Part):
            with reported(), _as_stream():
                yield from partition.reader.read(partition.slice)

    def _at(self, start: Offset, end: Offset | None = None) -> TopicTable:
        cut = {"startingOffsets": msgspec.json.encode(start["offsets"]).decode()}
        if start["topicId"]:
            cut["topicId"] = start["topicId"]
        if end is not None:
            cut["endingOffsets"] = msgspec.json.encode(end["offsets"]).decode()
        return type(self._table)(self._options.at(cut), self._table.open_log)

    def _ends(self, table: TopicTable, log: OneCommitLog) -> Sequence[int]:
        return log.ends([table.topic]).offsets[table.topic]

    def _there_now(self) -> Offset:
        with self._opened(self._table) as log:
            return self._offset(
                log, [one.stop for one in self._table.spans(log, self._ends(self._table, log))]
            )

    def _offset(self, log: OneCommitLog, offsets: Sequence[int]) -> Offset:
        return {
            "topicId": self._table.check_topic(log),
            "offsets": {str(number): offset for number, offset in enumerate(offsets)},
        }

    @contextmanager
    def _opened(self, table: TopicTable) -> Generator[OneCommitLog]:
        with reported(), _as_stream():
            log = table.open_log()
            try:
                table.check_topic(log)
                yield log
            finally:
                log.close()


@contextmanager
def _as_stream() -> Generator[None]:
    """Errors of a table, with what to do about them in a stream."""
    try:
        yield
    except (OffsetGoneError, TopicReplacedError) as error:
        error.hint = _HINT
        raise


def _shared_out(starts: Sequence[int], stops: Sequence[int], most: int) -> list[int]:
    """Ends of a batch of at most so many offsets: each partition gets as many, and what one does not need goes to the others."""
    found, left = list(starts), most
    fewest_first = sorted(range(len(starts)), key=lambda one: stops[one] - starts[one])
    for at, number in enumerate(fewest_first):
        taken = min(stops[number] - starts[number], -(-left // (len(starts) - at)))
        found[number] += taken
        left -= taken
    return found
