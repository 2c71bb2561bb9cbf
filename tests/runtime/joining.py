"""An app with sources of every kind, for what is said of them: a join of its own events with what another app publishes."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.log.interface import Log
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.testing import MemoryLog

IDLE_MS = 600_000


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


class Told(msgspec.Struct, frozen=True):
    at: int


def joining_app(partitions: int = 1) -> tr.App:
    """``Join`` takes ``left``, ``right`` and what another app writes to ``bills``; ``Later`` what ``Join`` emits and sends."""
    app = tr.App("joining", partitions=partitions)
    left = app.topic("left", Step, key="key", event_time="at", idle_after=IDLE_MS)
    right = app.topic("right", Step, key="key", event_time="at", idle_after=IDLE_MS)
    bills = app.topic("bills", Step, key="key", event_time="at", watermark="upstream")
    joined = app.topic("joined", Step, key="key", event_time="at")

    @app.actor
    class Join(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(left, right, bills)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            self.seen += 1
            ctx.emit(joined, event)
            ctx.send(Later, event.key, Told(event.at))
            ctx.set_timer(event.at + 1_000_000, "later")

        @tr.on_timer("later")
        def later(self, ctx: tr.Context[str]) -> None: ...

    @app.actor
    class Later(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(joined)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            self.seen += 1

        @tr.on_message
        def told(self, message: Told, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app


def billing_app(partitions: int = 1) -> tr.App:
    """It writes ``bills``."""
    app = tr.App("billing", partitions=partitions)
    orders = app.topic("orders", Step, key="key", event_time="at")
    bills = app.topic("bills", Step, key="key", event_time="at")

    @app.process(orders)
    def bill(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(bills, event)

    return app


class Service:
    """A worker with all tasks of an app, over a log, and a clock that stands still."""

    def __init__(self, app: tr.App, log: Log | None = None) -> None:
        self.plan: Plan = app.plan()
        self.log = log or MemoryLog(markers=False)
        self.now_ms = 10_000_000
        prepare_log(self.log, self.plan, create_declared=True)
        self.stores = [MemoryStore() for _ in range(self.plan.partitions)]
        self.worker = Worker(
            self.plan,
            self.log,
            range(self.plan.partitions),
            self.stores.__getitem__,
            settings=WorkerSettings(partition=PartitionSettings(commit_interval_ms=0)),
            clock=lambda: self.now_ms,
        )
        self.worker.start()

    def feed(self, topic: str, *times: int, key: str = "a", partition: int | None = None) -> None:
        writer = self.log.writer("outside")
        events = [Output(topic, key.encode(), msgspec.json.encode(Step(key, at)), at) for at in times]
        writer.append(events, partition)
        writer.commit()

    def settle(self) -> None:
        while self.worker.turn():
            pass

    def run(self, topic: str, *times: int, after_ms: int = 0) -> None:
        """Take events, a while later."""
        self.now_ms += after_ms
        self.feed(topic, *times)
        self.settle()
