"""An app whose key function does not return for one key."""

from __future__ import annotations

import time

import msgspec

import tailrace as tr


class Order(msgspec.Struct):
    who: str
    at: int


def key_of(order: Order) -> str:
    if order.who == "stuck":
        time.sleep(3_600)
    return order.who


app = tr.App("stuck-key", partitions=1)
orders = app.topic("orders", Order, key=key_of, event_time="at")


@app.actor
class Counts(tr.Actor):
    count: int = 0

    @tr.process(orders)
    def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
        self.count += 1
