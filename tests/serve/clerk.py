"""An app whose handler refuses some amounts; those events are dead letters."""

from __future__ import annotations

import msgspec

import tailrace as tr

CLERK = "tests.serve.clerk:app"
refused = {13}


class Order(msgspec.Struct):
    customer: str
    amount: int
    at: int


app = tr.App("clerk", partitions=1, on_error="dead-letter")
orders = app.topic("orders", Order, key="customer", event_time="at", out_of_order=0)


@app.actor
class Customer(tr.Actor):
    total: int = 0

    @tr.process(orders)
    def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
        if event.amount in refused:
            raise ValueError(f"{event.amount} is refused")
        self.total += event.amount
