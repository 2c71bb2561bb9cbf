"""An app whose event time goes ways: a join by order of payments and re-keyed checkouts, and messages for the
customer.
"""

from __future__ import annotations

import msgspec

import tailrace as tr

UNPAID_MS = 900_000


class Checkout(msgspec.Struct, frozen=True):
    user: str
    order: str
    at: int


class Payment(msgspec.Struct, frozen=True):
    order: str
    at: int


class Done(msgspec.Struct, frozen=True):
    order: str
    what: str


class Paid(msgspec.Struct, frozen=True):
    order: str


class Shop:
    """The app, its topics and its actors. ``repartition``: checkouts go to their orders by themselves."""

    def __init__(self, *, repartition: bool = False, partitions: int = 4, name: str = "shop") -> None:
        app = self.app = tr.App(name, partitions=partitions)
        out = self.out = app.topic("out", Done, key="order")
        payments = self.payments = app.topic("payments", Payment, key="order", event_time="at")
        if repartition:
            checkouts = placed = app.topic(
                "checkouts", Checkout, key="order", event_time="at", repartition=True
            )
        else:
            checkouts = app.topic("checkouts", Checkout, key="user", event_time="at")
            placed = app.topic("placed", Checkout, key="order", event_time="at")

            @app.process(checkouts)
            def rekey(event: Checkout, ctx: tr.Context[str]) -> None:
                ctx.emit(placed, event)

        self.checkouts, self.placed = checkouts, placed

        @app.actor
        class Customer(tr.Actor):
            """Learns of its paid orders by messages; ``settled`` counts those that came in event time's
            order.
            """

            paid: list[str] = []
            reviewed: bool = False

            @tr.on_message
            def learn(self, message: Paid, ctx: tr.Context[str]) -> None:
                self.paid.append(message.order)
                ctx.set_timer(ctx.event_time + 10, "review")

            @tr.on_timer("review")
            def review(self, ctx: tr.Context[str]) -> None:
                self.reviewed = True

        @app.actor
        class Order(tr.Actor, order="arrival"):
            user: str = ""
            paid: bool = False
            done: bool = False

            @tr.process(placed)
            def place(self, event: Checkout, ctx: tr.Context[str]) -> None:
                self.user = event.user
                if self.paid:
                    self.finish(ctx, "paid")
                else:
                    ctx.set_timer(event.at + UNPAID_MS, "unpaid")

            @tr.process(payments)
            def pay(self, event: Payment, ctx: tr.Context[str]) -> None:
                self.paid = True
                if self.user:
                    self.finish(ctx, "paid")

            @tr.on_timer("unpaid")
            def unpaid(self, ctx: tr.Context[str]) -> None:
                self.finish(ctx, "unpaid")

            def finish(self, ctx: tr.Context[str], what: str) -> None:
                if not self.done:
                    self.done = True
                    ctx.cancel_timer("unpaid")
                    ctx.emit(out, Done(ctx.key, what))
                    ctx.send(Customer, self.user, Paid(ctx.key))

        self.Customer, self.Order = Customer, Order
