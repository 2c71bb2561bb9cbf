"""Count with timeout: emits the number of events of a key when it has been quiet for half a second of event time.

Every event sets a timer, and none is cancelled. A timer emits the count only if no event came after the one that set it.
"""

import tailrace as tr
from schemas.activity import Activity, Count

QUIET_MS = 500

app = tr.App("count-with-timeout")
activity = app.topic("activity", Activity)
counts = app.topic("counts", Count)


@app.actor
class Counter(tr.Actor):
    """The activity of one key."""

    count: int = 0
    last_modified_ms: int = 0

    @tr.process(activity)
    def counted(self, event: Activity, ctx: tr.Context[str]) -> None:
        """Count the event, and set a timer for the end of the quiet time."""
        self.count += 1
        self.last_modified_ms = max(self.last_modified_ms, ctx.event_time)
        ctx.set_timer(ctx.event_time + QUIET_MS)

    @tr.on_timer
    def looked(self, ctx: tr.Context[str]) -> None:
        """Emit the count if no event came after the one that set this timer."""
        ctx.metrics.count("looked")
        if ctx.event_time == self.last_modified_ms + QUIET_MS:
            ctx.emit(counts, Count(ctx.key, self.count))
