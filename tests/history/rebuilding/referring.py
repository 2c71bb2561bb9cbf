"""An app that reads a compacted topic: prices, of which only the last counts, and orders at the price of
their time.
"""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.records import Output

ROUNDS = 20


class Price(msgspec.Struct, frozen=True):
    thing: str
    at: int
    cents: int


class Order(msgspec.Struct, frozen=True):
    thing: str
    at: int


def make_app(version: str = "1", *, strict: bool = False) -> tr.App:
    """``strict``: an order without a price fails."""
    app = tr.App("referring", partitions=1, version=version)
    orders = app.topic("orders", Order, key="thing", event_time="at")
    prices = app.topic("prices", Price, key="thing", event_time="at")

    @app.actor
    class Bill(tr.Actor, order="arrival"):
        cents: int = 0
        total: int = 0
        bought: int = 0

        @tr.process(prices)
        def priced(self, event: Price, ctx: tr.Context[str]) -> None:
            self.cents = event.cents

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            if strict and not self.cents:
                raise ValueError("an order without a price")
            self.total += self.cents
            self.bought += 1

    return app


app = make_app()
newer = make_app("2", strict=True)


def records(first: int = 0) -> list[Output]:
    """Prices of 1, 2, 3, ... cents, every ten seconds, and five seconds after each an order."""
    rounds = range(first, first + ROUNDS)
    prices = [Price("a", at * 10_000, at + 1) for at in rounds]
    orders = [Order("a", at * 10_000 + 5_000) for at in rounds]
    return [
        Output(topic, b"a", msgspec.json.encode(one), one.at)
        for topic, events in (("prices", prices), ("orders", orders))
        for one in events
    ]


def bill(orders: int = ROUNDS) -> int:
    """The total of the first orders."""
    return sum(range(1, orders + 1))
