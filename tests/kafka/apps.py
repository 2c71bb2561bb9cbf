"""An app that counts, with a timer, and sends what it cannot read to the dead letters."""

import msgspec

import tailrace as tr

QUIET_MS = 500


class Seen(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something happened."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often, when it was quiet."""

    key: tr.Key[str]
    count: int


app = tr.App("totals", on_error="dead-letter")
seen = app.topic("seen", Seen)
totals = app.topic("totals", Total)


@app.actor
class Counter(tr.Actor):
    """Counts of a key."""

    count: int = 0

    @tr.process(seen)
    def counted(self, event: Seen, ctx: tr.Context[str]) -> None:
        """Count, and look later."""
        self.count += 1
        ctx.set_timer(ctx.event_time + QUIET_MS, name="quiet")

    @tr.on_timer("quiet")
    def quiet(self, ctx: tr.Context[str]) -> None:
        """Emit the count."""
        ctx.emit(totals, Total(ctx.key, self.count))
