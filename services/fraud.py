"""Fraud: payments are checked by rules that change while the service runs.

    rules     ──►  a table that every task reads
                       │
    payments  ──►  Account  ──►  suspicious

The rules are a broadcast topic, so each account sees all of them. The sum of an hour is a window, as a field beside them.
"""

import tailrace as tr
from schemas.payments import CardPayment, FraudRule, Suspicious
from tailrace import agg, windows

app = tr.App("fraud")
fraud_rules = app.topic("fraud-rules", FraudRule, broadcast=True)
payments = app.topic("card-payments", CardPayment, out_of_order="1m")
suspicious = app.topic("suspicious", Suspicious)


@app.actor
class Account(tr.Actor):
    """The card of one account."""

    rules: tr.Shared[str, FraudRule] = tr.shared(fraud_rules)
    hours: tr.Windows[CardPayment, int] = tr.windowed(windows.tumbling("1h"), agg.total(lambda p: p.cents))

    @tr.process(payments)
    def pay(self, payment: CardPayment, ctx: tr.Context[str]) -> None:
        """Check a payment, together with those of its hour that have come before it."""
        self.hours.add(payment)
        hour_ms = payment.at_ms - payment.at_ms % 3_600_000
        of_hour = self.hours.open().get(hour_ms, payment.cents)
        for rule in self.rules.values():
            cents = of_hour if rule.per_hour else payment.cents
            if cents > rule.above_cents > 0:
                ctx.emit(suspicious, Suspicious(ctx.key, payment.id, rule.name, cents))
