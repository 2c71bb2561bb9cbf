"""An app that takes over from a Faust app which counts orders: its table, and the orders that follow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

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


regrouped = tr.App("regrouped", partitions=3)
regrouped_counts = regrouped.topic("counts", Counted, idle_after="1s")
by_number = regrouped.topic("orders", Order, out_of_order="1m", repartition=True)
left = regrouped.topic(
    "shop-shop.count-orders-Order.key-repartition", Order, out_of_order="1m", repartition=True
)
"""What Faust had grouped by customer and not counted."""
regrouped_totals = regrouped.topic("totals", Total)


@regrouped.actor
class Grouped(tr.Actor, order="arrival"):
    count: int = 0

    @tr.process(regrouped_counts)
    def counted(self, row: Counted, ctx: tr.Context[str]) -> None:
        self.count = row.value
        ctx.emit(regrouped_totals, Total(ctx.key, self.count))

    @tr.process(by_number, left)
    def ordered(self, _order: Order, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.emit(regrouped_totals, Total(ctx.key, self.count))


# --- event times as Faust apps have them


class Naive(msgspec.Struct, frozen=True):
    """``datetime.utcnow()``, which JSON has without a zone."""

    key: tr.Key[str]
    at: datetime


class Seconds(msgspec.Struct, frozen=True):
    """``time.time()``."""

    key: tr.Key[str]
    at: float


def timed(name: str, type_: Any, event_time: Callable[[Any], Any]) -> tr.App:
    made = tr.App(name, partitions=3)
    rows = made.topic("counts", Counted, idle_after="1s")
    events = made.topic("orders", type_, event_time=event_time, out_of_order="1m")

    @made.actor
    class Ordered(tr.Actor, order="event-time"):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(rows)
        def counted(self, row: Counted, ctx: tr.Context[str]) -> None:
            self.times.append(row.value)

        @tr.process(events)
        def ordered(self, event: Any, ctx: tr.Context[str]) -> None:
            self.times.append(ctx.event_time)

    return made


naive = timed("naive", Naive, lambda event: event.at.replace(tzinfo=UTC))
seconds = timed("seconds", Seconds, lambda event: round(event.at * 1_000))
