"""A plain field with a time to live goes back to its default once, and then rests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Seen(msgspec.Struct):
    key: str
    at: int


def fading_app(*, required: bool) -> tr.App:
    """An actor whose field is a float with an int as its default, or that has a field without
    default, too.
    """
    app = tr.App("fading", partitions=1)
    topic = app.topic("seen", Seen, key="key", event_time="at")

    if required:

        @app.actor(name="Fading")
        class Named(tr.Actor):
            name: str
            share: int = tr.field(default=0, ttl="1s")

            @tr.process(topic)
            def see(self, event: Seen, ctx: tr.Context[str]) -> None:
                self.name = event.key
                if event.at == 0:
                    self.share = 1

    else:

        @app.actor(name="Fading")
        class Nameless(tr.Actor):
            share: float = tr.field(default=0, ttl="1s")

            @tr.process(topic)
            def see(self, event: Seen, ctx: tr.Context[str]) -> None:
                if event.at == 0:
                    self.share = 1.0

    return app


@pytest.mark.parametrize("required", [False, True])
def test_a_field_that_is_back_to_its_default_does_not_expire_again(required: bool) -> None:
    app = fading_app(required=required)
    with Harness(app) as h:
        h.send(app.topics["seen"], Seen("a", 0), *(Seen("b", at) for at in range(1_000, 10_000, 1_000)))
        assert h._service.task(0).totals.fired == 1
        actor: Any = app.actors["Fading"]
        found: Any = h.state(actor, "a")
        assert found is None if not required else (found.name, found.share) == ("a", 0)
        h.replay()


class Go(msgspec.Struct):
    key: str
    at: int
    timers: tuple[int, ...] = ()


@pytest.mark.parametrize("step", [100, 10_000])
def test_what_a_timer_writes_lives_from_the_time_of_the_timer_however_late_it_fires(step: int) -> None:
    app = tr.App("fading", partitions=1)
    topic = app.topic("go", Go, key="key", event_time="at")

    @app.actor
    class Noting(tr.Actor):
        last: int = tr.field(default=0, ttl=100)
        entries: tr.MapState[str, int] = tr.field(ttl=100)
        seen: list[tuple[int, int, int]] = tr.field(default_factory=list)

        @tr.process(topic)
        def go(self, event: Go, ctx: tr.Context[str]) -> None:
            for time_ms in event.timers:
                ctx.set_timer(time_ms)

        @tr.on_timer
        def note(self, ctx: tr.Context[str]) -> None:
            self.seen.append((ctx.event_time, self.last, self.entries.get("x", 0)))
            if ctx.event_time % 1_000 == 0:
                self.last = self.entries["x"] = ctx.event_time

    timers = (1_000, 1_050, 1_099, 1_101, 2_000, 2_100, 2_101)
    with Harness(app) as h:
        h.send(topic, Go("a", 0, timers), *(Go("b", at) for at in range(step, 10_001, step)))
        found: Any = h.state(Noting, "a")
        last, expected = 0, []
        for time_ms in timers:
            kept = last if time_ms < last + 100 else 0
            expected.append((time_ms, kept, kept))
            if time_ms % 1_000 == 0:
                last = time_ms
        assert found.seen == expected
        assert (found.last, dict(found.entries.items())) == (0, {})
        h.replay()


def test_what_is_put_into_a_cleared_field_in_place_lives_from_then_on_also_if_it_is_what_was_there() -> None:
    app = tr.App("fading", partitions=1)
    topic = app.topic("go", Go, key="key", event_time="at")

    @app.actor
    class Listing(tr.Actor):
        names: list[str] = tr.field(default_factory=list, ttl=100)

        @tr.process(topic)
        def go(self, event: Go, ctx: tr.Context[str]) -> None:
            ctx.clear()
            self.names.append(event.key)

    with Harness(app) as h:
        h.send(topic, Go("a", 1_000), Go("a", 1_080))
        h.advance_watermark(1_179)
        found = h.state(Listing, "a")
        assert found is not None
        assert found.names == ["a"]
        h.advance_watermark(1_180)
        assert h.state(Listing, "a") is None
        h.replay()
