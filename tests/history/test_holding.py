"""Which source holds an operator, and why it stands where it does: each reason, found in the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailrace.core.engine.watermarks import Watermarks
from tailrace.history.status.holding import Held, Holding, lag_of, last_commit_ms
from tailrace.log.interface import TopicPartition
from tailrace.testing import MemoryLog
from tests.runtime.joining import Service, billing_app, joining_app


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
def service():
    found = Service(joining_app())
    yield found
    found.worker.leave()


@pytest.fixture
def billing(service: Service) -> Service:
    """What writes ``bills`` for the service, and is far ahead."""
    found = Service(billing_app(), service.log)
    found.run("orders", 10**8)
    return found


def test_a_partition_that_has_no_records_is_empty(service: Service, billing: Service) -> None:
    service.run("left", 5_000)
    assert held(service, "Join") == Held(
        "right", "empty", "this partition has no records yet; it counts as idle after 10m without any"
    )


def test_what_is_there_and_was_not_taken_is_behind(service: Service, billing: Service) -> None:
    service.settle()
    service.feed("left", *range(1_000, 1_012))
    assert held(service, "Join") == Held("left", "behind", "12 records are there, and nothing is read yet")
    service.run("right", 5_000)
    service.feed("left", 2_000)
    assert held(service, "Join") == Held("left", "behind", "1 record is not yet read")


def test_of_several_sources_the_lowest_holds_until_it_is_idle(service: Service, billing: Service) -> None:
    service.run("left", 5_000)
    service.run("right", 3_000)
    assert held(service, "Join") == Held(
        "right", "read", "all records are read; it counts as idle after 10m without any"
    )
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
