"""A version that fails at every tenth event of a key."""

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
    def counted(self, _event: Visit, ctx: tr.Context[str]) -> None:
        """Count, and fail."""
        self.count += 1
        if self.count % 10 == 0:
            raise ValueError("the tenth")
        ctx.emit(totals, Total(ctx.key, self.count, 3))
