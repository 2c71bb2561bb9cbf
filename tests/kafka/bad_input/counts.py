"""An app that has run before another producer comes, and the two ways on after the error."""

from __future__ import annotations

import os
from typing import Any

import msgspec

import tailrace as tr


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something was ordered."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The number of orders of a key."""

    key: tr.Key[str]
    count: int


def made(**options: Any) -> tr.App:
    """The app, with these options of its input."""
    app = tr.App("counts", partitions=3)
    orders = app.topic("orders", Order, **options)
    totals = app.topic("totals", Total)

    @app.actor(name="Counter")
    class Counter(tr.Actor, order="event-time" if os.environ.get("COUNTS_ORDERED") else "arrival"):
        """Counts."""

        count: int = 0

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            """Count, and say so."""
            self.count += 1
            ctx.emit(totals, Total(ctx.key, self.count))

    return app


app = made()
dead_lettering = made(on_error="dead-letter")
repartitioned = made(repartition=True)
