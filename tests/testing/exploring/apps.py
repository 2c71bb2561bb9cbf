"""Apps that do not depend on the schedule, and apps that do, each in one way."""

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


def shop(*, by_events: bool = False, repartition: bool = False) -> tr.App:
    """Orders join checkouts with payments, and both have to be re-keyed. ``by_events``: its watermark follows
    its events.
    """
    app = tr.App("shop", partitions=4)
    done = app.topic("done", Outcome, key="order")
    checkouts = app.topic("checkouts", Checkout, key="order", event_time="at")
    if repartition:
        paid = app.topic("payments", Payment, key="order", event_time="at", repartition=True)
    else:
        payments = app.topic("payments", Payment, key="user", event_time="at")
        paid = (
            app.topic("paid", Payment, key="order", event_time="at", watermark=True)
            if by_events
            else app.topic("paid", Payment, key="order", event_time="at")
        )

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


def last_write_wins() -> tr.App:
    """Two inputs set the same field."""
    app, ones, twos = two_inputs("last")

    @app.actor
    class Last(tr.Actor, order="arrival"):
        value: int = 0

        @tr.process(ones, twos)
        def set(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value = event.n

    return app


def counts() -> tr.App:
    """Two inputs are added up, in whatever order."""
    app, ones, twos = two_inputs("counts")

    @app.actor
    class Sum(tr.Actor, order="arrival"):
        value: int = 0
        by_number: tr.MapState[int, int]

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.value += event.n
            self.by_number[event.n] = self.by_number.get(event.n, 0) + 1

    return app


def global_counter() -> tr.App:
    """A handler that uses what the process has counted so far."""
    app = tr.App("global")
    ones = app.topic("ones", Tick, key="key", event_time="at")
    said = app.topic("said", Said, key="key")
    calls = itertools.count()

    @app.actor
    class Counting(tr.Actor):
        seen: int = 0

        @tr.process(ones)
        def count(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.seen += 1
            ctx.emit(said, Said(ctx.key, str(next(calls))))

    return app


def reference_data() -> tr.App:
    """Prices that are not waited for."""
    app, prices, sold = two_inputs("prices", watermark=False)
    said = app.topic("said", Said, key="key")

    @app.actor
    class Item(tr.Actor, order="arrival"):
        price: int | None = None

        @tr.process(prices)
        def priced(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.price = event.n

        @tr.process(sold)
        def sell(self, event: Tick, ctx: tr.Context[str]) -> None:
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


def windows() -> tr.App:
    """Windows of a minute by hand, over two inputs, per key; and of those the sums by minute, in a second
    step.
    """
    app = tr.App("windows", partitions=3)
    ones = app.topic("ones", Tick, key="key", event_time="at", out_of_order="5s")
    twos = app.topic("twos", Tick, key="key", event_time="at", out_of_order="5s")
    sums = app.topic(
        "sums", Tick, key=lambda one: "odd" if one.n % 2 else "even", key_type=str, event_time="at"
    )
    totals = app.topic("totals", Tick, key="key")

    @app.actor
    class PerKey(tr.Actor, order="arrival"):
        open: tr.MapState[int, int]

        @tr.process(ones, twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            end = event.at - event.at % MINUTE_MS + MINUTE_MS
            self.open[end] = self.open.get(end, 0) + event.n
            ctx.set_timer(end - 1)

        @tr.on_timer
        def complete(self, ctx: tr.Context[str]) -> None:
            ctx.emit(sums, Tick(ctx.key, ctx.event_time, self.open.pop(ctx.event_time + 1)))

    @app.actor
    class PerParity(tr.Actor):
        open: tr.MapState[int, int]

        @tr.process(sums)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            end = event.at - event.at % MINUTE_MS + MINUTE_MS
            self.open[end] = self.open.get(end, 0) + event.n
            ctx.set_timer(end - 1)

        @tr.on_timer
        def complete(self, ctx: tr.Context[str]) -> None:
            ctx.emit(totals, Tick(ctx.key, ctx.event_time, self.open.pop(ctx.event_time + 1)))

    return app


def remembers_from_a_timer() -> tr.App:
    """A timer handler writes an entry with a time to live."""
    app, ones, twos = two_inputs("remembers")

    @app.actor
    class Remembering(tr.Actor, order="arrival"):
        seen: tr.MapState[int, int] = tr.field(ttl="1h")

        @tr.process(ones, twos)
        def wait(self, event: Tick, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 5_000)

        @tr.on_timer
        def remember(self, ctx: tr.Context[str]) -> None:
            self.seen[ctx.event_time] = 1

    return app


def remembers_reference_data() -> tr.App:
    """What comes without regard to its event time is kept for an hour."""
    app, ones, twos = two_inputs("remembers-references", watermark=False)

    @app.actor
    class Remembering(tr.Actor, order="arrival"):
        seen: tr.MapState[int, int] = tr.field(ttl="1h")
        count: int = 0

        @tr.process(ones)
        def remember(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.seen[event.at] = 1

        @tr.process(twos)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.count += 1

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


def fails_without_a_price(on_error: Literal["stop", "dead-letter"] = "dead-letter") -> tr.App:
    """A handler that fails as long as the reference data is not there."""
    app = tr.App("strict-prices", partitions=2, on_error=on_error)
    prices = app.topic("ones", Tick, key="key", event_time="at", watermark=False)
    sold = app.topic("twos", Tick, key="key", event_time="at")

    @app.actor
    class Item(tr.Actor, order="arrival"):
        price: int | None = None
        count: int = 0

        @tr.process(prices)
        def priced(self, event: Tick, ctx: tr.Context[str]) -> None:
            self.price = 1

        @tr.process(sold)
        def sell(self, event: Tick, ctx: tr.Context[str]) -> None:
            if self.price is None:
                raise ValueError("no price")
            self.count += self.price

    return app


def passes_on() -> tr.App:
    """Two inputs are passed on to one topic as they come."""
    app, ones, twos = two_inputs("passes")
    said = app.topic("said", Said, key="key")

    @app.process(ones, twos, order="arrival")
    def pass_on(event: Tick, ctx: tr.Context[str]) -> None:
        ctx.emit(said, Said(ctx.key, str(event.n)))

    return app


def by_record_time() -> tr.App:
    """Windows of ten seconds by the timestamps of records."""
    app = tr.App("stamped", partitions=2)
    ones = app.topic("ones", Tick, key="key")
    twos = app.topic("twos", Tick, key="key")
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


def ticks(app: tr.App, count: int = 40, keys: int = 3) -> Iterator[tuple[tr.Topic[Any, Any], Tick]]:
    """Events of the topics ``ones`` and ``twos`` (as far as the app has them), a few seconds apart."""
    for number in range(count):
        for at, name in enumerate(("ones", "twos")):
            if name in app.topics:
                key = f"k{(number + at) % keys}"
                yield app.topics[name], Tick(key, number * 7_000 + at * 3_000, number * 2 + at)
