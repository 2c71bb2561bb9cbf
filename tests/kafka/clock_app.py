"""An app that reads the clock, and sets a timer by it."""

import msgspec

import tailrace as tr


class Asked(msgspec.Struct, tr.Keyed[str], frozen=True):
    """What is the time?"""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The clock of the task; ``fired``: in the handler of the timer that was set for ``due_ms``."""

    key: tr.Key[str]
    now_ms: int
    due_ms: int
    fired: bool


app = tr.App("clock", partitions=1)
asked = app.topic("asked", Asked)
readings = app.topic("readings", Reading)


@app.actor
class Watch(tr.Actor):
    """Each event sets a timer of its own."""

    count: int = 0

    @tr.process(asked)
    def was_asked(self, event: Asked, ctx: tr.Context[str]) -> None:
        """Read the clock, and wait for 200 ms."""
        self.count += 1
        due_ms = ctx.now + 200
        ctx.set_processing_timer(due_ms, f"due:{event.at_ms}:{due_ms}")
        ctx.emit(readings, Reading(ctx.key, ctx.now, due_ms, False))

    @tr.on_processing_timer("due")
    def due(self, ctx: tr.Context[str]) -> None:
        """Read the clock again."""
        assert ctx.timer_name is not None
        ctx.emit(readings, Reading(ctx.key, ctx.now, int(ctx.timer_name.rpartition(":")[2]), True))
