"""An app for the tests of commands: purchases of customers, some of which cannot be handled."""

from __future__ import annotations

from datetime import datetime

import msgspec

import tailrace as tr


class Purchase(msgspec.Struct):
    customer: str
    at_ms: int
    cents: int
    note: str = ""


class Visit(msgspec.Struct):
    customer: int
    at: datetime


class Total(msgspec.Struct):
    customer: str
    cents: int


app = tr.App("shop", partitions=3, on_error="dead-letter")
late = app.topic("late-purchases", Purchase, key="customer", key_type=str, event_time="at_ms")
purchases = app.topic(
    "purchases", Purchase, key="customer", key_type=str, event_time="at_ms", out_of_order="1h", late=late
)
visits = app.topic("visits", Visit, key="customer", key_type=int, event_time="at", format="msgpack")
totals = app.topic("totals", Total, key="customer", key_type=str)

REFUSED = {13}
"""Cents that the handler does not like; a test mends it by taking them out."""


@app.actor
class Customer(tr.Actor):
    cents: int = 0

    @tr.process(purchases)
    def bought(self, purchase: Purchase, ctx: tr.Context[str]) -> None:
        if purchase.cents in REFUSED:
            raise ValueError(f"{purchase.cents} brings bad luck")
        if purchase.note == "timer":
            ctx.set_timer(purchase.at_ms, "fails")
        self.cents += purchase.cents
        self._tell(ctx)

    @tr.on_timer("fails")
    def failed(self, ctx: tr.Context[str]) -> None:
        raise RuntimeError("a timer fails")

    def _tell(self, ctx: tr.Context[str]) -> None:
        ctx.emit(totals, Total(ctx.key, self.cents))
