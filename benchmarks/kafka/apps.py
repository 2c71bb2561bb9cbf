"""The apps that are measured on Kafka: they count and sum the events of a key, and emit one event for each.

``firing`` also sets a timer with each event, which fires five seconds later. ``moving`` moves the one timer of the key.
"""

from __future__ import annotations

import tailrace as tr
from benchmarks.apps import Event, Total

EVENTS, TOTALS = "events", "totals"
WAIT_MS = 5_000


def _counting(name: str, partitions: int) -> tr.App:
    app = tr.App(name, partitions=partitions)
    events = app.topic(EVENTS, Event, key="key", event_time="at", out_of_order="1s")
    totals = app.topic(TOTALS, Total, key="key")

    @app.actor
    class Counter(tr.Actor):
        count: int = 0
        total: int = 0

        @tr.process(events)
        def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.total += event.value
            ctx.emit(totals, Total(event.key, self.count, self.total))

    return app


def _timing(name: str, timer: str | None) -> tr.App:
    app = tr.App(name, partitions=4)
    events = app.topic(EVENTS, Event, key="key", event_time="at", out_of_order="1s")
    totals = app.topic(TOTALS, Total, key="key")

    @app.actor
    class Timed(tr.Actor):
        count: int = 0
        total: int = 0
        fired: int = 0

        @tr.process(events)
        def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1
            self.total += event.value
            ctx.set_timer(event.at + WAIT_MS, timer)
            ctx.emit(totals, Total(event.key, self.count, self.total))

        @tr.on_timer
        @tr.on_timer("silence")
        def on_due(self, ctx: tr.Context[str]) -> None:
            del ctx
            self.fired += 1

    return app


counting = _counting("counting", 4)
firing = _timing("firing", None)
moving = _timing("moving", "silence")
wide = _counting("wide", 24)
