"""The places of the partitions in a worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace

from tailrace.core.engine.task import CommitBatch
from tailrace.core.errors import LogUnavailableError, UnmeasuredStateError
from tailrace.core.storage import Store
from tailrace.log.interface import Log, TopicPartition
from tailrace.runtime.alerts import PartitionAlerts
from tailrace.runtime.inputs import WatchedReader
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings

FEWEST = 256
"""Records asked for when nothing is known of how long they take."""


class Slot:
    """The place of one partition in a worker."""

    def __init__(self, number: int, on_commit: Callable[[int, CommitBatch], None] | None = None) -> None:
        self.number = number
        self.on_commit = on_commit
        """Called with each durable commit."""
        self.partition: Partition | None = None
        self.records = FEWEST
        """To ask for in the next slice."""
        self.retry_at_s = 0.0
        self.retry_ms = 0
        """After which it is tried again, when the last time has failed."""
        self.store: Store | None = None
        """The store of a partition that was opened and has not run yet."""
        self.alerts: PartitionAlerts | None = None
        self.measures = False
        """Whether each event's state is measured, as a commit had a row that was too large."""
        self.in_doubt: CommitBatch | None = None
        """The last commit of a partition that has failed before it knew whether that took effect."""

    def settings(self, settings: PartitionSettings) -> PartitionSettings:
        """The settings of its next partition."""
        return replace(settings, task=replace(settings.task, reload=True)) if self.measures else settings

    def drop(self, partition: Partition) -> None:
        """Forget a partition that has ended, but for what the next one must know."""
        self.partition, self.in_doubt = None, partition.in_doubt
        self.measures = self.measures or isinstance(partition.error, UnmeasuredStateError)

    def measure(self, taken: int, took_ms: float, slice_ms: int, most: int) -> None:
        """How many records to ask for next. It grows step by step, since the next may take longer than the last."""
        fitting = int(taken * slice_ms / max(took_ms, 0.001))
        self.records = max(1, min(most, fitting, max(FEWEST, 2 * taken)))

    @property
    def running(self) -> Partition | None:
        """The partition, if it is at work."""
        partition = self.partition
        return partition if partition is not None and partition.state is State.RUNNING else None

    def is_at_end(self, reader: WatchedReader) -> bool:
        """Whether it has nothing to read and nothing to commit."""
        partition = self.running
        # One that is to be tried again does not know what there is to read by now.
        if partition is None or partition.dirty or self.retry_ms:
            return False
        inputs = partition.plan.inputs
        return all(reader.idle.get(TopicPartition(one.name, self.number), False) for one in inputs)

    def lag(self, log: Log, reader: WatchedReader, *, whole: bool = False) -> int:
        """The number of offsets to read, of the inputs whose ends the log gives; the partition is at work.
        Raises LogUnavailableError with ``whole``: it does not give all.
        """
        assert self.running is not None
        lag = 0
        for name, position in self.running.task.positions.items():
            place = TopicPartition(name, self.number)
            with nullcontext() if whole else suppress(LogUnavailableError):
                lag += max(0, log.end_offset(*place) - max(position, reader.past_gaps.get(place, 0)))
        return lag

    def on_committed(self, batch: CommitBatch, /) -> None:
        """A commit is durable."""
        if self.on_commit is not None:
            self.on_commit(self.number, batch)


def records_taken(partition: Partition) -> int:
    """The number of records that a running partition has taken, those that it refused or that are for others included."""
    totals = partition.task.totals
    return totals.records + totals.refused
