"""An app with two handlers that take their time, of which one fails at times."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec

import tailrace as tr


class Job(msgspec.Struct):
    who: str
    at: int
    ms: float = 0.0
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    fails: bool = False


app = tr.App("metered", partitions=2, on_error="dead-letter")
slow = app.topic("slow", Job, key="who", event_time="at", ahead_of_clock="1h")
quick = app.topic("quick", Job, key="who", event_time="at", ahead_of_clock="1h")


@app.actor
class Worker(tr.Actor, order="arrival"):
    kept: bytes = b""
    done: int = 0

    @tr.process(slow)
    def slowly(self, event: Job, ctx: tr.Context[str]) -> None:
        self._work(event, ctx, "slowly")

    @tr.process(quick)
    def quickly(self, event: Job, ctx: tr.Context[str]) -> None:
        self._work(event, ctx, "quickly")

    def _work(self, event: Job, ctx: tr.Context[str], handler: str) -> None:
        begun_s = time.monotonic()
        time.sleep(event.ms / 1_000)
        ctx.metrics.count(f"{handler}-seconds", time.monotonic() - begun_s)
        if event.fails:
            raise ValueError("it fails")
        self.done += 1
        self.kept = ctx.random.randbytes(event.size)
        if self.done % 3 == 0:
            ctx.set_timer(event.at + 3_600_000)

    @tr.on_timer
    def later(self, ctx: tr.Context[str]) -> None:
        pass
