"""An app that does what its events say, for the faults that alerts are about."""

from __future__ import annotations

import time

import msgspec

import tailrace as tr

FOR_GOOD_S = 3_600
SLOW_S = 0.01


class Step(msgspec.Struct):
    key: str
    at: int
    do: str = ""


app = tr.App("faulty", partitions=1)
steps = app.topic("steps", Step, key="key", event_time="at", out_of_order=0, idle_after="1s")
beats = app.topic("beats", Step, key="key", event_time="at", out_of_order=0)
left = app.topic("left", Step, key="key", event_time="at", out_of_order=0)
right = app.topic("right", Step, key="key", event_time="at", out_of_order=0)


@app.actor
class Doer(tr.Actor, order="arrival"):
    count: int = 0

    @tr.process(steps)
    def step(self, event: Step, ctx: tr.Context) -> None:
        self.count += 1
        if event.do == "hang":
            time.sleep(FOR_GOOD_S)
        if event.do == "slow":
            time.sleep(SLOW_S)


@app.actor
class Beating(tr.Actor, order="arrival"):
    count: int = 0

    @tr.process(steps, beats)
    def beat(self, event: Step, ctx: tr.Context) -> None:
        self.count += 1


@app.actor
class Joined(tr.Actor, order="event-time"):
    both: int = 0

    @tr.process(left, right)
    def came(self, event: Step, ctx: tr.Context) -> None:
        self.both += 1


movable = tr.App("movable", partitions=32)
moves = movable.topic("moves", Step, key="key", event_time="at", out_of_order=0)


@movable.actor
class Mover(tr.Actor):
    count: int = 0

    @tr.process(moves)
    def move(self, event: Step, ctx: tr.Context) -> None:
        self.count += 1
