"""One partition of the in-memory log: what is committed, what is undecided, and how it is decided; the reader of several; the owners of tasks."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from tailrace.core.errors import FencedError, OffsetGoneError, TaskOwnedError
from tailrace.core.records import InputRecord
from tailrace.log.interface import Fetch, Publication, TopicPartition
from tailrace.log.plain_log import PlainLog
from tailrace.log.publications import Heard
from tailrace.log.tasks import AppTasks, ClaimedTasks, OnAssigned, OnRevoked, Owner, nothing

if TYPE_CHECKING:
    from tailrace.testing.memory_log import MemoryLog

_offset = attrgetter("offset")


class Transaction:
    """Open, or ended and then kept or not."""

    __slots__ = ("ended", "kept", "written")

    def __init__(self) -> None:
        self.ended = False
        self.kept = False
        self.written: dict[Partition, int] = {}
        """The offset after its last record, per partition it wrote."""


class _Chunk(NamedTuple):
    transaction: Transaction | None
    records: list[InputRecord]


class Partition:
    """The records below the last stable offset, and the chunks from there on."""

    __slots__ = ("end", "place", "records", "start", "undecided")

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.records: list[InputRecord] = []
        self.undecided: deque[_Chunk] = deque()
        self.start = 0
        self.end = 0

    @property
    def last_stable(self) -> int:
        """Where the first open transaction begins, or the end."""
        return self.undecided[0].records[0].offset if self.undecided else self.end

    def take_over(self, before: Partition, is_kept: Callable[[InputRecord], bool] | None) -> None:
        """Hold the records of another, at the same offsets: all or those kept, no open transactions."""
        found = before.records.copy()
        for transaction, records in before.undecided:
            if transaction is None or (transaction.ended and transaction.kept):
                found += records
        self.records = found if is_kept is None else list(filter(is_kept, found))
        self.start, self.end = before.start, before.end

    def append(self, records: list[InputRecord], transaction: Transaction | None) -> None:
        """Add records whose offsets follow ``end``; ``transaction`` None is a producer that uses none."""
        if not records:
            return
        self.end = records[-1].offset + 1
        if transaction is not None:
            transaction.written[self] = self.end
        elif not self.undecided:
            self.records += records
            return
        self.undecided.append(_Chunk(transaction, records))

    def settle(self) -> None:
        """Move over what no open transaction hides any more."""
        while self.undecided:
            transaction, records = self.undecided[0]
            if transaction is not None and not transaction.ended:
                return
            self.undecided.popleft()
            if transaction is None or transaction.kept:
                self.records += records


class MemoryReader:
    """A reader of a ``MemoryLog``; see ``tailrace.log.Reader``."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._positions: dict[TopicPartition, int] = {}
        self._passed: dict[TopicPartition, int] = {}
        """How many publications were looked at."""
        self._seen: dict[TopicPartition, dict[str, int | None]] = {}

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        self._log.on_operation("fetch")
        found = self._log.at(topic, partition)
        position = self._positions[found.place]
        if not found.start <= position <= found.end:
            raise OffsetGoneError(
                f"the log holds offsets {found.start} to {found.end}, the reader stands at {position}",
                topic=topic,
                partition=partition,
                offset=position,
                hint="What lies between was deleted before it was read, or the log has lost its end.",
            )
        first = bisect_left(found.records, position, key=_offset)
        records = found.records[first : first + max_records]
        unread = first + len(records) < len(found.records)
        # While an open transaction was being read up to, a reader may stand past it: never move it back.
        position = records[-1].offset + 1 if unread and records else max(position, found.last_stable)
        self._positions[found.place] = position
        return Fetch(records, position, unread, not unread and position == found.end)

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        place = self._log.at(topic, partition).place
        self._positions[place] = offset
        self._passed[place], self._seen[place] = 0, {}

    def forget(self, topic: str, partition: int, /) -> None:
        self._positions.pop(TopicPartition(topic, partition), None)

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        place = TopicPartition(topic, partition)
        everything, position, passed = self._log.published(topic), self._positions[place], self._passed[place]
        found = Heard()
        while passed < len(everything) and everything[passed][1][partition] <= position:
            one = everything[passed][0]
            found.add(one.name, one.watermark_ms)
            passed += 1
        self._passed[place] = passed
        return found.news(self._seen[place])

    def wait(self, timeout_s: float, /) -> bool:
        """See ``Reader.wait``; looks again every few milliseconds, for a log fed by another thread."""
        deadline = time.monotonic() + timeout_s
        while not (ready := any(map(self._is_ready, self._positions))) and time.monotonic() < deadline:
            time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))
        return ready

    def close(self) -> None:
        self._positions.clear()

    def _is_ready(self, place: TopicPartition) -> bool:
        records = self._log.at(*place).records
        return bool(records) and records[-1].offset >= self._positions[place]


class MemoryTasks(ClaimedTasks):
    """Tasks of a ``MemoryLog``. ``owners`` has the owner of each task, by app and number."""

    def __init__(
        self, tasks: AppTasks, on_assigned: OnAssigned, owners: dict[tuple[str, int], MemoryTasks]
    ) -> None:
        super().__init__(tasks, on_assigned)
        self._owners = owners
        for number in self.owned:
            if (self.app, number) in owners:
                raise TaskOwnedError(f"the task {self.app}/{number} is owned already", hint="Close it first.")
        owners.update(((self.app, number), self) for number in self.owned)

    def check(self) -> None:
        """See ``Tasks.check``. Raises FencedError after ``MemoryLog.crash``."""
        for number in self.owned:
            if self._owners.get((self.app, number)) is not self:
                raise FencedError(f"the task {self.app}/{number} was taken over", hint="Nothing is lost.")

    def close(self) -> None:
        for number in self.owned:
            if self._owners.get((self.app, number)) is self:
                del self._owners[self.app, number]


class MemoryOwners(PlainLog):
    """The part of ``MemoryLog`` that knows the owners of tasks."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, int], MemoryTasks] = {}
        """By app and task."""

    def join(
        self, tasks: AppTasks, on_assigned: OnAssigned = nothing, _on_revoked: OnRevoked = nothing, /
    ) -> MemoryTasks:
        """Own the tasks at once. See ``TaskLog.join``."""
        return MemoryTasks(tasks, on_assigned, self.owners)

    def owner(self, app: str, number: int, /) -> Owner | None:
        """See ``TaskLog.owner``: this process, if a task has an owner."""
        return Owner(os.getpid(), stopped=False) if (app, number) in self.owners else None
