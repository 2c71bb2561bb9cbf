"""An app whose actors send each other money, and none is ever lost or made: what tells whether tasks stand at a consistent cut."""

import msgspec

import tailrace as tr


class Pay(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A payment from one account to another."""

    key: tr.Key[str]
    to: str
    amount: int
    at_ms: tr.EventTime[int]


class Paid(msgspec.Struct, frozen=True):
    """Money on its way."""

    amount: int


class Booked(msgspec.Struct, tr.Keyed[str], frozen=True):
    """What an account has after a payment."""

    key: tr.Key[str]
    balance: int


app = tr.App("bank", partitions=4)
pays = app.topic("pays", Pay)
booked = app.topic("booked", Booked)


@app.actor
class Account(tr.Actor):
    """An account, which may be in debt."""

    balance: int = 0

    @tr.process(pays)
    def pay(self, event: Pay, ctx: tr.Context[str]) -> None:
        """Send money."""
        self.balance -= event.amount
        ctx.send(Account, event.to, Paid(event.amount))

    @tr.on_message
    def receive(self, message: Paid, ctx: tr.Context[str]) -> None:
        """Receive money."""
        self.balance += message.amount
        ctx.emit(booked, Booked(ctx.key, self.balance))
