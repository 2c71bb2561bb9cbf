"""An app with every kind of node and edge, for tests of the graph."""

from __future__ import annotations

import sys

import msgspec

import tailrace as tr


class Order(msgspec.Struct):
    id: str
    customer: str
    at: int


class Priced(msgspec.Struct):
    customer: str
    cents: int


class Ping(msgspec.Struct):
    number: int


app = tr.App("market", on_error="dead-letter", partitions=3)
late = app.topic("late-orders", Order, key="id", key_type=str)
orders = app.topic(
    "orders", Order, key="customer", key_type=str, event_time="at",
    out_of_order="90s", late=late, repartition=True,
)  # fmt: skip
prices = app.stream("prices", Priced)
bills = app.topic("bills", Priced, key="customer", key_type=str)
audit = app.topic("audit", Priced, key="customer", key_type=str)
silent = app.topic("silent", Priced, key="customer", key_type=str)
this = sys.modules[__name__]


def on_progress(ctx: tr.Context[str], event: Priced) -> None:
    this.deeper(ctx, event)


def deeper(ctx: tr.Context[str], event: Priced) -> None:
    ctx.emit(this.audit, event)
    if event.cents < 0:
        on_progress(ctx, event)


@app.process(orders)
def price(event: Order, ctx: tr.Context[str]) -> None:
    ctx.emit(prices, Priced(event.customer, len(event.id)))


class Billing(tr.Actor):
    """What several actors have in common."""

    def bill(self, event: Priced, ctx: tr.Context[str]) -> None:
        ctx.emit(bills, event)


@app.actor
class Customer(Billing):
    total: int = 0

    @tr.process(prices)
    def priced(self, event: Priced, ctx: tr.Context[str]) -> None:
        self.bill(event, ctx)
        ctx.send(Board, "all", Ping(1))
        later = [lambda: on_progress(ctx, event)]
        later[0]()

    @tr.process(bills)
    def billed(self, event: Priced, ctx: tr.Context[str]) -> None:
        ctx.set_timer(5, "closing")

    @tr.on_timer("closing")
    def closing(self, ctx: tr.Context[str]) -> None: ...

    @tr.query
    def sum(self) -> int:
        return self.total


@app.actor
class Board(tr.Actor):
    seen: int = 0

    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None:
        self.seen += message.number


ledger = tr.App("ledger", partitions=3)
booked = ledger.topic("audit", Priced, key="customer", key_type=str, event_time=tr.ARRIVAL_TIME)


@ledger.actor
class Account(tr.Actor):
    cents: int = 0

    @tr.process(booked)
    def book(self, event: Priced, ctx: tr.Context[str]) -> None:
        self.cents += event.cents
