"""An app for the tests of the client: what customers have spent, as state and as a table."""

from __future__ import annotations

import msgspec

import tailrace as tr


class Paid(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    at_ms: tr.EventTime[int]
    cents: int


class Total(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    cents: int


app = tr.App("spent", partitions=3)
payments = app.topic("payments", Paid, out_of_order="1h")
totals = app.table("totals", Total)


@app.actor
class Customer(tr.Actor):
    cents: int = 0

    @tr.process(payments)
    def paid(self, event: Paid, ctx: tr.Context[str]) -> None:
        self.cents += event.cents
        ctx.emit(totals, Total(event.who, self.cents))
