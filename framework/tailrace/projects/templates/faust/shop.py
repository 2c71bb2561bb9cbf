"""Counts the orders of each customer, from where a Faust app has stopped.

The table of the Faust app is an input with one event for each key. Its event times are before those of the orders that follow.
"""

import tailrace as tr
from schemas.orders import Counted, Order, Total

# The name must not be the id of the Faust app, and the partitions must be as many as its topics have.
app = tr.App("shop", partitions=4)
counts = app.topic("counts", Counted, idle_after="1s", late="handle")
orders = app.topic("orders", Order, out_of_order="1m", idle_after="5s", late="handle")
totals = app.table("totals", Total)


@app.actor
class Customer(tr.Actor, order="event-time"):
    """One instance for each customer. Its fields are durable, and it handles one event at a time."""

    count: int = 0

    @tr.process(counts)
    def counted(self, row: Counted, ctx: tr.Context[str]) -> None:
        self.count += row.value
        ctx.emit(totals, Total(ctx.key, self.count))

    @tr.process(orders)
    def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.emit(totals, Total(ctx.key, self.count))
