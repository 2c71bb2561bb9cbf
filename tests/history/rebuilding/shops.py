"""An app whose code can be wrong in many ways: what a rebuild has to notice."""

from __future__ import annotations

import os
from random import Random
from typing import Annotated

import msgspec

import tailrace as tr
from tailrace.core.declare.topic import OnError
from tailrace.core.records import Output


def wrong() -> str:
    """The mistake that the code is to have, from the environment: all processes of a rebuild have it."""
    return os.environ.get("SHOPS_WRONG", "")


class Sale(msgspec.Struct):
    shop: str
    at: int
    cents: int


class StrictSale(Sale):
    """What does not take every sale any more."""

    at: Annotated[int, msgspec.Meta(le=2_500)]


class Total(msgspec.Struct):
    shop: str
    cents: int


def make_app(
    version: str = "1", sale: type[Sale] = Sale, on_error: OnError = "stop", partitions: int = 2
) -> tr.App:
    app = tr.App("shops", partitions=partitions, version=version, on_error=on_error)
    sales = app.topic("sales", sale, key="shop", event_time="at", out_of_order=10)
    totals = app.topic("totals", Total, key="shop")

    @app.actor
    class Shop(tr.Actor):
        cents: int = 0
        by_cents: tr.MapState[int, int]
        seen: list[str] = []

        @tr.process(sales)
        def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
            self.cents += event.cents + (1 if wrong() == "fee" else 0)
            self.by_cents[event.cents % 5] = self.by_cents.get(event.cents % 5, 0) + 1
            if wrong().startswith("fails") and event.cents == 77:
                raise ValueError("77 brings bad luck")
            if wrong() == "mistaken" and event.cents == 77:
                self.centss += 1  # type: ignore[attr-defined]  # misspelt on purpose
            if wrong() == "stores":
                self.seen = ["something else"]
            if event.shop == "shop-3" and wrong() == "sets":
                # The order of a set of texts is that of their hashes, which differ from process to process.
                self.seen = list({f"{event.cents}-{number}" for number in range(5)})
            for _ in range(2 if wrong() == "twice" else 1):
                ctx.emit(totals, Total(event.shop, self.cents))
            if wrong() == "says-more":
                ctx.emit(totals, Total(event.shop, -1))
            ctx.set_timer(event.at + 50, "closing")

        @tr.on_timer("closing")
        def closed(self, ctx: tr.Context[str]) -> None:
            self.cents -= 1

    return app


app = make_app()
strict = make_app(sale=StrictSale)
lenient = make_app(on_error="dead-letter")
lenient_in_all = make_app(on_error="dead-letter-all")
wider = make_app(partitions=3)


def sales(count: int, *, first: int = 0, shops: int = 8) -> list[Output]:
    chance = Random(first)
    return [
        Output("sales", sale.shop.encode(), msgspec.json.encode(sale), sale.at)
        for number in range(first, first + count)
        for sale in [Sale(f"shop-{chance.randrange(shops)}", 1_000 + 10 * number, chance.randrange(1, 70))]
    ]
