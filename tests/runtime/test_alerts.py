"""A worker names the source that holds an actor while the worker is busy with others, once, and only then."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import tailrace as tr
from tests.runtime.joining import Service, Step, billing_app, joining_app

SECOND_MS = 1_000


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "tailrace.worker")

    def found() -> list[dict[str, Any]]:
        return [vars(one) for one in caplog.records if "is held back" in one.message]

    return found


def busy(service: Service, seconds: int, topics: tuple[str, ...] = ("left",), step_s: int = 1) -> None:
    """Take an event of each of these topics every second."""
    for _ in range(0, seconds, step_s):
        for topic in topics:
            service.feed(topic, service.now_ms)
        service.settle()
        service.now_ms += step_s * SECOND_MS


def test_an_actor_that_is_held_for_a_minute_of_busy_reading_is_told_with_the_source(told) -> None:
    service = Service(joining_app())
    busy(service, 60, ("left", "right"))
    assert told() == []
    busy(service, 2, ("left", "right"))
    (one,) = told()
    assert (one["levelname"], one["actor"], one["source"]) == ("WARNING", "Join", "bills")
    assert "Join is held back by 'bills'" in one["message"]
    assert "tailrace status joining" in one["message"]
    busy(service, 200, ("left", "right"))
    assert len(told()) == 1
    service.worker.leave()


def test_it_is_told_again_once_the_actor_has_moved_and_is_held_anew(told) -> None:
    service = Service(joining_app())
    upstream = Service(billing_app(), service.log)
    busy(service, 62, ("left", "right"))
    upstream.run("orders", 2_000)
    busy(service, 50, ("left", "right"))
    assert len(told()) == 1
    busy(service, 20, ("left", "right"))
    assert [one["source"] for one in told()] == ["bills", "bills"]
    service.worker.leave()


def test_a_source_that_holds_while_nothing_else_is_read_is_not_told(told) -> None:
    service = Service(joining_app())
    busy(service, 30, ("left", "right"))
    service.now_ms += 300 * SECOND_MS
    busy(service, 59, ("left", "right"))
    assert told() == []
    busy(service, 400, ("left", "right"), step_s=11)
    assert told() == []
    service.worker.leave()


def test_an_actor_whose_watermark_moves_is_not_held(told) -> None:
    service = Service(joining_app())
    upstream = Service(billing_app(), service.log)
    for _ in range(100):
        upstream.run("orders", service.now_ms)
        busy(service, 1, ("left", "right"))
    assert told() == []
    service.worker.leave()


def test_what_holds_all_partitions_is_told_once_until_they_have_moved(told) -> None:
    service = Service(joining_app(partitions=2))
    upstream = Service(billing_app(partitions=2), service.log)

    def busy_with_both(seconds: int) -> None:
        for _ in range(seconds):
            for key in ("a", "d"):
                for topic in ("left", "right"):
                    service.feed(topic, service.now_ms, key=key)
            service.settle()
            service.now_ms += SECOND_MS

    busy_with_both(80)
    assert [one["source"] for one in told()] == ["bills"]
    for key in ("a", "d"):
        upstream.feed("orders", 5_000, key=key)
    upstream.settle()
    busy_with_both(80)
    assert [one["source"] for one in told()] == ["bills", "bills"]
    service.worker.leave()


def test_a_source_that_alone_is_read_holds_nothing_up(told) -> None:
    service = Service(joining_app())
    Service(billing_app(), service.log).run("orders", 10**8)
    service.run("left", 5_000)
    for _ in range(80):
        service.run("right", 1_000, after_ms=SECOND_MS)
    assert "Join" not in [one["actor"] for one in told()]
    service.worker.leave()


def test_a_clock_that_jumps_tells_nothing_by_itself(told) -> None:
    service = Service(joining_app())
    busy(service, 20, ("left", "right"))
    service.now_ms -= 3_600 * SECOND_MS
    busy(service, 20, ("left", "right"))
    service.now_ms += 3_600 * SECOND_MS
    busy(service, 20, ("left", "right"))
    assert told() == []
    service.worker.leave()


def test_an_input_that_comes_back_behind_its_actor_is_named_at_once_and_when_the_worker_leaves(
    caplog,
) -> None:
    caplog.set_level(logging.WARNING, "tailrace.worker")
    app = tr.App("carts", partitions=1)
    orders, carts = (app.topic(name, Step, key="key", event_time="at") for name in ("orders", "carts"))

    @app.actor
    class Join(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(orders, carts)
        def take(self, event: Step, ctx: tr.Context[str]) -> None:
            self.seen += 1

    def told() -> list[str]:
        return [one.message for one in caplog.records if "idle" in one.message]

    service = Service(app)
    service.run("carts", 1_000)
    for at in range(2_000, 63_000, 1_000):
        service.run("orders", at, after_ms=1_000)
    assert told() == []
    service.run("carts", 2_000)
    cause = "1 event late because 'carts' had been idle for 61s: raise its idle_after (1m)"
    since = "It was idle since 1970-01-01T02:46:40.000Z, and came back 59s behind the watermark of its actors"
    assert told() == [f"{cause}. {since}"]
    service.run("carts", *range(3_000, 11_000, 1_000))
    assert len(told()) == 1
    service.run("carts", *range(11_000, 31_000, 1_000))
    assert len(told()) == 2
    service.worker.leave()
    assert told()[2:] == ["29 events late because 'carts' had been idle for 61s: raise its idle_after (1m)"]
