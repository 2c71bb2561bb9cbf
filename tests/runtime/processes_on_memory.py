"""Processes on the log in memory that share a transaction among their tasks, as processes on Kafka do.

``MemoryProcess`` is the log as one process sees it. Its writers share one producer. Taking a task over fences the producer that the
task was written by before, if it is another process's, or a former one of the same process: all of its tasks lose their uncommitted
work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tailrace.core.errors import CommitUnknownError, FencedError
from tailrace.core.records import CHANNEL, RawOutput
from tailrace.log import Publication, TopicPartition
from tailrace.log.shared_transaction import SharedTransaction, SharedWriter
from tailrace.testing.memory_log import MemoryLog
from tailrace.testing.memory_partition import Transaction


class Notes:
    """By task, the producer that may have an open transaction with records of it."""

    def __init__(self) -> None:
        self.of: dict[str, MemoryProducer] = {}


class MemoryProducer:
    """A producer of a process."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._open: Transaction | None = None
        self._why: type[Exception] | None = None

    @property
    def ended(self) -> bool:
        return self._why is not None

    def append(self, outputs: Iterable[RawOutput], partition: int | None, /) -> bool:
        self._enter("append")
        outputs = list(outputs)
        if outputs:
            self._open = self._open or Transaction()
            self._log.add(outputs, partition, self._open)
        return bool(outputs)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        group: str,
        watermarks: Mapping[str, Mapping[str, int | None]],
        /,
    ) -> Mapping[TopicPartition, int]:
        try:
            self._enter("commit")
            written = {} if self._open is None else self._open.written
            ends = {partition.place: end for partition, end in written.items()}
            of_all: dict[str, dict[str, Publication]] = {
                by: {name: Publication(by, at, name.partition(CHANNEL)[2]) for name, at in marks.items()}
                for by, marks in watermarks.items()
            }
            first, *others = [*of_all.values()] or [{}]
            transaction, self._open = self._open or Transaction(), None
            self._log.end_transaction(
                transaction,
                keep=True,
                offsets={(group, place): at for place, at in offsets.items()},
                watermarks=first,
            )
            for marks in others:
                for name, one in marks.items():
                    topic = name.partition(CHANNEL)[0]
                    positions = [self._log.at(topic, n).end for n in range(self._log.partitions(topic))]
                    self._log.publish(topic, one, positions)
            self._log.on_operation("committed")
        except CommitUnknownError:
            self._why = CommitUnknownError
            raise
        return ends

    def abort(self) -> None:
        self._enter("abort")
        self._drop()

    def close(self) -> None:
        """In doubt it is left as it is: only a take-over settles what became of it."""
        if self._why is None:
            self._log.on_operation("close-writer")
            self._why = FencedError
            self._drop()

    def fence(self) -> None:
        """Another takes its id over."""
        self._why = FencedError
        self._drop()

    def _drop(self) -> None:
        transaction, self._open = self._open or Transaction(), None
        self._log.end_transaction(transaction, keep=False, offsets={}, watermarks={})

    def _enter(self, operation: Any) -> None:
        self._log.on_operation(operation)
        if self._why is not None:
            raise self._why("the producer was fenced, closed, or is in doubt")


class MemoryProcess:
    """The log as one process sees it."""

    def __init__(self, log: MemoryLog, notes: Notes) -> None:
        self._log = log
        self._notes = notes
        self.transaction: SharedTransaction | None = None
        self._producer: MemoryProducer | None = None
        self.take_overs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def writer(self, transactional_id: str, /) -> SharedWriter:
        self._log.on_operation("take-over")
        self.take_overs += 1
        if self.transaction is None or self._producer is None or self.transaction.ended:
            self._producer = MemoryProducer(self._log)
            self.transaction = SharedTransaction(self._producer)
        before = self._notes.of.get(transactional_id)
        if before is not None and before is not self._producer:
            before.fence()
        self._notes.of[transactional_id] = self._producer
        return self.transaction.writer(transactional_id, lambda _settled: None)
