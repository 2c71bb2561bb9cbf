"""An app whose events go through topics of its own, and fail there until a price is known."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.records import Output


class Order(msgspec.Struct, frozen=True):
    order: str
    item: str
    quantity: int
    at: int


class Price(msgspec.Struct, frozen=True):
    item: str
    price: int
    at: int


class Sum(msgspec.Struct, frozen=True):
    item: str
    total: int
    at: int


def make_app(*, repartition: bool) -> tr.App:
    """Orders come by a hidden topic, or by one that a function writes."""
    app = tr.App("priced", partitions=2, on_error="dead-letter")
    prices = app.topic("prices", Price, key="item", event_time="at")
    sums = app.topic("sums", Sum, key="item", event_time="at")
    if repartition:
        orders = app.topic("orders", Order, key="item", event_time="at", repartition=True)
    else:
        raw = app.topic("raw", Order, key="order", event_time="at")
        orders = app.topic("orders", Order, key="item", event_time="at")

        @app.process(raw)
        def forward(event: Order, ctx: tr.Context[str]) -> None:
            ctx.emit(orders, event)

    @app.actor
    class Item(tr.Actor, order="arrival"):
        price: int = 0
        total: int = 0

        @tr.process(prices)
        def priced(self, event: Price, ctx: tr.Context[str]) -> None:
            self.price = event.price

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            if not self.price:
                raise ValueError("no price yet")
            self.total += event.quantity * self.price
            ctx.emit(sums, Sum(ctx.key, self.total, event.at))

    return app


hidden = make_app(repartition=True)
shown = make_app(repartition=False)


def record(topic: str, event: Order | Price) -> Output:
    key = event.order if topic == "raw" and isinstance(event, Order) else event.item
    return Output(topic, key.encode(), msgspec.json.encode(event), event.at)
