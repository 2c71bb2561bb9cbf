"""An app whose events wait for their turn. It has a sample of every metric."""

from __future__ import annotations

import time

import msgspec

import tailrace as tr


class Step(msgspec.Struct):
    who: str
    at: int


app = tr.App("waits")
steps = app.topic("steps", Step, key="who", event_time="at", out_of_order="5s", ahead_of_clock=None)


@app.actor
class Walker(tr.Actor, order="event-time"):
    @tr.process(steps)
    def step(self, event: Step, ctx: tr.Context[str]) -> None:
        time.sleep(0.5)  # long enough for a sample
