"""Checkouts by user, keyed again by order, and joined with payments: event time has to pass through an inner topic.

``app`` keys the checkouts again with a function and a topic of its own, ``repartitioned`` with ``repartition=True``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

import tailrace as tr
from tailrace.core.records import Output

SECOND_MS, MINUTE_MS = 1_000, 60_000
PATIENCE_MS = 15 * MINUTE_MS


class Checkout(msgspec.Struct, frozen=True):
    user: str
    order: str
    at: int


class Payment(msgspec.Struct, frozen=True):
    order: str
    at: int


class Outcome(msgspec.Struct, frozen=True):
    order: str
    what: str


def make_app(*, repartition: bool = False, partitions: int = 4) -> tr.App:
    app = tr.App("orders", partitions=partitions)
    payments = app.topic("payments", Payment, key="order", event_time="at")
    outcomes = app.topic("outcomes", Outcome, key="order")
    if repartition:
        placed = app.topic("checkouts", Checkout, key="order", event_time="at", repartition=True)
    else:
        checkouts = app.topic("checkouts", Checkout, key="user", event_time="at")
        placed = app.topic("placed", Checkout, key="order", event_time="at")

        @app.process(checkouts)
        def by_order(event: Checkout, ctx: tr.Context[str]) -> None:
            ctx.emit(placed, event)

    @app.actor
    class Order(tr.Actor, order="arrival"):
        """Which of the two events comes first does not matter: only their times do."""

        placed_at: int | None = None
        paid_at: int | None = None

        @tr.process(placed)
        def place(self, event: Checkout, ctx: tr.Context[str]) -> None:
            self.placed_at = event.at
            ctx.set_timer(event.at + PATIENCE_MS, "unpaid")
            self.join(ctx)

        @tr.process(payments)
        def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.paid_at = event.at
            self.join(ctx)

        def join(self, ctx: tr.Context[str]) -> None:
            if self.placed_at is None or self.paid_at is None:
                return
            if self.paid_at <= self.placed_at + PATIENCE_MS:
                ctx.cancel_timer("unpaid")
                ctx.emit(outcomes, Outcome(ctx.key, "paid"))

        @tr.on_timer("unpaid")
        def give_up(self, ctx: tr.Context[str]) -> None:
            ctx.emit(outcomes, Outcome(ctx.key, "unpaid"))

    return app


class Placed(NamedTuple):
    """An order of the history: who placed it and when, and how much later it was paid, if ever."""

    user: str
    order: str
    at: int
    paid_after: int | None


def paid_orders(count: int) -> list[Placed]:
    """Each is paid a minute later; every other is of one user, whose partition has more to read than the others."""
    return [
        Placed("big" if number % 2 else f"u{number % 37}", f"o{number}", number * SECOND_MS, MINUTE_MS)
        for number in range(count)
    ]


def mixed_orders(count: int) -> list[Placed]:
    """Some are paid at the last moment, some too late, some never."""
    after = (MINUTE_MS, PATIENCE_MS, 0, PATIENCE_MS + 1, MINUTE_MS, None, 20 * MINUTE_MS)
    return [
        one._replace(paid_after=after[number % len(after)]) for number, one in enumerate(paid_orders(count))
    ]


def expected(orders: Sequence[Placed]) -> list[Outcome]:
    """The oracle: by the times alone."""
    return sorted_outcomes(
        Outcome(one.order, "unpaid" if one.paid_after is None or one.paid_after > PATIENCE_MS else "paid")
        for one in orders
    )


def sorted_outcomes(found: Iterable[Outcome]) -> list[Outcome]:
    return sorted(found, key=msgspec.structs.astuple)


def events(orders: Sequence[Placed]) -> tuple[list[Checkout], list[Payment]]:
    """Each topic in the order of event time."""
    payments = [Payment(one.order, one.at + one.paid_after) for one in orders if one.paid_after is not None]
    return [Checkout(*one[:3]) for one in orders], sorted(payments, key=lambda one: one.at)


def records(orders: Sequence[Placed]) -> list[Output]:
    """As their producers write them: all checkouts, then all payments."""
    encode = msgspec.json.encode
    checkouts, payments = events(orders)
    return [Output("checkouts", one.user.encode(), encode(one), one.at) for one in checkouts] + [
        Output("payments", one.order.encode(), encode(one), one.at) for one in payments
    ]


app = make_app()
repartitioned = make_app(repartition=True)
