"""The status of an app by its log, whether it runs or not: where its tasks stand, what holds them, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tailrace as tr
from tailrace.core.durations import spelled
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import InputsChangedError, UnknownTopicError
from tailrace.history.status.holding import Held, Holding, lag_of, last_commit_ms
from tailrace.history.status.inspection import AppReport, SourceReport, TaskReport, inspect_app
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.tasks import Owner
from tailrace.runtime.preparing import prepare_log
from tailrace.testing import Harness, MemoryLog
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


def held(service: Service, name: str, is_owned: Callable[[str], bool | None] = lambda _: None) -> Held | None:
    """What holds an operator of the first task of a service, as its worker sees it."""
    slot = service.worker.slots[0]
    assert slot.partition is not None
    task = slot.partition.task
    (operator,) = [one.index for one in service.plan.operators if one.name == name]
    holding = Holding(service.plan, 0, service.log, is_owned)
    source = holding.lowest(task.watermarks, operator)
    return None if source is None else holding.why(source, task.watermarks, task.positions)


@pytest.fixture
def billing(service: Service) -> Service:
    """What writes ``bills`` for the service, and is far ahead."""
    found = Service(billing_app(), service.log)
    found.run("orders", 10**8)
    return found


def test_of_several_sources_the_lowest_holds_until_it_is_idle(service: Service, billing: Service) -> None:
    service.settle()
    service.feed("left", *range(1_000, 1_012))
    assert held(service, "Join") == Held("left", "behind", "12 records are there, and nothing is read yet")
    service.settle()
    until_idle = "it counts as idle after 10m without any"
    assert held(service, "Join") == Held("right", "empty", f"this partition has no records yet; {until_idle}")
    service.run("right", 500)
    assert held(service, "Join") == Held("right", "read", f"all records are read; {until_idle}")
    service.feed("right", 600)
    assert held(service, "Join") == Held("right", "behind", "1 record is not yet read")
    service.settle()
    service.run("left", 6_000, after_ms=600_000)
    found = held(service, "Join")
    assert found is not None
    assert found.source == "left"


def test_an_operator_all_of_whose_sources_are_idle_is_held_by_nobody(service: Service) -> None:
    billing = Service(billing_app(), service.log)
    service.run("left", 5_000)
    service.run("right", 5_000)
    billing.run("orders", 5_000)
    billing.now_ms += 60_000
    billing.settle()
    service.now_ms += 600_000
    service.settle()
    assert held(service, "Join") is None


def test_a_topic_that_nobody_publishes_for_does_not_move(service: Service) -> None:
    service.run("left", 5_000)
    service.run("right", 5_000)
    found = held(service, "Join")
    assert found is not None
    assert (found.source, found.reason, found.publisher) == ("bills", "unpublished", None)
    assert found.text.startswith("nobody has published a watermark for it")


@pytest.mark.parametrize(
    ("owned", "said"),
    [
        (None, "task 0 of the app 'billing' stands at 1970-01-01T00:00:01.999Z"),
        (True, "task 0 of the app 'billing' stands at 1970-01-01T00:00:01.999Z"),
        (
            False,
            (
                "task 0 of the app 'billing' is down since 1970-01-01T02:46:40.000Z; its last watermark is "
                "1970-01-01T00:00:01.999Z (if it will not come again: tailrace retire billing)"
            ),
        ),
    ],
)
def test_the_writer_that_stands_lowest_is_named(service: Service, owned: bool | None, said: str) -> None:
    Service(billing_app(), service.log).run("orders", 2_000)
    service.run("left", 5_000)
    service.run("right", 5_000)
    asked: list[str] = []

    def is_owned(name: str) -> bool | None:
        asked.append(name)
        return owned

    assert held(service, "Join", is_owned=is_owned) == Held("bills", "publisher", said, "billing-0")
    assert asked == ["billing-0"]


@pytest.mark.parametrize(
    ("owned", "said"),
    [
        (None, "task 1 of the app 'billing' has not committed yet"),
        (False, "task 1 of the app 'billing' is down (if it will not come again: tailrace retire billing)"),
    ],
)
def test_a_writer_that_has_not_published_yet_is_named(owned: bool | None, said: str) -> None:
    log = MemoryLog(markers=False)
    service = Service(joining_app(partitions=2), log)
    Service(billing_app(partitions=2), log).run("orders", 2_000)
    for topic in ("left", "right"):
        service.run(topic, 5_000)
    assert held(service, "Join", is_owned=lambda _: owned) == Held("bills", "publisher", said, "billing-1")
    service.worker.leave()


def test_within_an_app_the_task_that_stands_lowest_is_named() -> None:
    service = Service(joining_app(partitions=2))
    Service(billing_app(partitions=2), service.log).feed("orders", 10**8)
    for topic in ("left", "right"):
        service.run(topic, 5_000)
    found = held(service, "Later")
    assert found is not None
    assert (found.source, found.reason, found.publisher) == ("joined", "publisher", "joining-0")
    assert found.text == "task 0 of this app has not come to any event yet"
    service.worker.leave()


def test_what_the_writers_have_published_since_is_not_applied_yet(service: Service) -> None:
    billing = Service(billing_app(), service.log)
    billing.run("orders", 2_000)
    service.run("left", 5_000)
    service.run("right", 5_000)
    billing.run("orders", 3_000)
    assert held(service, "Join") == Held("bills", "behind", "1 record is not yet read")
    partition = service.worker.slots[0].partition
    assert partition is not None
    behind = partition.task
    at_end = {**behind.positions, "bills": 2}
    source = service.plan.sources.index("bills")
    found = Holding(service.plan, 0, service.log).why(source, behind.watermarks, at_end)
    assert found == Held("bills", "unapplied", "what its writers publish has not come to this task yet")


def test_the_messages_to_an_actor_are_a_source_with_writers_of_its_own(service: Service) -> None:
    marks = Watermarks(service.plan)
    source = service.plan.sources.index("joining.inbox#Later")
    found = Holding(service.plan, 0, service.log).why(source, marks, {})
    assert (found.source, found.reason) == ("joining.inbox#Later", "publisher")
    assert found.text == "task 0 of this app has not committed yet"


def test_lag_counts_no_gap_at_the_end() -> None:
    log = MemoryLog()  # its commits take an offset each
    service = Service(joining_app(), log)
    service.run("left", 1, 2, 3)
    place = TopicPartition("left", 0)
    assert log.end_offset(*place) == 4
    assert [lag_of(log, place, at) for at in (0, 2, 3, 4)] == [4, 2, 0, 0]
    assert last_commit_ms(log, "joining", 0) == service.now_ms
    assert last_commit_ms(log, "joining", 7) is None
    assert last_commit_ms(log, "nobody", 0) is None
    service.worker.leave()
