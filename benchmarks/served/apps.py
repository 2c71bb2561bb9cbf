"""More apps that run as services. They use the events and outputs of `benchmarks.apps`."""

from __future__ import annotations

import os
import time

import tailrace as tr
from benchmarks.apps import Event, Total

SLOW_S = float(os.environ.get("BENCH_SLOW_MS", "0")) / 1_000

doubling = tr.App("doubling", partitions=2)
doubled = doubling.topic("events", Event, key="key", event_time="at", out_of_order="1s")
doubled_totals = doubling.topic("totals", Total, key="key")


@doubling.actor
class Halved(tr.Actor):
    """An actor with two partitions, for two workers."""

    count: int = 0
    total: int = 0

    @tr.process(doubled)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        self.count += 1
        self.total += event.value
        ctx.emit(doubled_totals, Total(event.key, self.count, self.total))


surviving = tr.App("surviving", partitions=1, on_error="dead-letter")
mixed = surviving.topic("mixed", Event, key="key", event_time="at", out_of_order="1s")
surviving_totals = surviving.topic("survivors", Total, key="key")


@surviving.actor
class Survivor(tr.Actor):
    """Some of its events are poison: at a negative value the handler raises; others are not JSON and cannot be decoded."""

    count: int = 0
    total: int = 0

    @tr.process(mixed)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        if event.value < 0:
            raise ValueError("a negative value")
        self.count += 1
        self.total += event.value
        ctx.emit(surviving_totals, Total(event.key, self.count, self.total))


crawling = tr.App("crawling", partitions=1)
crawled = crawling.topic("events", Event, key="key", event_time="at", out_of_order="1s")
crawled_totals = crawling.topic("totals", Total, key="key")


@crawling.actor
class Crawler(tr.Actor):
    """A slow handler: `BENCH_SLOW_MS` for each event."""

    count: int = 0
    total: int = 0

    @tr.process(crawled)
    def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
        time.sleep(SLOW_S)
        self.count += 1
        self.total += event.value
        ctx.emit(crawled_totals, Total(event.key, self.count, self.total))
