"""An app that sends itself messages and writes a topic that it reads, whose code can be wrong."""

from __future__ import annotations

import os
from random import Random

import msgspec

import tailrace as tr
from tailrace.core.records import Output


def wrong() -> str:
    """The mistake that the code is to have, from the environment: all processes of a rebuild have it."""
    return os.environ.get("PAYMENTS_WRONG", "")


LARGE = 60
MINUTE_MS = 60_000


class Paid(msgspec.Struct):
    customer: str
    at: int
    amount: int


class Large(msgspec.Struct):
    region: str
    at: int
    amount: int


class Share(msgspec.Struct):
    amount: int


class Window(msgspec.Struct):
    region: str
    end: int
    amount: int


def region_of(customer: str) -> str:
    return f"region-{sum(customer.encode()) % 3}"


def make_app(version: str = "1") -> tr.App:
    app = tr.App("payments", partitions=2, version=version)
    paid = app.topic("paid", Paid, key="customer", event_time="at", out_of_order=0)
    large = app.topic("large", Large, key="region", event_time="at")
    windows = app.topic("windows", Window, key="region", event_time="end")

    @app.actor
    class Account(tr.Actor):
        total: int = 0

        @tr.process(paid)
        def paid_in(self, event: Paid, ctx: tr.Context[str]) -> None:
            self.total += event.amount
            if wrong() != "none":
                ctx.send(Region, region_of(event.customer), Share(event.amount * (1 + (wrong() == "amount"))))
            if event.amount >= LARGE:
                amount = 1 if wrong() == "topic" else event.amount
                ctx.emit(large, Large(region_of(event.customer), event.at, amount))

    @app.actor
    class Region(tr.Actor):
        total: int = 0

        @tr.on_message
        def share(self, message: Share, ctx: tr.Context[str]) -> None:
            self.total += message.amount

    @app.actor
    class Desk(tr.Actor):
        open: dict[str, int] = tr.field(default_factory=dict)

        @tr.process(large)
        def seen(self, event: Large, ctx: tr.Context[str]) -> None:
            end = event.at // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1
            self.open[str(end)] = self.open.get(str(end), 0) + event.amount
            ctx.set_timer(end, f"end:{end}")

        @tr.on_timer("end")
        def ended(self, ctx: tr.Context[str]) -> None:
            end = str(ctx.timer_name).partition(":")[2]
            ctx.emit(windows, Window(ctx.key, int(end), self.open.pop(end)))

    return app


app = make_app()
corrected = make_app("2")


def payments(count: int, seed: int = 1, first_ms: int = 0) -> list[Paid]:
    random, at, found = Random(seed), first_ms, list[Paid]()
    for _ in range(count):
        at += random.choice((0, 500, 3_000, 20_000))
        found.append(Paid(f"customer-{random.randrange(9)}", at, random.randint(1, 100)))
    return found


def outputs(events: list[Paid]) -> list[Output]:
    encode = msgspec.json.encode
    return [Output("paid", one.customer.encode(), encode(one), one.at) for one in events]
