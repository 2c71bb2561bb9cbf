"""The places of the partitions in a worker."""

from __future__ import annotations

from tailrace.core.engine.task import CommitBatch
from tailrace.runtime.alerts import PartitionAlerts
from tailrace.runtime.lifecycle import State
from tailrace.runtime.partition import Partition

FEWEST = 256
"""Records asked for when nothing is known of how long they take."""


class Slot:
    """The place of one partition in a worker."""

    __slots__ = ("alerts", "committed", "number", "partition", "records", "retry_at_s", "retry_ms")

    def __init__(self, number: int) -> None:
        self.number = number
        self.partition: Partition | None = None
        self.records = FEWEST
        """To ask for in the next slice."""
        self.retry_at_s = 0.0
        self.retry_ms = 0
        """After which it is tried again, when the last time has failed."""
        self.committed = False
        """During the present slice, whose time then says nothing of its records."""
        self.alerts: PartitionAlerts | None = None

    @property
    def running(self) -> Partition | None:
        """The partition, if it is at work."""
        partition = self.partition
        return partition if partition is not None and partition.state is State.RUNNING else None

    def on_committed(self, _batch: CommitBatch, /) -> None:
        """A commit is durable."""
        self.committed = True
