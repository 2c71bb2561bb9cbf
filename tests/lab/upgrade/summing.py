"""The same app as ``clicking``, which writes to a table. The first version also writes keys that nobody wants."""

from __future__ import annotations

import tailrace as tr
from tests.lab.upgrade.clicking import FORGOTTEN, Click, Seen

app = tr.App("clicking", partitions=2, version="1")
clicks = app.topic("clicks", Click, key="user", event_time="at", out_of_order=10, late="drop")
seen = app.table("sums", Seen, key="user")
UNWANTED = True


@app.actor
class User(tr.Actor):
    """Sums up."""

    total: int = 0

    @tr.process(clicks)
    def clicked(self, event: Click, ctx: tr.Context[str]) -> None:
        """Take a click."""
        if event.amount % FORGOTTEN:
            self.total += event.amount
        elif UNWANTED:
            ctx.emit(seen, Seen(f"unwanted {event.user}", event.at, event.amount))
        ctx.emit(seen, Seen(event.user, event.at, self.total))
