"""An app that reads one input or two: sums per key and minute. And its events, and what it has to come to."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Literal, TypeAlias

import msgspec

import tailrace as tr
from tailrace.core.declare.topic import OnError
from tailrace.core.records import Output
from tests.history.rebuilding import any_app

Order: TypeAlias = Literal["arrival", "event-time"]
MINUTE_MS = 60_000
KEYS = "abcdef"


class Paid(msgspec.Struct, frozen=True):
    who: str
    at: int
    amount: int


class Minute(msgspec.Struct, frozen=True):
    who: str
    end: int
    amount: int


def made(*, refunds: bool, order: Order = "arrival", on_error: OnError = "stop") -> str:
    """Sums per key and minute. ``refunds``: the actor reads them as well, in addition to payments."""
    app = tr.App("tills", partitions=2, on_error=on_error)
    paid = app.topic("paid", Paid, key="who", event_time="at", out_of_order=0)
    given_back = app.topic("refunds", Paid, key="who", event_time="at", out_of_order=0, idle_after="1d")
    minutes = app.topic("minutes", Minute, key="who", event_time="end")
    read = [paid, given_back] if refunds else [paid]

    @app.actor
    class Till(tr.Actor, order=order):
        open: dict[str, int] = tr.field(default_factory=dict)

        @tr.process(*read)
        def moved(self, event: Paid, ctx: tr.Context[str]) -> None:
            end = event.at // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1
            self.open[str(end)] = self.open.get(str(end), 0) + event.amount
            ctx.set_timer(end, f"end:{end}")

        @tr.on_timer("end")
        def ended(self, ctx: tr.Context[str]) -> None:
            end = str(ctx.timer_name).partition(":")[2]
            ctx.emit(minutes, Minute(ctx.key, int(end), self.open.pop(end)))

    return any_app.place(app)


def moves(topic: str, minutes: range, seed: int) -> list[Output]:
    random, sign = Random(seed), -1 if topic == "refunds" else 1
    found: list[Output] = []
    for minute in minutes:
        for second in sorted(random.sample(range(60), 12)):
            event = Paid(random.choice(KEYS), minute * MINUTE_MS + second * 1000, sign * random.randint(1, 9))
            found.append(Output(topic, event.who.encode(), msgspec.json.encode(event), event.at))
    return found


def expected(records: list[Output]) -> dict[tuple[str, int], int]:
    """The sums per key and minute, in plain Python."""
    sums = Counter[tuple[str, int]]()
    for one in records:
        event = msgspec.json.decode(one.value or b"", type=Paid)
        sums[event.who, event.at // MINUTE_MS * MINUTE_MS + MINUTE_MS - 1] += event.amount
    return dict(sums)
