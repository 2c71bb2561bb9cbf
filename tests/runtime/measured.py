"""An app that measures what it does."""

from __future__ import annotations

import msgspec

import tailrace as tr


class Sale(msgspec.Struct):
    shop: str
    at: int
    amount: float


class Report(msgspec.Struct):
    shop: str
    total: float


app = tr.App("measured", partitions=2)
sales = app.topic(
    "sales", Sale, key="shop", event_time="at", out_of_order="1s", on_error="dead-letter", ahead_of_clock=None
)
reports = app.topic("reports", Report, key="shop")


@app.actor
class Shop(tr.Actor):
    total: float = 0.0

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context) -> None:
        ctx.metrics.count("sales-seen")
        ctx.metrics.count("turnover", abs(event.amount))
        ctx.metrics.gauge("last.amount", event.amount)
        ctx.metrics.observe("amount", event.amount)
        if event.amount < 0:
            raise ValueError("a negative amount")
        if event.amount > 1_000:
            ctx.metrics.gauge("sales_seen", 1)  # a name that is taken
        self.total += event.amount
        ctx.set_timer(event.at + 10_000, name="report")
        if ctx.is_late:
            ctx.metrics.count("late_sales_total")

    @tr.on_timer("report")
    def report(self, ctx: tr.Context) -> None:
        ctx.emit(reports, Report(ctx.key, self.total))
