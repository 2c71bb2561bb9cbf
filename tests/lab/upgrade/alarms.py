"""An app in which one event makes more timers due than a task fires between two commits. A new version gives each more weight."""

from __future__ import annotations

import msgspec

import tailrace as tr

WEIGHT = 1
FAILS = set[int]()
"""The times of timers at which the handler fails. A test sets them."""


class Alarm(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    count: int


class Rung(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: int
    total: int


app = tr.App("alarms", version="1", partitions=1)
alarms = app.topic("alarms", Alarm)
rung = app.topic("rung", Rung)


@app.actor
class Bell(tr.Actor):
    total: int = 0

    @tr.process(alarms)
    def set(self, event: Alarm, ctx: tr.Context[str]) -> None:
        for number in range(event.count):
            ctx.set_timer(event.at + number + 1, f"ring:{number}")

    @tr.on_timer("ring")
    def ring(self, ctx: tr.Context[str]) -> None:
        if ctx.event_time in FAILS:
            raise ValueError("it does not ring")
        self.total += WEIGHT
        ctx.emit(rung, Rung(ctx.key, ctx.event_time, self.total))
