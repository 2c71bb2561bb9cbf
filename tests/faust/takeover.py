"""An app that takes over from a Faust app which counts orders: its table, and the orders that follow."""

from __future__ import annotations

import msgspec

import tailrace as tr


class Counted(msgspec.Struct, frozen=True):
    """A row of the table."""

    key: tr.Key[str]
    value: int
    at_ms: tr.EventTime[int]


class Order(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at_ms: tr.EventTime[int]
    deletes: bool = False


class HourCounted(Counted, frozen=True):
    """A row of a table with windows."""

    start_ms: int
    end_ms: int


class Kept(msgspec.Struct, frozen=True):
    first_ms: int
    orders: list[Order]


class RowKept(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    value: Kept
    at_ms: tr.EventTime[int]


class Total(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    count: int


app = tr.App("takeover", partitions=3)
counts = app.topic("counts", Counted, idle_after="1s")
hours = app.topic("hours", HourCounted, idle_after="1s")
kept = app.topic("kept", RowKept, idle_after="1s")
orders = app.topic("orders", Order, out_of_order="1m")
totals = app.topic("totals", Total)


@app.actor
class Customer(tr.Actor, order="arrival"):
    count: int = 0

    @tr.process(counts)
    def counted(self, row: Counted, ctx: tr.Context[str]) -> None:
        self.count = row.value  # whatever was handled before it would be lost
        ctx.emit(totals, Total(ctx.key, self.count))

    @tr.process(orders)
    def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
        self.count = 0 if order.deletes else self.count + 1
        ctx.emit(totals, Total(ctx.key, self.count))


@app.actor
class Past(tr.Actor, order="arrival"):
    """What other tables had of a customer."""

    by_hour: tr.MapState[int, int]
    last: Kept | None = None

    @tr.process(hours)
    def counted(self, row: HourCounted, ctx: tr.Context[str]) -> None:
        self.by_hour[row.start_ms] = row.value

    @tr.process(kept)
    def was_kept(self, row: RowKept, ctx: tr.Context[str]) -> None:
        self.last = row.value
