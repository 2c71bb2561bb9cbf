"""An app whose tasks commit after each poll, fire one timer in each, and are followed by a service that says what is late."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import TaskSettings
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.runtime.partition import Partition
from tailrace.runtime.slices import PartitionSettings
from tailrace.state import MemoryStore
from tailrace.testing import MemoryLog


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int
    other: int = 0
    """Another time that a handler makes use of."""


def reader_app(partitions: int) -> tr.App:
    """It follows ``out``, whose events have the times of their records."""
    app = tr.App("reader", partitions=partitions)
    out = app.topic("out", Step, key="key", watermark="upstream")

    @app.actor
    class Reader(tr.Actor):
        seen: int = 0

        @tr.process(out)
        def take(self, event: Step, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app


class Followed:
    """The tasks of an app and of one that follows it, on one log."""

    def __init__(self, app: tr.App, tasks: Iterable[int] | None = None) -> None:
        self.now = 1_000
        self.log = MemoryLog()
        self.plan, self.reader_plan = app.plan(), reader_app(app.plan().partitions).plan()
        count = self.plan.partitions
        for plan in (self.plan, self.reader_plan):
            prepare_topics(self.log, plan, create_declared=True)
        self.tasks = [self._started(number) for number in (range(count) if tasks is None else tasks)]
        self.readers = [
            Partition(self.reader_plan, number, self.log, MemoryStore(), lambda: self.now, lineage=b"")
            for number in range(count)
        ]
        for one in self.readers:
            one.restore()
        self.drained = 0
        """How many commits have fallen into a drain."""

    def _started(self, number: int) -> Partition:
        settings = PartitionSettings(commit_interval_ms=0, after_end=True, task=TaskSettings(firing_budget=1))
        store = MemoryStore()  # what it holds is restored from the log
        found = Partition(
            self.plan, number, self.log, store, lambda: self.now, lineage=b"published", settings=settings
        )
        found.restore()
        return found

    def start(self, number: int) -> None:
        """One more task."""
        self.tasks.append(self._started(number))

    def restart(self) -> None:
        """The first task is killed between two commits, and restored from the log by another process."""
        self.tasks[0].close()
        self.tasks[0] = self._started(0)

    def feed(self, *steps: Step, topic: str = "steps", partition: int | None = None) -> None:
        records = [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for one in steps]
        self.log.append_all(records, partition)

    def turn(self, most: int = 1) -> bool:
        """A slice of each task with a commit, and all that the readers can then do; whether there was anything."""
        moved = False
        for one in self.tasks:
            moved = one.poll(most) or moved
            self.drained += one.task.draining
            for reader in self.readers:
                while reader.poll():
                    pass
        return moved

    def run(self, *steps: Step, most: int = 1, topic: str = "steps") -> None:
        self.feed(*steps, topic=topic)
        while self.turn(most):
            pass

    def run_held(self, *steps: Step, most: int = 1, topic: str = "steps") -> None:
        """The same, while nothing may be behind at any commit."""
        self.feed(*steps, topic=topic)
        while self.turn(most):
            self.check()
        self.check()

    def check(self) -> None:
        assert [dict(one.promises.behind) for one in self.tasks] == [{}] * len(self.tasks)
        assert self.late == 0

    @property
    def late(self) -> int:
        return sum(one.task.totals.late for one in self.readers)

    @property
    def behind(self) -> dict[tuple[str, str], int]:
        return {(what.topic, what.handler): n for what, n in self.tasks[0].promises.behind.items()}

    @property
    def stamps(self) -> list[int]:
        """The times of all that stands in ``out``."""
        return [record.timestamp_ms for record in self.log.read("out")]

    @property
    def published(self) -> int | None:
        """What the first task has published last for ``out``."""
        return self.log.publications().get(("out", "first-0"), NO_WATERMARK)


def steps(*times: int, key: str = "z") -> list[Step]:
    return [Step(key, at) for at in times]


def echoing(partitions: int = 1, *, routed: bool = False, both: bool = False) -> tr.App:
    """What comes is emitted. ``routed``: but late events go to ``lates``; ``both``: to which others are emitted, too."""
    app = tr.App("first", partitions=partitions, on_error="dead-letter")
    out = app.topic("out", Step, key="key")
    lates = app.topic("lates", Step, key="key")
    if routed:
        taken = app.topic("steps", Step, key="key", event_time="at", late=lates)
    else:
        taken = app.topic("steps", Step, key="key", event_time="at")

    @app.process(taken)
    def echo(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    if both:

        @app.process(taken)
        def copy(event: Step, ctx: tr.Context[str]) -> None:
            ctx.emit(lates, event)

    return app


def ringing() -> tr.App:
    """Three timers for each step, at its other time, each of which emits."""
    app = tr.App("first", partitions=1)
    taken = app.topic("steps", Step, key="key", event_time="at")
    out = app.topic("out", Step, key="key")

    @app.actor
    class Bell(tr.Actor):
        @tr.process(taken)
        def hang(self, event: Step, ctx: tr.Context[str]) -> None:
            for number in range(3 if event.other else 0):
                ctx.set_timer(event.other, f"ring:{number}")

        @tr.on_timer("ring")
        def ring(self, ctx: tr.Context[str]) -> None:
            ctx.emit(out, Step(ctx.key, ctx.event_time))

    return app
