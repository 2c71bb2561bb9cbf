"""An app whose first version forgets some clicks."""

from __future__ import annotations

import msgspec

import tailrace as tr

FORGOTTEN = 7
"""The first version leaves out an amount that this divides."""


class Click(msgspec.Struct, frozen=True):
    """A click of a user. ``at`` is unique."""

    user: str
    at: int
    amount: int


class Seen(msgspec.Struct, frozen=True):
    """What a click has led to: at once, and some time later."""

    user: str
    at: int
    total: int


app = tr.App("clicking", partitions=2, version="1")
clicks = app.topic("clicks", Click, key="user", event_time="at", out_of_order=10, late="drop")
seen = app.topic("seen", Seen, key="user")
later = app.topic("later", Seen, key="user")


@app.actor
class User(tr.Actor):
    """Sums up."""

    total: int = 0

    @tr.process(clicks)
    def clicked(self, event: Click, ctx: tr.Context[str]) -> None:
        """Take a click."""
        if event.amount % FORGOTTEN:
            self.total += event.amount
        ctx.emit(seen, Seen(event.user, event.at, self.total))
        ctx.set_timer(event.at + 50, f"later:{event.at}")

    @tr.on_timer("later")
    def some_time_later(self, ctx: tr.Context[str]) -> None:
        """Say the sum again."""
        ctx.emit(later, Seen(ctx.key, ctx.event_time - 50, self.total))
