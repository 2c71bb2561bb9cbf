"""Before the first event there is no watermark: no timer can be set relative to it."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int
    add: int | None = None


class Seen(msgspec.Struct, frozen=True):
    key: str
    event_time: int


app = tr.App("before", partitions=1)
events = app.topic("events", Event, key="key", event_time="at", time_range=(-(10**9), 10**9))
slow = app.topic("slow", Event, key="key", event_time="at", watermark=False)
seen = app.topic("seen", Seen, key="key")


@app.actor
class Waiter(tr.Actor, order="arrival"):
    @tr.process(events)
    def waits(self, event: Event, ctx: tr.Context[str]) -> None:
        if event.add is not None:
            ctx.set_timer(ctx.watermark + event.add)

    @tr.process(slow)
    def take(self, event: Event, ctx: tr.Context[str]) -> None:
        ctx.set_processing_timer(ctx.now)

    @tr.on_timer
    def unnamed(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_processing_timer
    def rang(self, ctx: tr.Context[str]) -> None:
        ctx.emit(seen, Seen(ctx.key, ctx.event_time))


def test_a_timer_relative_to_no_watermark_is_refused() -> None:
    with Harness(app) as h, pytest.raises(tr.HandlerError, match=r"compute the time from ctx\.event_time"):
        h.send(events, Event("a", 1_000, 5))


@pytest.mark.parametrize("first", [1_000, 0, -1, -5_000, None])
def test_a_processing_time_timer_happens_right_behind_the_watermark(first: int | None) -> None:
    """The watermark is the first event's time - 1 ms, also before 1970. Before the first event the event time
    is 0.
    """
    with Harness(app) as h:
        if first is not None:
            h.send(events, Event("b", first))
        h.send(slow, Event("a", 7))
        (record,) = h.log.read("seen")
        assert h.emitted(seen) == [Seen("a", first or 0)]
        assert record.timestamp_ms == (first or 0)
        h.replay()


def test_a_clock_before_1970_is_read_as_1970() -> None:
    with Harness(app, now_ms=-5_000) as h:
        h.send(slow, Event("a", 7))
        assert len(h.emitted(seen)) == 1
        h.advance_clock(-1)
        h.replay()
