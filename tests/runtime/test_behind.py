"""What is emitted behind the watermark that was published for its topic is counted, and named with who did it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import LogUnavailableError
from tailrace.core.handling.promises import Behind
from tailrace.core.records import Output
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.testing import Harness, MemoryLog


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


def stepping(partitions: int = 1) -> tr.App:
    """``starts`` gets an event of the time at which a window began, when it ends; ``ends`` one of its end."""
    app = tr.App("stepping", partitions=partitions)
    steps = app.topic("steps", Step, key="key", event_time="at", late="handle")
    starts = app.topic("starts", Step, key="key", event_time="at", out_of_order=50)
    ends = app.topic("ends", Step, key="key", event_time="at")
    plain = app.topic("plain", Step, key="key")

    @app.actor
    class Window(tr.Actor):
        begun: int = 0

        @tr.process(steps)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            if not self.begun:
                self.begun = event.at
                ctx.set_timer(event.at + 100, "end")
            ctx.emit(plain, event)

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            ctx.emit(starts, Step(ctx.key, self.begun))
            ctx.emit(ends, Step(ctx.key, ctx.event_time))
            self.begun = 0

    return app


class Run:
    """A worker that commits after every slice, fed step by step."""

    def __init__(self, partitions: int = 1) -> None:
        self.plan = stepping(partitions).plan()
        self.strike: Callable[[str], None] = lambda operation: None
        self.log = MemoryLog(on_operation=self.operation)
        self.stores = [MemoryStore() for _ in range(partitions)]
        prepare_log(self.log, self.plan, create_declared=True)
        self.worker = Worker(
            self.plan,
            self.log,
            range(partitions),
            self.stores.__getitem__,
            settings=WorkerSettings(retry_ms=0, partition=PartitionSettings(commit_interval_ms=0)),
        )
        self.worker.start()

    def step(self, *times: int, partition: int = 0) -> dict[Behind, int]:
        for at in times:
            self.feed(at, partition)
            self.worker.turn()
        found = self.worker.slots[partition].partition
        assert found is not None
        return dict(found.promises.behind)

    def operation(self, name: str) -> None:
        self.strike(name)

    def feed(self, at: int, partition: int) -> None:
        key = "ad"[partition]  # murmur2 puts them there, of two
        self.log.append_all([Output("steps", key.encode(), msgspec.json.encode(Step(key, at)), at)])

    def restart(self, partition: int) -> None:
        """It fails, and is restored as another."""
        before = self.worker.slots[partition].partition

        def strike(name: str) -> None:
            if name == "commit":
                self.strike = lambda operation: None
                raise LogUnavailableError("gone for a moment")

        self.feed(1_095, partition)
        self.strike = strike
        self.worker.turn()
        while self.worker.turn():
            pass
        assert self.worker.slots[partition].partition is not before


def test_what_its_disorder_allows_is_not_behind() -> None:
    run = Run()
    assert run.step(1_000, 1_040, 1_200) == {}, "the last that was published for starts is 989"
    run.worker.leave()


def told(caplog: pytest.LogCaptureFixture) -> list[int]:
    said = [record for record in caplog.records if "behind the watermark" in record.message]
    assert {(vars(record)["topic"], vars(record)["handler"]) for record in said} == {("plain", "Window.step")}
    return [vars(record)["events"] for record in said]


def test_the_log_says_so_the_first_time_and_then_at_ten_times_as_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run()
    run.step(1_000, 1_090)
    with caplog.at_level(logging.WARNING, "tailrace.worker"):
        run.step(*([500] * 105))
    assert told(caplog) == [1, 10, 100]
    run.worker.leave()


def test_the_log_does_not_say_so_again_for_another_partition_or_after_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Run(partitions=2)
    run.step(1_000, 1_090)
    run.step(1_000, 1_090, partition=1)
    with caplog.at_level(logging.WARNING, "tailrace.worker"):
        run.step(500, 500)
        run.step(500, 500, partition=1)
        run.restart(0)
        run.step(1_096, 500, 500)
        assert told(caplog) == [1]
        run.step(*([500] * 4))
    assert told(caplog) == [1, 10]
    run.worker.leave()


causing = tr.App("causing", partitions=1)
STEPS = causing.topic("steps", Step, key="key", event_time="at")
REFERENCE = causing.topic("reference", Step, key="key", event_time="at", watermark=False)
OUT = causing.topic("out", Step, key="key", event_time="at")
PLAIN = causing.topic("plain", Step, key="key")
WITHIN = causing.stream("within", Step)
CAUSES: dict[str, tuple[Callable[[tr.Context[str], Step], None], str]] = {
    "event": (lambda ctx, _: ctx.emit(OUT, Step("a", 400)), "sets this time in the event"),
    "at": (lambda ctx, step: ctx.emit(PLAIN, step, at=400), "gives this time with at="),
    "stream": (lambda ctx, step: ctx.emit(WITHIN, step, at=400), "gives this time with at="),
    "timer": (lambda ctx, _: ctx.set_timer(400), "timer that was set for a time before the watermark"),
    "late": (lambda _ctx, _step: None, "late event of 'steps'"),
    "record": (lambda _ctx, _step: None, "an event of 'reference', for which event time does not wait"),
}
now: list[str] = []


@causing.actor(emits=[OUT, PLAIN, WITHIN])
class Causing(tr.Actor, order="arrival"):
    @tr.process(STEPS, REFERENCE)
    def take(self, step: Step, ctx: tr.Context[str]) -> None:
        if step.at == 400:
            ctx.emit(PLAIN, step)
        elif now:
            CAUSES[now[0]][0](ctx, step)

    @tr.on_timer
    def due(self, ctx: tr.Context[str]) -> None:
        ctx.emit(PLAIN, Step("a", 0))


@causing.process(WITHIN)
def within(step: Step, ctx: tr.Context[str]) -> None: ...


@pytest.mark.parametrize("cause", CAUSES)
def test_the_log_says_why_by_how_much_and_what_to_do(cause: str, caplog: pytest.LogCaptureFixture) -> None:
    log, store, plan = MemoryLog(), MemoryStore(), causing.plan()
    prepare_log(log, plan, create_declared=True)
    settings = WorkerSettings(partition=PartitionSettings(commit_interval_ms=0))
    worker = Worker(plan, log, range(1), lambda _: store, settings=settings)
    worker.start()
    now[:] = []

    def feed(topic: str, at: int) -> None:
        log.append_all([Output(topic, b"a", msgspec.json.encode(Step("a", at)), at)])
        while worker.turn():
            pass

    feed("steps", 1_000)
    now[:] = [cause]
    with caplog.at_level(logging.WARNING, "tailrace.worker"):
        feed("reference" if cause == "record" else "steps", 400 if cause in {"late", "record"} else 1_010)
    worker.leave()
    (record,) = [record for record in caplog.records if "behind the watermark" in record.message]
    # The step at 1,010 raises the watermark to 1,009 before the timer fires, and 999 was published before.
    assert "1970-01-01T00:00:00.400Z is 599ms behind 1970-01-01T00:00:00.999Z" in record.message
    assert CAUSES[cause][1] in record.message
    shown = vars(record)
    assert shown["cause"] == ("at" if cause == "stream" else cause)
    assert shown["behind_ms"] == 599


def test_a_harness_shows_it() -> None:
    app = stepping()
    topics = app.plan().topics
    with Harness(app) as harness:
        for at in (1_000, 1_090, 1_140):
            harness.send(topics["steps"], Step("a", at))
            harness.commit()
        assert harness.behind == {("starts", "Window.end"): 1}
