"""Any instant works in the harness, from first to last. Another value is refused, and the harness can be used on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import At, Clock, Harness, Watermark

FIRST_MS, LAST_MS = 1 - 2**61, 2**61 - 1
LONG = "100000d"
LONG_MS = 8_640_000_000_000
NO_INSTANTS = (FIRST_MS - 1, LAST_MS + 1, 2**63 - 1, -(2**63), 2**63, 10**30)


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Seen(msgspec.Struct, frozen=True):
    key: str
    what: str
    event_time: int


def world(event_time: Any) -> tuple[tr.App, tr.Topic[Event, str], tr.Topic[Seen, str]]:
    """An actor with everything that has a time, in topics that take any."""
    app = tr.App("instants", partitions=1)
    range_ms = (FIRST_MS, LAST_MS)
    events = app.topic(
        "events", Event, key="key", event_time=event_time,
        time_range=range_ms, out_of_order=LONG, idle_after=LONG,
    )  # fmt: skip
    seen = app.topic("seen", Seen, key="key", time_range=range_ms, out_of_order=LONG)

    @app.actor
    class Actor(tr.Actor):
        n: int = tr.field(default=0, ttl=LONG)
        entries: tr.MapState[int, int] = tr.field(ttl=LONG, ttl_time="processing")

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1
            self.entries[self.n] = self.n
            ctx.emit(seen, Seen(ctx.key, "event", ctx.event_time))
            ctx.set_timer(ctx.event_time)
            ctx.set_timer(min(max(ctx.watermark, FIRST_MS) + 5, LAST_MS), "soon")
            ctx.set_processing_timer(min(ctx.now + 5, LAST_MS))

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(seen, Seen(ctx.key, "timer", ctx.event_time))

        @tr.on_timer("soon")
        def soon(self, ctx: tr.Context[str]) -> None:
            ctx.emit(seen, Seen(ctx.key, "soon", ctx.event_time))

        @tr.on_processing_timer
        def rang(self, ctx: tr.Context[str]) -> None:
            ctx.emit(seen, Seen(ctx.key, "clock", ctx.event_time))

    @app.process(seen)
    def read(event: Seen, ctx: tr.Context[str]) -> None:
        assert event.event_time == ctx.event_time, "a record does not bear the event time of its cause"

    return app, events, seen


@pytest.mark.parametrize(
    "event_time", ["at", tr.RECORD_TIME, tr.ARRIVAL_TIME], ids=["field", "record", "arrival"]
)
@pytest.mark.parametrize("time_ms", [FIRST_MS, -LONG_MS, -1, 0, 1, LAST_MS - LONG_MS, LAST_MS])
@pytest.mark.parametrize("where", ["watermark", "clock", "timestamp", "start"])
def test_every_instant_works(event_time: Any, time_ms: int, where: str) -> None:
    app, events, seen = world(event_time)
    with Harness(app, now_ms=time_ms if where == "start" else 0) as h:
        h.run([At(time_ms if where == "timestamp" else 7, events, Event("a", time_ms))])
        if where == "watermark":
            h.run([Watermark(time_ms)])
            # That of who reads what is emitted is behind by the disorder of its topic.
            assert h._service.task(0).watermarks.of_first_level >= time_ms
        elif where == "clock":
            h.run([Clock(time_ms)])
        h.send(events, Event("a", 3))
        h.crash()
        h.send(events, Event("a", time_ms))
        h.end_of_input()
        counted = [one.what for one in h.emitted(seen)].count("event")
        assert (counted, h.dead_letters()) == (3, [])
        h.replay()


@pytest.mark.parametrize("time_ms", NO_INSTANTS, ids=hex)
@pytest.mark.parametrize(
    "do",
    [
        lambda h, _, at: h.advance_watermark(at),
        lambda h, _, at: h.advance_clock(at),
        lambda h, events, at: h.send(events, Event("a", 1), timestamp_ms=at),
        lambda h, events, at: h.send_raw(events, b"{}", timestamp_ms=at),
        lambda h, events, at: h.run([At(at, events, Event("a", 1))]),
        lambda h, _, at: h.run([Watermark(at)]),
        lambda h, _, at: h.run([Clock(at)]),
    ],
    ids=["watermark", "clock", "send", "send_raw", "At", "Watermark", "Clock"],
)
def test_what_is_no_instant_is_refused_and_changes_nothing(do: Callable[..., object], time_ms: int) -> None:
    app, events, seen = world("at")
    with Harness(app) as h:
        h.send(events, Event("a", 5))
        before = (h.now, h.watermark())
        with pytest.raises(tr.UsageError, match=r"out of range: instants are less than 2\*\*61 ms from 1970"):
            do(h, events, time_ms)
        assert (h.now, h.watermark()) == before
        h.advance_watermark(10)
        assert [one.what for one in h.emitted(seen)] == ["event", "soon", "timer"]
        h.replay()


def test_a_clock_cannot_begin_at_what_is_no_instant() -> None:
    with pytest.raises(tr.UsageError, match="out of range"):
        Harness(world("at")[0], now_ms=2**61)


def test_the_clock_is_not_moved_past_the_last_instant_or_by_more_than_the_longest_duration() -> None:
    with Harness(world("at")[0], now_ms=LAST_MS - 1) as h:
        h.advance_clock_by(1)
        with pytest.raises(tr.UsageError, match="out of range"):
            h.advance_clock_by(1)
        with pytest.raises(tr.UsageError, match="longer than 100000d"):
            h.advance_clock_by(2**63 - 1)
        assert h.now == LAST_MS
