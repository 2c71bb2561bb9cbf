"""An app whose code is wrong at first: some orders fail, and some timers. And what it has to come to, by
plain reading.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

import tailrace as tr
from tailrace.core.engine.redriven import REDRIVEN_HEADER
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of


def broken_now() -> frozenset[str]:
    """What is broken, from the environment: all processes have it."""
    return frozenset(os.environ.get("ORDERS_BROKEN", "orders timers").split())


OUT_OF_ORDER = 10
WAITS = 50
CUSTOMERS = "abcdef"


class Order(msgspec.Struct):
    customer: str
    at: int
    cents: int


class Total(msgspec.Struct):
    customer: str
    cents: int


app = tr.App("orders", partitions=2, on_error="dead-letter")
_orders = app.topic("orders", Order, key="customer", event_time="at", out_of_order=OUT_OF_ORDER, late="drop")
_totals = app.topic("totals", Total, key="customer")


@app.actor
class Customer(tr.Actor):
    cents: int = 0
    late: int = 0
    closed: int = 0

    @tr.process(_orders)
    def ordered(self, order: Order, ctx: tr.Context[str]) -> None:
        if order.cents == 13 and "orders" in broken_now():
            raise ValueError("13 brings bad luck")
        if order.cents == 14 and "always" in broken_now():
            raise ValueError("14 brings bad luck")
        self.cents += order.cents
        self.late += ctx.is_late
        ctx.set_timer(order.at + WAITS, "closing")
        ctx.emit(_totals, Total(ctx.key, self.cents))

    @tr.on_timer("closing")
    def closing(self, ctx: tr.Context[str]) -> None:
        if self.cents % 3 == 0 and "timers" in broken_now():
            raise RuntimeError("a third is bad luck")
        self.closed += 1


def some_orders(random: Random, count: int, start: int = 1_000) -> list[Output]:
    """Orders, about in order of time, some of which fail, and some of which are late."""
    found: list[Output] = []
    for _ in range(count):
        start += random.randint(0, 12)
        at = start - random.choice((0, 0, 0, 5, 40))
        cents = random.choice((13, 13, *range(1, 13)))
        found.append(record(Order(random.choice(CUSTOMERS), at, cents)))
    return found


def record(order: Order) -> Output:
    return Output("orders", order.customer.encode(), msgspec.json.encode(order), order.at)


# --- by plain reading
# ------------------------------------------------------------------------------------------------


@dataclass
class Account:
    cents: int = 0
    late: int = 0
    closed: int = 0
    due: int | None = None


@dataclass
class Books:
    """The customers of one partition, as ``app`` has to keep them. ``broken`` as in ``broken_now``."""

    accounts: dict[str, Account] = field(default_factory=dict[str, Account])

    def ordered(self, order: Order, broken: frozenset[str], *, late: bool) -> bool:
        """Whether it did not fail."""
        if order.cents == 13 and "orders" in broken:
            return False
        one = self.accounts.setdefault(order.customer, Account())
        one.cents += order.cents
        one.late += late
        one.due = order.at + WAITS
        return True

    def fire(self, watermark: int, broken: frozenset[str]) -> None:
        for one in self.accounts.values():
            if one.due is not None and one.due <= watermark:
                one.due = None
                one.closed += not (one.cents % 3 == 0 and "timers" in broken)

    def latest(self) -> int:
        return max((one.due for one in self.accounts.values() if one.due is not None), default=0)


Runs = Sequence[tuple[Sequence[InputRecord], frozenset[str]]]
"""Of one partition: what each run of the service has read, and how its code was broken."""


def kept_books(runs: Runs) -> Books:
    """What the service has come to: each run ends with the end of input, as a bounded one does."""
    first = Books()
    highest = watermark = 0
    for records, broken in runs:
        for one in records:
            order = msgspec.json.decode(one.value or b"", type=Order)
            late = order.at <= watermark
            redriven = any(name == REDRIVEN_HEADER for name, _ in one.headers)
            if redriven or not late:
                first.ordered(order, broken, late=late)
            highest = max(highest, order.at)
            watermark = max(watermark, highest - OUT_OF_ORDER - 1)
            first.fire(watermark, broken)
        watermark = max(watermark, first.latest())
        first.fire(watermark, broken)
    return first


def place_of(customer: str) -> int:
    return partition_of(customer.encode(), 2)
