"""The same app as ``clicking``, which sends each click on as a message."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tests.lab.upgrade.clicking import FORGOTTEN, Click, Seen


class Told(msgspec.Struct, frozen=True):
    """What is sent of a click."""

    user: str
    at: int
    amount: int


app = tr.App("clicking", partitions=2, version="1")
clicks = app.topic("clicks", Click, key="user", event_time="at", out_of_order=10, late="drop")
seen = app.topic("seen", Seen, key="user")
later = app.topic("later", Seen, key="user")


@app.actor
class Account(tr.Actor):
    """Sums up."""

    total: int = 0

    @tr.on_message
    def told(self, message: Told, ctx: tr.Context[str]) -> None:
        """Take a click."""
        self.total += message.amount
        ctx.emit(seen, Seen(message.user, message.at, self.total))
        ctx.set_timer(message.at + 50, f"later:{message.at}")

    @tr.on_timer("later")
    def some_time_later(self, ctx: tr.Context[str]) -> None:
        """Say the sum again."""
        ctx.emit(later, Seen(ctx.key.removeprefix("of "), ctx.event_time - 50, self.total))


@app.actor
class User(tr.Actor):
    """Sends on."""

    @tr.process(clicks)
    def clicked(self, event: Click, ctx: tr.Context[str]) -> None:
        """Take a click."""
        amount = 0
        if event.amount % FORGOTTEN:
            amount = event.amount
        ctx.send(Account, f"of {event.user}", Told(event.user, event.at, amount))
