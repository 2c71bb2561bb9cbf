"""What is emitted behind the watermark that was published for its topic is counted, and named with who did it."""

from __future__ import annotations

import logging

import msgspec
import pytest

import tailrace as tr
from tailrace.core.handling.promises import Behind
from tailrace.core.records import Output
from tailrace.runtime.service import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.testing import Harness, MemoryLog


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int


def stepping() -> tr.App:
    """``starts`` gets an event of the time at which a window began, when it ends; ``ends`` one of its end."""
    app = tr.App("stepping", partitions=1)
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

    def __init__(self) -> None:
        self.plan = stepping().plan()
        self.log = MemoryLog()
        prepare_log(self.log, self.plan, create_declared=True)
        self.worker = Worker(
            self.plan,
            self.log,
            [0],
            lambda _: MemoryStore(),
            settings=WorkerSettings(partition=PartitionSettings(commit_interval_ms=0)),
        )
        self.worker.start()

    def step(self, *times: int) -> dict[Behind, int]:
        for at in times:
            self.log.append_all([Output("steps", b"a", msgspec.json.encode(Step("a", at)), at)])
            self.worker.turn()
        partition = self.worker._slots[0].partition
        assert partition is not None
        return dict(partition.behind)


def test_who_emits_behind_what_was_published_is_named_and_who_does_not_is_not() -> None:
    run = Run()
    # Published after the step at t: t - 1, and 50 less for the topic with as much disorder.
    assert run.step(1_000, 1_090) == {}
    assert run.step(1_140) == {("starts", "Window.end"): 1}
    assert run.step(2_000, 2_090) == {("starts", "Window.end"): 1}
    run.worker.leave()


def test_what_its_disorder_allows_is_not_behind() -> None:
    run = Run()
    assert run.step(1_000, 1_040, 1_200) == {}, "the last that was published for starts is 989"
    run.worker.leave()


def test_an_event_without_a_time_of_its_own_has_that_of_its_cause() -> None:
    run = Run()
    run.step(1_000, 1_090)
    assert run.step(500) == {("plain", "Window.step"): 1}
    run.worker.leave()


def test_the_log_says_so_the_first_time_and_then_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    run.step(1_000, 1_090)
    with caplog.at_level(logging.WARNING, "tailrace.worker"):
        run.step(*([500] * 9))
    said = [record for record in caplog.records if "behind the watermark" in record.message]
    assert [vars(record)["events"] for record in said] == [1, 2, 4, 8]
    assert {(vars(record)["topic"], vars(record)["handler"]) for record in said} == {("plain", "Window.step")}
    run.worker.leave()


def test_a_harness_shows_it() -> None:
    app = stepping()
    topics = app.plan().topics
    with Harness(app) as harness:
        for at in (1_000, 1_090, 1_140):
            harness.send(topics["steps"], Step("a", at))
            harness.commit()
        assert harness.behind == {("starts", "Window.end"): 1}
