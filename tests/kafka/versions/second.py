"""Version 2: the state has one field more. ``App(version=)`` was forgotten."""

import tailrace as tr
from tests.kafka.versions.events import Total, Visit

app = tr.App("visits")
visits = app.topic("came", Visit)
totals = app.topic("visited", Total)


@app.actor
class Counter(tr.Actor):
    """Counts of a key."""

    count: int = 0
    latest_ms: int = 0

    @tr.process(visits)
    def counted(self, event: Visit, ctx: tr.Context[str]) -> None:
        """Count."""
        self.count += 1
        self.latest_ms = event.at_ms
        ctx.emit(totals, Total(ctx.key, self.count, 2))
