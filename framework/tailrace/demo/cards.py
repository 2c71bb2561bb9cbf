"""Alerts for cards whose payments within an hour exceed 1,000."""

import msgspec

import tailrace as tr


class Payment(msgspec.Struct, frozen=True):
    card: tr.Key[str]
    at_ms: tr.EventTime[int]
    cents: int


app = tr.App("cards")
payments = app.topic("payments", Payment, out_of_order="10m", late="drop")
alerts = app.topic("alerts", Payment)


@app.actor
class Card(tr.Actor, order="event-time"):  # one instance per card
    spent: int = 0  # durable: it survives a kill, a move to another process, a new version

    @tr.process(payments)
    def paid(self, event: Payment, ctx: tr.Context[str]) -> None:
        if self.spent == 0:
            ctx.set_timer(event.at_ms + 3_600_000, "an hour")  # in event time, not in that of the clock
        self.spent += event.cents
        if self.spent > 100_000:
            ctx.emit(alerts, event)  # visible when all effects of the event are, or never

    @tr.on_timer("an hour")
    def over(self, ctx: tr.Context[str]) -> None:
        self.spent = 0
