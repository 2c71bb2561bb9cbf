"""An app whose handlers get stuck, each in its way, and one whose key function does. ``STUCK_CURED`` makes the handlers return at once."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import msgspec

import tailrace as tr

FOR_GOOD_S = 3_600
SLOW_S = 1.5
QUICK_S = 0.01


class Order(msgspec.Struct):
    who: str
    at: int
    how: str


class Done(msgspec.Struct):
    who: str
    how: str


def _work(how: str) -> None:
    if os.environ.get("STUCK_CURED"):
        return
    if how == "sleep":
        time.sleep(FOR_GOOD_S)
    elif how == "loop":
        while True:
            pass
    elif how == "regex":  # holds the interpreter lock for years, and looks for signals
        Path(os.environ["STUCK_BEGUN"]).touch()
        re.match("(a+)+$", "a" * 60 + "b")
    elif how == "slow":
        time.sleep(SLOW_S)
    elif how == "quick":
        time.sleep(QUICK_S)


app = tr.App("stuck", partitions=2)
orders = app.topic("orders", Order, key="who", event_time="at")
done = app.topic("done", Done, key="who")


@app.actor
class Worker(tr.Actor):
    @tr.process(orders)
    def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
        when, _, how = event.how.rpartition(":")
        if when:
            ctx.set_timer(event.at, f"job:{how}:{event.at}")
            return
        _work(how)
        ctx.emit(done, Done(ctx.key, how))

    @tr.on_timer("job")
    def due(self, ctx: tr.Context[str]) -> None:
        how = (ctx.timer_name or "").split(":")[1]
        _work(how)
        ctx.emit(done, Done(ctx.key, how))


def key_of(order: Order) -> str:
    if order.who == "stuck":
        time.sleep(FOR_GOOD_S)
    return order.who


by_key = tr.App("stuck-key", partitions=1)
keyed = by_key.topic("orders", Order, key=key_of, event_time="at")


@by_key.actor
class Counts(tr.Actor):
    count: int = 0

    @tr.process(keyed)
    def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
        self.count += 1
