"""Bounded runs of an app by workers in this process that take turns, and die if a test says so; what they leave is replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions
from tailrace.log import Log, TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import OneCommitLog
from tailrace.log.kafka import KafkaLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state.store_cut import decode_store_cut
from tailrace.testing import MemoryLog
from tests.runtime.world import CountingStore, Kill

T = TypeVar("T")


class BoundedRun:
    """What outlives the workers, which are the log and the stores, and the workers that take turns on it.

    Without a log, or a folder for one, the log is in memory. ``strike`` is called with each operation on such a log and on the
    stores, and may raise ``Kill``.
    """

    def __init__(
        self, app: tr.App, place: Path | KafkaLog | None = None, settings: WorkerSettings | None = None
    ) -> None:
        self.plan = app.plan()
        self.strike: Callable[[str], None] = lambda operation: None
        self.log: MemoryLog | EmbeddedLog | KafkaLog = (
            place
            if isinstance(place, KafkaLog)
            else MemoryLog(on_operation=self.operation)
            if place is None
            else EmbeddedLog(place)
        )
        self.settings = settings or WorkerSettings()
        self.stores = [self.new_store() for _ in range(self.plan.partitions)]
        self.phase = self.deaths = 0
        prepare_log(self.log, self.plan, create_declared=True)

    def operation(self, name: str) -> None:
        self.strike(name)

    def new_store(self) -> CountingStore:
        return CountingStore(self.operation)

    def started(self, numbers: Sequence[int]) -> Worker:
        """A worker at work; as often as it dies at its start there is another one."""
        while True:
            # As services do on Kafka: any other reader waits for an open transaction, which here is one of the next worker.
            reader = self.log.reader({}, live=True) if isinstance(self.log, KafkaLog) else None
            worker = Worker(
                self.plan,
                self.log,
                numbers,
                self.stores.__getitem__,
                settings=replace(self.settings, bounded=True),
                reader=reader,
            )
            worker.phase = self.phase
            try:
                worker.start()
            except Kill:
                self.bury(numbers)
            else:
                return worker

    def bury(self, numbers: Sequence[int]) -> None:
        """A worker is gone without a word. Every other time the next one finds an empty disk."""
        self.deaths += 1
        if self.deaths % 2:
            for number in numbers:
                self.stores[number] = self.new_store()

    def run(self, processes: int = 1) -> None:
        """Until all partitions are through all phases."""
        shares = [range(self.plan.partitions)[at::processes] for at in range(processes)]
        workers = [self.started(share) for share in shares]

        def each(do: Callable[[Worker], object]) -> list[object]:
            results: list[object] = []
            for at, share in enumerate(shares):
                try:
                    results.append(do(workers[at]))
                except Kill:
                    self.bury(share)
                    workers[at] = self.started(share)
                    results.append(True)
            return results

        deadline = time.monotonic() + 120
        while True:
            assert time.monotonic() < deadline, [one.status() for one in workers]
            if any(each(Worker.turn)) or not all(one.quiet for one in workers):
                continue
            if self.phase == last_phase(self.plan):
                break
            self.phase += 1
            each(Worker.advance)
        self.strike = lambda operation: None
        each(Worker.leave)

    def check(self) -> None:
        """Nothing was late, and a replay finds no difference."""
        check_history(self.log, self.plan, self.live)

    def live(self, number: int) -> list[LiveState]:
        """The store of a task, to compare a replay with."""
        store = self.stores[number]
        return [LiveState("the store", store, decode_store_cut(store.cut or b"").core, indexed=True)]


def check_history(
    log: OneCommitLog, plan: Plan, live: Callable[[int], list[LiveState]] | None = None
) -> None:
    """Nothing was late, and a replay finds no difference."""
    cuts = [AppHistory(plan, log).committed(number).cut for number in range(plan.partitions)]
    assert [tape.decode_cut(cut or b"").totals.late for cut in cuts] == [0] * plan.partitions
    # A service as a process knows its time zones' version, a worker in a test does not.
    report = replay(plan, log, ReplayOptions(compare=True, any_environment=True), live=live)
    assert list(report.differences.shown) == []
    assert report.outputs > 0


def read_all(log: Log, topic: str, kind: type[T]) -> list[T]:
    """All events of a topic, partition after partition."""
    found: list[T] = []
    for number in range(log.partitions(topic)):
        reader = log.reader({TopicPartition(topic, number): 0})
        while batch := reader.fetch(topic, number, 10_000).records:
            found += [msgspec.json.decode(one.value or b"", type=kind) for one in batch]
        reader.close()
    return found
