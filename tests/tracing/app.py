"""An app with traces: a topic, a stream, messages, timers, and an event that fails."""

from __future__ import annotations

import os

import msgspec

import tailrace as tr


class Order(msgspec.Struct, frozen=True):
    """An order, which fails if it says so."""

    key: str
    at: int
    fails: bool = False


class Note(msgspec.Struct, frozen=True):
    """A message."""

    at: int


app = tr.App("traced", partitions=2, on_error="dead-letter", tracing=True)
orders = app.topic("orders", Order, key="key", event_time="at")
shipped = app.topic("shipped", Order, key="key", event_time="at", watermark=False)
billed = app.topic("billed", Order, key="key", event_time="at", watermark=False)
checked = app.stream("checked", Order)


@app.actor
class Bills(tr.Actor):
    """Gets a message for each order, and emits."""

    count: int = 0

    @tr.on_message
    def note(self, note: Note, ctx: tr.Context[str]) -> None:
        """Emit, which belongs to the trace of the order."""
        self.count += 1
        ctx.emit(billed, Order(ctx.key, note.at))


@app.actor
class Orders(tr.Actor):
    """Emits to a topic and to a stream, sends a message, and sets a timer."""

    @tr.process(orders)
    def order(self, event: Order, ctx: tr.Context[str]) -> None:
        """Handle an order."""
        if event.fails and "BROKEN" in os.environ:
            raise ValueError("broken")
        ctx.emit(shipped, event)
        ctx.emit(checked, event)
        ctx.send(Bills, ctx.key, Note(event.at))
        ctx.set_timer(event.at + 1)

    @tr.on_timer
    def due(self, ctx: tr.Context[str]) -> None:
        """Emit, which belongs to no trace."""
        ctx.emit(shipped, Order(f"timer {ctx.key}", ctx.event_time))


@app.process(checked)
def again(event: Order, ctx: tr.Context[str]) -> None:
    """Emit what came by the stream, under another key."""
    ctx.emit(shipped, Order(f"again {event.key}", event.at))
