"""Checkouts that get the key of their order, and are joined with payments: an operator of the library in the second round."""

from __future__ import annotations

from random import Random

import msgspec

import tailrace as tr
from tailrace.core.records import Output


class Checkout(msgspec.Struct, frozen=True):
    user: str
    order: str
    at: int


class Payment(msgspec.Struct, frozen=True):
    order: str
    at: int
    amount: int


class Paid(msgspec.Struct, tr.Keyed[str], frozen=True):
    order: tr.Key[str]
    at: tr.EventTime[int]
    user: str
    amount: int | None


app = tr.App("rekeyed", partitions=3)
checkouts = app.topic("checkouts", Checkout, key="user", event_time="at", out_of_order="10s")
placed = app.topic("placed", Checkout, key="order", event_time="at")
payments = app.topic("payments", Payment, key="order", event_time="at", out_of_order="10s")
paid = app.topic("paid", Paid)


@app.process(checkouts)
def by_order(event: Checkout, ctx: tr.Context[str]) -> None:
    ctx.emit(placed, event)


app.join("paying", placed, payments, within=("0s", "1m"), how="left", into=paid)

MINUTE_MS = 60_000


def history(seed: int) -> tuple[list[Checkout], list[Payment]]:
    random, at = Random(seed), 1_700_000_000_000
    ordered, settled = list[Checkout](), list[Payment]()
    for number in range(300):
        at += random.randint(0, 3_000)
        ordered.append(Checkout(f"u{random.randrange(20)}", f"o{number}", at))
        if random.random() < 0.8:
            settled.append(
                Payment(f"o{number}", at + random.randint(0, 2 * MINUTE_MS), random.randint(1, 99))
            )
    return ordered, sorted(settled, key=lambda one: one.at)


def outputs(ordered: list[Checkout], settled: list[Payment]) -> list[Output]:
    encode = msgspec.json.encode
    return [
        *(Output("checkouts", one.user.encode(), encode(one), one.at) for one in ordered),
        *(Output("payments", one.order.encode(), encode(one), one.at) for one in settled),
    ]


def oracle(ordered: list[Checkout], settled: list[Payment]) -> set[tuple[str, str, int | None]]:
    """Order, user and amount: of the payment within a minute, or None."""
    of = {one.order: one for one in settled}
    return {
        (
            one.order,
            one.user,
            of[one.order].amount if one.order in of and of[one.order].at <= one.at + MINUTE_MS else None,
        )
        for one in ordered
    }
