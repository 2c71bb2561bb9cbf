"""The app that is measured on Kafka: it counts and sums the events of a key, and emits one event for each."""

from __future__ import annotations

import tailrace as tr
from benchmarks.apps import Event, Total

EVENTS, TOTALS = "events", "totals"


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


counting = _counting("counting", 4)
wide = _counting("wide", 24)
