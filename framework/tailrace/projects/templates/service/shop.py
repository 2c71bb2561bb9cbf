"""Orders: each is paid for within half an hour, or cancelled."""

import tailrace as tr
from schemas.orders import Paid, Placed, Standing, Status

PAY_WITHIN_MS = 30 * 60_000

app = tr.App("shop")
order_events = app.topic("order-events", Placed | Paid)
orders = app.table("orders", Standing)


@app.actor
class Order(tr.Actor):
    """One instance for each order, which handles one event at a time. Its fields are durable."""

    placed: Placed | None = None
    paid_ms: int | None = None
    given_up: bool = False

    @tr.process(order_events)
    def happened(self, event: Placed | Paid, ctx: tr.Context[str]) -> None:
        if isinstance(event, Paid):
            self.paid_ms = min(event.at_ms, self.paid_ms or event.at_ms)
        elif self.placed is None:
            self.placed = event
            ctx.set_processing_timer(ctx.now + PAY_WITHIN_MS, "unpaid")
        self.publish(ctx)

    @tr.on_processing_timer("unpaid")
    def unpaid(self, ctx: tr.Context[str]) -> None:
        self.given_up = True
        self.publish(ctx)

    def publish(self, ctx: tr.Context[str]) -> None:
        if self.placed is not None:
            ctx.emit(orders, Standing(ctx.key, self.status(), self.placed.cents))
            if self.status() != "placed":
                ctx.cancel_processing_timer("unpaid")

    @tr.query
    def status(self) -> Status:
        """The times of the events decide, in whatever order they came."""
        if (
            self.placed
            and self.paid_ms is not None
            and self.paid_ms <= self.placed.at_ms + PAY_WITHIN_MS
        ):
            return "paid"
        return "cancelled" if self.given_up else "placed"
