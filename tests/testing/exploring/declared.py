"""Apps whose results depend on the order of arrival, and that say so in one way or another."""

from __future__ import annotations

from typing import Any, Literal

import tailrace as tr
from tests.testing.exploring.apps import Said, Tick, two_inputs


def late_events(late: Literal["drop", "route", "handle"] = "drop") -> tr.App:
    """Two inputs, of which one is out of order by more than it declares: what is late depends on how far the
    other is.
    """
    app = tr.App("late", partitions=2)
    too_late = app.topic("too-late", Tick, key="key", event_time="at")
    ones = app.topic("ones", Tick, key="key", event_time="at", late=too_late if late == "route" else late)
    twos = app.topic("twos", Tick, key="key", event_time="at")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Sum(tr.Actor, order="arrival"):
        value: int = 0

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value += event.n
            ctx.set_timer(event.at - event.at % 10_000 + 9_999)

        @tr.on_timer
        def report(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, "a timer"))

    return app


def asks_whether_it_is_late() -> tr.App:
    """The handler treats late events in a way of its own."""
    app, ones, twos = two_inputs("asks")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Asking(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(ones)
        def one(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.seen += 1
            if ctx.is_late:
                ctx.emit(said, Said(ctx.key, f"late: {event.n}"))

        @tr.process(twos)
        def two(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app


def asks_the_clock() -> tr.App:
    """A handler notes when it was called."""
    app = tr.App("clock", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at")

    @app.actor
    class Noting(tr.Actor):
        last_ms: int = 0

        @tr.process(ones)
        def note(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.last_ms = ctx.now

    return app


def waits_by_the_clock() -> tr.App:
    """What follows within a second of the clock is told together."""
    app = tr.App("waits", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Batch(tr.Actor):
        numbers: list[int] = tr.field(default_factory=list)

        @tr.process(ones)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.numbers.append(event.n)
            if len(self.numbers) == 1:
                ctx.set_processing_timer(ctx.now + 1_000, "tell")

        @tr.on_processing_timer("tell")
        def report(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, str(self.numbers)))
            self.numbers.clear()

    return app


def by_arrival() -> tr.App:
    """The last to arrive wins."""
    app = tr.App("arrival", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time=tr.ARRIVAL_TIME)
    twos = app.topic("twos", Tick, key="key", event_time=tr.ARRIVAL_TIME)

    @app.actor
    class Last(tr.Actor, order="arrival"):
        value: int = 0

        @tr.process(ones, twos)
        def set(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value = event.n

    return app


def falls_idle(late: str = "handle") -> tr.App:
    """Inputs that are not waited for when they pause for a second: what they have after that is late."""
    app = tr.App("idle", partitions=2)
    too_late = app.topic("too-late", Tick, key="key", event_time="at")
    to: Any = too_late if late == "route" else late
    ones, twos = (
        app.topic(name, Tick, key="key", event_time="at", idle_after="1s", late=to)
        for name in ("ones", "twos")
    )
    said = app.topic("said", Said, key="key")

    @app.actor
    class Window(tr.Actor, order="arrival"):
        open: tr.MapState[int, int]

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            end = event.at - event.at % 10_000 + 10_000
            self.open[end] = self.open.get(end, 0) + event.n
            ctx.set_timer(end - 1)

        @tr.on_timer
        def complete(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, str(self.open.pop(ctx.event_time + 1))))

    return app


def draws() -> tr.App:
    """Samples what it has re-keyed: which numbers are drawn follows from offsets that the app itself has
    written.
    """
    app = tr.App("draws", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at")
    again = app.topic("again", Tick, key=lambda one: one.n % 3, key_type=int, event_time="at")

    @app.process(ones)
    def rekey(event: Tick, ctx: tr.Context[str]) -> None:
        ctx.emit(again, event)

    @app.actor
    class Sample(tr.Actor):
        drawn: tr.MapState[int, float]

        @tr.process(again)
        def draw(self, event: Tick, ctx: tr.Context[int]) -> None:
            self.drawn[event.n] = ctx.random.random()

    return app
