"""Count with timeout: how often a key was active, told once it has been quiet for half a second of event time.

Every event sets a timer, and none is cancelled: the timer that matters is the one that finds that nothing came since.
"""

import tailrace as tr
from schemas.activity import Activity, Count

QUIET_MS = 500

app = tr.App("count-with-timeout")
activity = app.topic("activity", Activity)
counts = app.topic("counts", Count)


@app.actor
class Counter(tr.Actor):
    """The activity under one key."""

    count: int = 0
    last_modified_ms: int = 0

    @tr.process(activity)
    def counted(self, event: Activity, ctx: tr.Context[str]) -> None:
        """Count it, and look again when the key could be quiet."""
        self.count += 1
        self.last_modified_ms = max(self.last_modified_ms, ctx.event_time)
        ctx.set_timer(ctx.event_time + QUIET_MS)

    @tr.on_timer
    def looked(self, ctx: tr.Context[str]) -> None:
        """Tell the count if nothing came since the event that set this timer."""
        ctx.metrics.count("looked")
        if ctx.event_time == self.last_modified_ms + QUIET_MS:
            ctx.emit(counts, Count(ctx.key, self.count))
