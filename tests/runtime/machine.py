"""Workers over a log in memory, in this process: what outlives them, and what they report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import CommitBatch
from tailrace.core.rows import CUT_ROW
from tailrace.log.interface import Reader
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.progress import last_phase
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.testing.memory_log import MemoryLog, Operation
from tests.runtime.served import make_app
from tests.runtime.world import CountingStore

KEYS, ROUNDS = 20, 5
QUICK = WorkerSettings(retry_ms=1, retry_most_ms=20, partition=PartitionSettings(commit_interval_ms=20))


class Machine:
    """What outlives a worker: the log and the state of each partition."""

    def __init__(self, plan: Plan | None = None) -> None:
        self.plan = plan or make_app().plan()
        self.strike: Callable[[str], None] = lambda operation: None
        self.log = MemoryLog(on_operation=self.operation)
        self.stores = [CountingStore(self.operation) for _ in range(self.plan.partitions)]
        prepare_log(self.log, self.plan, create_declared=True)

    def operation(self, name: Operation | str) -> None:
        self.strike(name)

    def fail(self, at: str, error: Exception, *, times: int = 1, after: int = 0) -> None:
        """Raise at the operations of a name, ``times`` in all, once ``after`` of them have passed."""
        seen = 0

        def strike(name: str) -> None:
            nonlocal seen
            if name == at:
                seen += 1
                if after < seen <= after + times:
                    raise error

        self.strike = strike

    def worker(
        self,
        *numbers: int,
        plan: Plan | None = None,
        settings: WorkerSettings = QUICK,
        hooks: WorkerHooks | None = None,
        reader: Reader | None = None,
        **more: Any,
    ) -> Worker:
        return Worker(
            plan or self.plan, self.log, numbers or range(self.plan.partitions),
            lambda number: self.stores[number],
            settings=replace(settings, **more), hooks=hooks, reader=reader,
        )  # fmt: skip


class Reports:
    """The cuts of the commits that a worker reports, by task."""

    def __init__(self) -> None:
        self.cuts: dict[int, list[bytes]] = {}

    def committed(self, number: int, batch: CommitBatch) -> None:
        self.cuts.setdefault(number, []).append(batch.cut)


def cuts(log: MemoryLog, number: int) -> list[bytes | None]:
    """The cuts of the durable commits of a task."""
    return [one.value for one in log.read("tally.changelog", number) if one.key == CUT_ROW]


def until(worker: Worker, condition: Callable[[], bool]) -> None:
    """Turn until a condition holds."""
    for _ in range(1_000):
        if condition():
            return
        worker.turn()
    raise AssertionError("it never holds")


def run_to_the_end(*workers: Worker) -> None:
    """Turn them until all are through all phases, as one who may wait for all of them."""
    for one in workers:
        one.start()
    deadline = time.monotonic() + 20
    while True:
        assert time.monotonic() < deadline, [one.status() for one in workers]
        worked = [one.turn() for one in workers]
        if any(worked) or not all(one.quiet for one in workers):
            continue
        if workers[0].phase == last_phase(workers[0].plan):
            break
        for one in workers:
            one.advance()
    for one in workers:
        one.leave()
