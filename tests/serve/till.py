"""An app with tables of several kinds of keys, one of them only read."""

from __future__ import annotations

import msgspec

import tailrace as tr


class Sale(msgspec.Struct, frozen=True):
    shop: tr.Key[str]
    euros: int


class Revenue(msgspec.Struct, tr.Keyed[str], frozen=True, rename="camel"):
    shop: tr.Key[str]
    euros: int
    last_seller: str = "nobody"


class Price(msgspec.Struct, tr.Keyed[int], frozen=True):
    item: tr.Key[int]
    cents: int


class Stock(msgspec.Struct, frozen=True, omit_defaults=True):
    shop: str
    item: int
    left: int
    shelf: str = "none"


PARTITIONS = 3
app = tr.App("till", partitions=PARTITIONS)
sales = app.topic("sales", Sale)
revenues = app.table("revenues", Revenue)
prices = app.table("prices", Price, format="msgpack")
stocks = app.table("stocks", Stock, key=("shop", "item"))
same = app.table("Both", Price)


@app.actor
class Shop(tr.Actor):
    euros: int = 0

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
        self.euros += event.euros
        if self.euros:
            ctx.emit(revenues, Revenue(ctx.key, self.euros))
        else:
            ctx.delete(revenues, ctx.key)


@app.actor
class Both(tr.Actor):
    """Has the name of a table."""

    cents: int = 0

    @tr.process(same)
    def set(self, event: Price, ctx: tr.Context[int]) -> None:
        self.cents = event.cents


@app.process(prices)
def priced(event: Price, ctx: tr.Context[int]) -> None: ...


@app.process(stocks)
def stocked(event: Stock, ctx: tr.Context[tuple[str, int]]) -> None: ...
