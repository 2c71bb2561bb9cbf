"""An app that stops at a bad sale, until TEST_CORRECTED is set: then it leaves it out."""

from __future__ import annotations

import os

import msgspec

import tailrace as tr
from tests.runtime.measured import Sale


class Total(msgspec.Struct):
    shop: str
    total: float


app = tr.App("stopping", partitions=2)
sales = app.topic("sales", Sale, key="shop", event_time="at", ahead_of_clock=None)
totals = app.topic("totals", Total, key="shop")


@app.actor
class Shop(tr.Actor):
    total: float = 0.0

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
        if event.amount < 0 and not os.environ.get("TEST_CORRECTED"):
            raise ValueError(f"a negative amount:\n{event.amount}")
        self.total += max(0.0, event.amount)
        ctx.emit(totals, Total(ctx.key, self.total))
