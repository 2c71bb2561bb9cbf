"""The status of an app, by its log, whether it runs or not."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace as tr
from tailrace.core.durations import spelled
from tailrace.core.errors import InputsChangedError, UnknownTopicError
from tailrace.history.status.holding import Held
from tailrace.history.status.inspection import AppReport, SourceReport, TaskReport, inspect_app
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tailrace.log.tasks import Owner
from tailrace.runtime.preparing import prepare_log
from tailrace.testing import Harness
from tests.core.ordered import Event, joining
from tests.runtime.joining import IDLE_MS, Service, Step, billing_app, joining_app


def report(service: Service, owner: Owner | None = None) -> AppReport:
    return inspect_app(service.plan, service.log, 20_000_000, lambda _: owner)


def first(service: Service) -> TaskReport:
    return report(service).tasks[0]


def watermarks(task: TaskReport) -> dict[str, int | None]:
    return {one.name: one.watermark_ms for one in task.operators}


@pytest.fixture
def service():
    found = Service(joining_app())
    yield found
    found.worker.leave()


def test_a_task_that_has_not_committed_stands_at_the_beginning(service: Service) -> None:
    service.feed("left", 1_000, 2_000)
    task = first(service)
    assert (task.committed_ms, task.commits, task.lag, task.owner) == (None, 0, 2, None)
    assert watermarks(task) == {"Join": None, "Later": None}
    held = task.operators[0].held_by
    assert held is not None
    assert (held.source, held.reason) == ("bills", "unpublished")


def test_what_the_last_cut_says_is_what_the_worker_stands_at(service: Service) -> None:
    billing = Service(billing_app(), service.log)
    billing.run("orders", 50_000)
    for at in (1_000, 5_000, 7_000):
        service.run("left", at, after_ms=10)
        service.run("right", at + 300, after_ms=10)
    partition = service.worker.slots[0].partition
    assert partition is not None
    live, task = partition.task, first(service)
    assert watermarks(task) == dict(zip(("Join", "Later"), live.watermarks.of_operator, strict=True))
    assert {one.topic: one.position for one in task.sources if "#" not in one.topic} == {
        name: at for name, at in live.positions.items() if "inbox" not in name
    }
    assert task.committed_ms == service.now_ms
    assert task.commits == live.tape_number


def test_sources_say_what_they_follow_and_what_there_is_to_read(service: Service) -> None:
    billing = Service(billing_app(), service.log)
    billing.run("orders", 50_000)
    service.run("left", 5_000)
    service.run("right", 5_000)
    service.run("right", after_ms=IDLE_MS)
    service.run("left", 6_000)
    service.feed("left", 7_000, 8_000, 9_000)
    sources = {one.topic: one for one in first(service).sources}
    assert list(sources) == ["bills", "joined", "left", "right", "joining.inbox#Later"]
    cause = "1 event late because 'left' had been idle for 10m: raise its idle_after (10m)"
    assert sources["left"] == SourceReport(
        "left", "events", 2, 5, 3, 5_999, idle=False, late_after_idle=1, idle_ms=600_000, late_cause=cause
    )
    assert (sources["right"].idle, sources["right"].lag) == (True, 0)
    assert (sources["bills"].follows, sources["bills"].watermark_ms) == ("writers", 49_999)
    assert sources["joining.inbox#Later"].follows == "writers"
    assert first(service).lag == 3


def test_who_owns_a_task_is_told_and_makes_its_readers_wait_for_it(service: Service) -> None:
    Service(billing_app(), service.log).run("orders", 2_000)
    for topic in ("left", "right"):
        service.run(topic, 5_000)
    stopped = Owner(17, stopped=True)
    assert report(service, owner=stopped).tasks[0].owner == stopped
    for owner, said in ((stopped, "stands at"), (None, "is down since")):
        held = report(service, owner=owner).tasks[0].operators[0].held_by
        assert isinstance(held, Held)
        assert said in held.text


def test_feedback_is_named_and_is_no_source() -> None:
    app = tr.App("circling", partitions=1)
    begun = app.topic("begun", Step, key="key", event_time="at")
    again = app.topic("again", Step, key="key", event_time="at")

    @app.actor
    class Circle(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(begun, again)
        def step(self, event: Step, ctx: tr.Context[str]) -> None:
            ctx.emit(again, event)

    service = Service(app)
    task = first(service)
    assert task.operators[0].feedback == ("again",)
    assert {one.topic: one.follows for one in task.sources} == {"again": "nothing", "begun": "events"}
    service.worker.leave()


def test_dead_letters_are_counted_by_partition() -> None:
    app = tr.App("failing", partitions=1, on_error="dead-letter")
    steps = app.topic("steps", Step, key="key", event_time="at")

    @app.process(steps)
    def fails(event: Step, ctx: tr.Context[str]) -> None:
        raise ValueError(event.at)

    service = Service(app)
    service.run("steps", 1, 2, 3)
    assert (first(service).dead_letters, first(service).lag) == (3, 0)
    assert first(service).operators[0].kind == "function"
    service.worker.leave()


def test_an_app_that_has_never_run_or_ran_with_other_partitions_is_refused(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    with pytest.raises(UnknownTopicError, match="has never run on it"):
        inspect_app(joining_app().plan(), log, 0, lambda _: None)
    prepare_log(log, joining_app(2).plan(), create_declared=True)
    with pytest.raises(InputsChangedError, match="has 3 partitions, and ran with 2"):
        inspect_app(joining_app(3).plan(), log, 0, lambda _: None)
    log.close()


@pytest.mark.parametrize(
    ("kept_ms", "why"),
    [
        (19, "for up to the out_of_order of 20ms"),
        (1_000, "the oldest one is of 1970-01-01T00:00:00.000Z"),
        (5_000, None),
    ],
)
def test_a_topic_that_keeps_records_for_a_shorter_time_than_events_wait_is_named(
    kept_ms: int, why: str | None
) -> None:
    app = joining()
    with Harness(app) as h:
        h.log._settings["left"] = TopicSettings(1, retention_ms=kept_ms)
        h.send(app.topics["left"], Event("k", 10, 0))
        found = inspect_app(h.plan, h.log, 2_000, lambda _: None).problems
        assert inspect_app(joining("arrival").plan(), h.log, 2_000, lambda _: None).problems == ()
    assert len(found) == (why is not None)
    if why is not None:
        assert found[0].startswith(
            f"'left' keeps records for {spelled(kept_ms)}, and events wait in it for longer"
        )
        assert why in found[0]
