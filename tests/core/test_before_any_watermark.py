"""Before the first event there is no watermark: what is reckoned from it waits for the first one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import RELOAD, Harness


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int
    add: int | None = None


class Seen(msgspec.Struct, frozen=True):
    key: str
    what: str
    event_time: int
    watermark: int


FIRST_MS = -(10**9)

app = tr.App("before", partitions=1)
events = app.topic("events", Event, key="key", event_time="at", time_range=(FIRST_MS, 10**9))
slow = app.topic("slow", Event, key="key", event_time="at", watermark=False)
seen = app.topic("seen", Seen, key="key")


@app.actor
class Waiter(tr.Actor):
    @tr.process(events, slow)
    def take(self, event: Event, ctx: tr.Context[str]) -> None:
        if event.add is not None:
            self.note("event", ctx)
            ctx.set_timer(ctx.watermark + event.add)
            ctx.set_timer(ctx.watermark + event.add, "named:kept")
            ctx.set_timer(ctx.watermark + event.add + 1, "named:gone")
            ctx.set_timer(ctx.watermark + event.add + 1)
            ctx.cancel_timer("named:gone")
            ctx.cancel_timer(ctx.watermark + event.add + 1)
        else:
            ctx.set_processing_timer(ctx.now)

    def note(self, what: str, ctx: tr.Context[str]) -> None:
        ctx.emit(seen, Seen(ctx.key, what, ctx.event_time, ctx.watermark))

    @tr.on_timer
    def unnamed(self, ctx: tr.Context[str]) -> None:
        self.note("unnamed", ctx)

    @tr.on_timer("named")
    def named(self, ctx: tr.Context[str]) -> None:
        self.note(ctx.timer_name or "", ctx)

    @tr.on_processing_timer
    def rang(self, ctx: tr.Context[str]) -> None:
        self.note("clock", ctx)


@pytest.mark.parametrize("at", [1_000, 0, -5_000])
@pytest.mark.parametrize("add", [1, 5, 8_640_000_000_000])
def test_a_timer_reckoned_from_no_watermark_fires_with_the_first_one(at: int, add: int) -> None:
    with Harness(app) as h:
        h.run([(slow, Event("a", 7, add)), RELOAD])
        assert [(one.what, one.watermark) for one in h.emitted(seen)] == [("event", tr.NO_WATERMARK)]
        assert set(h.timers(Waiter, "a").values()) == {tr.NO_WATERMARK + add}
        h.crash()
        h.advance_clock(1)
        assert len(h.emitted(seen)) == 1
        h.send(events, Event("b", at))
        expected = [
            Seen("a", what, at, at - 1) for what in ("named:kept", "unnamed")
        ]  # in the order of names
        assert h.emitted(seen)[1:3] == expected
        assert h.timers(Waiter, "a") == {}
        h.replay()


def test_the_first_event_itself_may_reckon_from_the_watermark() -> None:
    with Harness(app) as h:
        h.send(events, Event("a", 1_000, 5))
        assert [(one.what, one.event_time) for one in h.emitted(seen)] == [
            ("event", 1_000),
            ("named:kept", 1_000),
            ("unnamed", 1_000),
        ]
        h.replay()


@pytest.mark.parametrize("add", [0, -1, -8_640_000_000_000])
def test_a_timer_at_no_watermark_or_before_it_is_due_at_once(add: int) -> None:
    with Harness(app) as h:
        h.send(slow, Event("a", 7, add))
        fired = [one for one in h.emitted(seen) if one.what == "named:kept"]
        assert fired == [Seen("a", "named:kept", FIRST_MS, tr.NO_WATERMARK)]
        h.replay()


def test_a_timer_reckoned_from_no_watermark_fires_at_the_end_of_input_if_there_was_none() -> None:
    with Harness(app) as h:
        h.send(slow, Event("a", 7, 5))
        h.end_of_input()
        assert [(one.what, one.event_time) for one in h.emitted(seen)] == [
            ("event", 7),
            ("named:kept", FIRST_MS),
            ("unnamed", FIRST_MS),
        ]
        h.replay()


@pytest.mark.parametrize(
    ("first", "expected"), [(None, FIRST_MS), (1_000, 1_000), (0, 0), (-1, -1), (-5_000, -5_000)]
)
def test_a_processing_time_timer_happens_right_behind_the_watermark(first: int | None, expected: int) -> None:
    """Its watermark is the first event's time - 1 ms, also before 1970; where there is none, it comes before all events."""
    with Harness(app) as h:
        if first is not None:
            h.send(events, Event("b", first, 5))
        h.send(slow, Event("a", 7))
        (rang,) = (one for one in h.emitted(seen) if one.what == "clock")
        assert rang.event_time == expected
        (record,) = (one for one in h.log.read("seen") if b'"clock"' in (one.value or b""))
        assert record.timestamp_ms == expected
        h.replay()


def test_a_timer_at_what_is_no_instant_names_who_set_it() -> None:
    strict = tr.App("strict")
    topic = strict.topic("events", Event, key="key", event_time="at")

    @strict.actor
    class Strict(tr.Actor):
        @tr.process(topic)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            instant: Any = event.add
            if event.at:
                ctx.cancel_timer(instant)
            else:
                ctx.set_timer(instant)

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None: ...

    for add in (2**61, 2**63 - 1, -(2**63)):
        for at in (0, 1):
            with (
                Harness(strict) as h,
                pytest.raises(
                    tr.HandlerError, match=r"Strict\.take uses a timer with a wrong time: .*out of range"
                ),
            ):
                h.send(topic, Event("a", at, add))


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([None], 0),
        ([(-7_000, 0)], -7_000),
        ([(5_000, 9_000)], 0),
        ([None, (-7_000, 0), (-3, 3)], -7_000),
    ],
)
def test_what_happens_before_any_watermark_is_not_ahead_of_any_event(
    ranges: list[tuple[int, int] | None], expected: int
) -> None:
    """Else an event before 1970 would be late for those who read what a clock's timer emits."""
    app = tr.App("ranges", partitions=1)
    topics = [
        app.topic(f"t{at}", Event, key="key", event_time="at", watermark=False)
        if one is None
        else app.topic(f"t{at}", Event, key="key", event_time="at", watermark=False, time_range=one)
        for at, one in enumerate(ranges)
    ]
    other = app.topic("other", Event, key="key", event_time="at", time_range=(-99_000, 0))
    told: list[int] = []

    @app.actor
    class Ringing(tr.Actor):
        count: int = 0

        @tr.process(*topics)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.set_processing_timer(ctx.now)

        @tr.on_processing_timer
        def rang(self, ctx: tr.Context[str]) -> None:
            told.append(ctx.event_time)

    @app.actor
    class Stranger(tr.Actor):
        count: int = 0

        @tr.process(other)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1

    with Harness(app) as h:
        h.send(topics[0], Event("a", 0 if ranges[0] is None else ranges[0][0]))
        h.replay(hash_seed=False)
    assert told == [expected, expected]  # live and again


def test_a_clock_before_1970_is_read_as_1970() -> None:
    with Harness(app, now_ms=-5_000) as h:
        h.send(slow, Event("a", 7))
        assert [one.what for one in h.emitted(seen)] == ["clock"]
        h.advance_clock(-1)
        h.replay()
