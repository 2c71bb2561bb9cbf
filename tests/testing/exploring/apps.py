"""Apps that do not depend on the schedule, and apps that do, each in one way; some of them say so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

import tailrace as tr

MINUTE_MS = 60_000


class Tick(msgspec.Struct, frozen=True):
    key: str
    at: int
    n: int = 0


class Said(msgspec.Struct, frozen=True):
    key: str
    what: str


class Checkout(msgspec.Struct, frozen=True):
    user: str
    order: str
    at: int


class Payment(msgspec.Struct, frozen=True):
    user: str
    order: str
    at: int


class Outcome(msgspec.Struct, frozen=True):
    order: str
    what: str


def shop(*, by_events: bool = False) -> tr.App:
    """Orders join checkouts with payments, which have to be re-keyed. ``by_events``: their watermark follows their events."""
    app = tr.App("shop", partitions=4)
    done = app.topic("done", Outcome, key="order")
    checkouts = app.topic("checkouts", Checkout, key="order", event_time="at")
    payments = app.topic("payments", Payment, key="user", event_time="at")
    watermark: Any = {"watermark": True} if by_events else {}
    paid = app.topic("paid", Payment, key="order", event_time="at", **watermark)

    @app.process(payments)
    def rekey(event: Payment, ctx: tr.Context[str]) -> None:
        ctx.emit(paid, event)

    @app.actor
    class Order(tr.Actor, order="arrival"):
        is_placed: bool = False
        is_paid: bool = False
        is_done: bool = False

        @tr.process(checkouts)
        def place(self, event: Checkout, ctx: tr.Context[str]) -> None:
            self.is_placed = True
            if self.is_paid:
                self.finish(ctx, "paid")
            else:
                ctx.set_timer(event.at + 15 * MINUTE_MS, "unpaid")

        @tr.process(paid)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.is_paid = True
            if self.is_placed:
                self.finish(ctx, "paid")

        @tr.on_timer("unpaid")
        def unpaid(self, ctx: tr.Context[str]) -> None:
            self.finish(ctx, "unpaid")

        def finish(self, ctx: tr.Context[str], what: str) -> None:
            if not self.is_done:
                self.is_done = True
                ctx.cancel_timer("unpaid")
                ctx.emit(done, Outcome(ctx.key, what))

    return app


def sales(app: tr.App, count: int = 60) -> Iterator[tuple[tr.Topic[Any, Any], Checkout | Payment]]:
    """A checkout every minute, paid a minute later; every other one by the same user."""
    for number in range(count):
        at, order = number * MINUTE_MS, f"o{number}"
        user = "big" if number % 2 else f"u{number % 7}"
        yield app.topics["checkouts"], Checkout(user, order, at)
        yield app.topics["payments"], Payment(user, order, at + MINUTE_MS)


def two_inputs(name: str, **options: Any) -> tuple[tr.App, tr.Topic[Tick, str], tr.Topic[Tick, str]]:
    """An app with two inputs of ticks, of which the first one has the options."""
    app = tr.App(name, partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at", **options)
    return app, ones, app.topic("twos", Tick, key="key", event_time="at")


def last_write_wins(event_time: Any = "at") -> tr.App:
    """Two inputs set the same field."""
    app = tr.App("last", partitions=2)
    ones, twos = (app.topic(name, Tick, key="key", event_time=event_time) for name in ("ones", "twos"))

    @app.actor
    class Last(tr.Actor, order="arrival"):
        value: int = 0

        @tr.process(ones, twos)
        def set(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value = event.n

    return app


def counts(*, outside: bool = False) -> tr.App:
    """Two inputs are added up, in whatever order. ``outside``: the handler uses what the process has counted so far."""
    app, ones, twos = two_inputs("counts")
    said = app.topic("said", Said, key="key")
    calls = itertools.count()

    @app.actor
    class Sum(tr.Actor, order="arrival"):
        value: int = 0
        by_number: tr.MapState[int, int]

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value += event.n
            self.by_number[event.n] = self.by_number.get(event.n, 0) + 1
            if outside:
                ctx.emit(said, Said(ctx.key, str(next(calls))))

    return app


def reference_data(on_error: Literal["stop", "dead-letter"] = "stop", *, strict: bool = False) -> tr.App:
    """Prices that are not waited for. ``strict``: as long as there is none, the handler fails."""
    app = tr.App("prices", partitions=2, on_error=on_error)
    prices = app.topic("ones", Tick, key="key", event_time="at", watermark=False)
    sold = app.topic("twos", Tick, key="key", event_time="at")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Item(tr.Actor, order="arrival"):
        price: int | None = None

        @tr.process(prices)
        def priced(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.price = 1 if strict else event.n

        @tr.process(sold)
        def sell(self, event: Tick, ctx: tr.Context[str]) -> None:
            if strict and self.price is None:
                raise ValueError("no price")
            ctx.emit(said, Said(ctx.key, f"sold at {self.price}"))

    return app


def timer_at_once() -> tr.App:
    """A timer at an event's own time, to answer "right after it": by then later events may have
    been handled.
    """
    app, ones, twos = two_inputs("at-once")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Sum(tr.Actor, order="arrival"):
        value: int = 0

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value += event.n
            ctx.set_timer(event.at, f"tell:{event.at}")

        @tr.on_timer("tell")
        def report(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, f"{ctx.timer_name} {self.value}"))

    return app


def windows(event_time: Any = "at", late: str = "", **options: Any) -> tr.App:
    """Windows of ten seconds by hand, over two inputs with these options. ``late``: what happens to late events."""
    app = tr.App("windows", partitions=2)
    too_late = app.topic("too-late", Tick, key="key", event_time="at")
    if late:
        options["late"] = too_late if late == "route" else late
    ones, twos = (
        app.topic(name, Tick, key="key", event_time=event_time, **options) for name in ("ones", "twos")
    )
    sums = app.topic("sums", Tick, key="key")

    @app.actor
    class Window(tr.Actor, order="arrival"):
        open: tr.MapState[int, int]

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            end = ctx.event_time - ctx.event_time % 10_000 + 10_000
            self.open[end] = self.open.get(end, 0) + event.n
            ctx.set_timer(end - 1)

        @tr.on_timer
        def complete(self, ctx: tr.Context[str]) -> None:
            ctx.emit(sums, Tick(ctx.key, ctx.event_time, self.open.pop(ctx.event_time + 1)))

    return app


def remembers(*, references: bool) -> tr.App:
    """An entry with a time to live is written by a timer, or for an event of ``references``, which are not waited for."""
    options: dict[str, Any] = {"watermark": False} if references else {}
    app, ones, twos = two_inputs("remembers", **options)

    @app.actor
    class Remembering(tr.Actor, order="arrival"):
        seen: tr.MapState[int, int] = tr.field(ttl="1h")
        count: int = 0

        @tr.process(ones)
        def remember(self, event: Tick, ctx: tr.Context[str]) -> None:
            if references:
                self.seen[event.at] = 1
            else:
                ctx.set_timer(event.at + 5_000)

        @tr.process(twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.count += 1

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            self.seen[ctx.event_time] = 1

    return app


def last_write_is_passed_on() -> tr.App:
    """What depends on the schedule in one actor is emitted by its timer, and kept by another one."""
    app, ones, twos = two_inputs("passed-on")
    lasts = app.topic("lasts", Tick, key=lambda one: one.key[::-1], key_type=str, event_time="at")

    @app.actor
    class Last(tr.Actor, order="arrival"):
        value: int = 0

        @tr.process(ones, twos)
        def set(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value = event.n
            ctx.set_timer(1_000_000, "end")

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            ctx.emit(lasts, Tick(ctx.key, ctx.event_time, self.value))

    @app.actor
    class Copy(tr.Actor):
        value: int = 0

        @tr.process(lasts)
        def set(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value = event.n

    return app


def passes_on() -> tr.App:
    """Two inputs are passed on to one topic as they come."""
    app, ones, twos = two_inputs("passes")
    said = app.topic("said", Said, key="key")

    @app.process(ones, twos, order="arrival")
    def pass_on(event: Tick, ctx: tr.Context[str]) -> None:
        ctx.emit(said, Said(ctx.key, str(event.n)))

    return app


def asks_whether_it_is_late() -> tr.App:
    """The handler treats late events in a way of its own."""
    app, ones, twos = two_inputs("asks")
    said = app.topic("said", Said, key="key")

    @app.actor
    class Asking(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(ones, twos)
        def one(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.seen += 1
            if ctx.is_late:
                ctx.emit(said, Said(ctx.key, f"late: {event.n}"))

    return app


def notes(what: Literal["now", "random"]) -> tr.App:
    """A handler notes when it was called, or samples: the numbers of a timer follow from the event that has set it last."""
    app = tr.App("notes", partitions=2)
    ones = app.topic("ones", Tick, key=lambda one: one.n % 7, key_type=int, event_time="at")
    again = app.topic("again", Tick, key=lambda one: one.n % 4, key_type=int, event_time="at")

    @app.process(ones)
    def rekey(event: Tick, ctx: tr.Context[int]) -> None:
        ctx.emit(again, event)

    @app.actor
    class Noting(tr.Actor, order="arrival"):
        noted: tr.MapState[int, float]

        @tr.process(again)
        def note(self, event: Tick, ctx: tr.Context[int]) -> None:
            if what == "now":
                self.noted[event.n] = ctx.now
            else:
                ctx.set_timer(event.at - event.at % 60_000 + 60_000)

        @tr.on_timer
        def sample(self, ctx: tr.Context[int]) -> None:
            self.noted[ctx.event_time] = ctx.random.random()

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


def ticks(app: tr.App, count: int = 40, keys: int = 3) -> Iterator[tuple[tr.Topic[Any, Any], Tick]]:
    """Events of the topics ``ones`` and ``twos`` (as far as the app has them), a few seconds apart."""
    for number in range(count):
        for at, name in enumerate(("ones", "twos")):
            if name in app.topics:
                key = f"k{(number + at) % keys}"
                yield app.topics[name], Tick(key, number * 7_000 + at * 3_000, number * 2 + at)
