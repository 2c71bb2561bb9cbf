"""Apps that read one topic: one fails at some events, one at others, one at none. And what each of them
should have counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

import tailrace as tr
from tailrace.core.records import InputRecord, Output
from tests.history.rebuilding.lived import TaskState, fields


def broken_now() -> frozenset[str]:
    """What is broken, from the environment: all processes have it."""
    return frozenset(os.environ.get("SHARING_BROKEN", "").split())


FAILS_AT = {"shop": (13, 14), "audit": (7, 13)}
OUT_OF_ORDER = 10


class Order(msgspec.Struct):
    customer: str
    at: int
    cents: int
    id: int


class Seen(msgspec.Struct):
    customer: str
    id: int


def make_app(name: str) -> tr.App:
    app = tr.App(name, partitions=2, on_error="dead-letter")
    orders = app.topic("orders", Order, key="customer", event_time="at", out_of_order=OUT_OF_ORDER)
    seen = app.topic(f"{name}-seen", Seen, key="customer")

    @app.actor
    class Customer(tr.Actor):
        ids: list[int] = tr.field(default_factory=list)

        @tr.process(orders)
        def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
            if name in broken_now() and order.cents in FAILS_AT[name]:
                raise ValueError(f"{order.cents} brings bad luck")
            self.ids.append(order.id)
            ctx.emit(seen, Seen(ctx.key, order.id))

    return app


shop = make_app("shop")
audit = make_app("audit")
ledger = make_app("ledger")
fresh = make_app("fresh")


def record(order: Order) -> Output:
    return Output("orders", order.customer.encode(), msgspec.json.encode(order), order.at)


def originals(records: Iterable[InputRecord]) -> list[Order]:
    """What producers have appended."""
    return [msgspec.json.decode(one.value or b"", type=Order) for one in records]


def counted(ids: Iterable[Order]) -> dict[str, list[int]]:
    """Each event once, by customer, in order of the ids."""
    found: dict[str, list[int]] = {}
    for one in ids:
        found.setdefault(one.customer, []).append(one.id)
    return {customer: sorted(some) for customer, some in found.items()}


def late_of(orders: Iterable[Order]) -> int:
    """How many of one partition's events are late, by plain reading in their order."""
    watermark = late = 0
    for one in orders:
        late += one.at <= watermark
        watermark = max(watermark, one.at - OUT_OF_ORDER - 1)
    return late


def ids(states: list[TaskState]) -> dict[str, list[int]]:
    """What the customers of an app have counted, by its rows."""
    return {key: sorted(one["ids"]) for (_, key), one in fields(states).items()}
