"""Watermarks between services: published with commits, applied where they hold, never ahead of what was written."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.history.reading.stretches import scan
from tests.runtime.joining import Service, Step


class Alarm(msgspec.Struct, frozen=True):
    key: str
    at: int


def first_app() -> tr.App:
    app = tr.App("first", partitions=1)
    steps = app.topic("steps", Step, key="key", event_time="at", out_of_order=10)
    middle = app.topic("middle", Step, key="key", event_time="at", out_of_order=100)

    @app.process(steps)
    def forward(event: Step, ctx: tr.Context) -> None:
        ctx.emit(middle, event)

    return app


def second_app() -> tr.App:
    app = tr.App("second", partitions=1)
    middle = app.topic("middle", Step, key="key", event_time="at", watermark="upstream")
    alarms = app.topic("alarms", Alarm, key="key")

    @app.actor
    class Waiting(tr.Actor):
        steps: int = 0

        @tr.process(middle)
        def step(self, event: Step, ctx: tr.Context) -> None:
            self.steps += 1
            ctx.set_timer(event.at + 50, "alarm")

        @tr.on_timer("alarm")
        def alarm(self, ctx: tr.Context) -> None:
            ctx.emit(alarms, Alarm(ctx.key, ctx.event_time))

    return app


def watermark(service: Service) -> int:
    partition = service.worker.slots[0].partition
    assert partition is not None
    return partition.task.watermark


@pytest.fixture
def chain() -> Iterator[tuple[Service, Service]]:
    """Two services on one log."""
    first = Service(first_app())
    second = Service(second_app(), first.log)
    yield first, second
    first.worker.leave()
    second.worker.leave()


def test_the_watermark_of_a_topic_is_its_producers_less_the_topics_disorder(
    chain: tuple[Service, Service],
) -> None:
    first, second = chain
    for at in (1_000, 2_000):
        first.run("steps", at)
        second.settle()
        assert watermark(first) == at - 10 - 1
        assert watermark(second) == at - 10 - 1 - 100


def test_a_publication_is_applied_only_after_what_was_written_before_it(
    chain: tuple[Service, Service],
) -> None:
    first, second = chain
    for at in (1_000, 5_000):
        first.run("steps", at)
    assert watermark(second) == NO_WATERMARK
    second.settle()
    assert watermark(second) == 5_000 - 111
    # The second step has moved the timer before event time came to it.
    assert list(scan(second.log, "alarms", 0)) == []


def test_a_reader_that_comes_when_its_producers_are_idle_stands_at_their_last_watermark(
    chain: tuple[Service, Service],
) -> None:
    first, second = chain
    first.run("steps", 1_000)
    first.run("steps", after_ms=60_000)
    assert set(first.log.publications().values()) == {None}
    second.settle()
    assert watermark(second) == 1_000 - 111
