"""A random app for reshaping, as plain Python counts it: actors that take events as they arrive, with timers and messages, and one
that takes those of two inputs in the order of event time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

import tailrace as tr
from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log import Log

KEYS = [f"k{number}" for number in range(12)] + ["", "ü\0"]
REGIONS = 3
DISORDER_MS = 40
ALARM_MS = 25


class Order(msgspec.Struct, frozen=True):
    item: tr.Key[str]
    at: tr.EventTime[int]
    amount: int
    alarm: int = 0


class Step(msgspec.Struct, frozen=True):
    item: tr.Key[str]
    at: tr.EventTime[int]
    number: int


class Said(msgspec.Struct, frozen=True):
    who: tr.Key[str]
    text: str


class Sold(msgspec.Struct, frozen=True):
    amount: int


def make_app(partitions: int, name: str = "depot") -> tr.App:
    app = tr.App(name, partitions=partitions)
    orders = app.topic("orders", Order, out_of_order=f"{DISORDER_MS}ms")
    left = app.topic("left", Step, out_of_order=f"{DISORDER_MS}ms", late="drop")
    right = app.topic("right", Step, out_of_order=f"{DISORDER_MS}ms", late="drop")
    said = app.topic("said", Said)

    @app.actor
    class Region(tr.Actor):
        total: int = 0
        count: int = 0

        @tr.on_message
        def sold(self, message: Sold, ctx: tr.Context[str]) -> None:
            self.total += message.amount
            self.count += 1

    @app.actor
    class Item(tr.Actor, order="arrival"):
        amounts: list[int] = tr.field(default_factory=list)
        by_amount: tr.MapState[int, int]
        queue: tr.ListState[int]
        alarms: int = 0

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            self.amounts.append(event.amount)
            self.by_amount[event.amount] = self.by_amount.get(event.amount, 0) + 1
            self.queue.append(event.at)
            if event.alarm:
                ctx.set_timer(event.at + event.alarm, f"alarm:{event.at}-{event.amount}")
            ctx.send(Region, f"r{event.amount % REGIONS}", Sold(event.amount))
            ctx.emit(said, Said(ctx.key, f"order {event.amount}"))

        @tr.on_timer("alarm")
        def alarm(self, ctx: tr.Context[str]) -> None:
            self.alarms += ctx.event_time
            ctx.emit(said, Said(ctx.key, f"alarm {ctx.event_time}"))

    @app.actor
    class Path(tr.Actor, order="event-time"):
        steps: list[int] = tr.field(default_factory=list)

        @tr.process(left)
        def to_the_left(self, event: Step, ctx: tr.Context[str]) -> None:
            self.step(event.number, ctx)

        @tr.process(right)
        def to_the_right(self, event: Step, ctx: tr.Context[str]) -> None:
            self.step(-event.number, ctx)

        def step(self, number: int, ctx: tr.Context[str]) -> None:
            self.steps.append(number)
            ctx.set_timer(ctx.event_time + ALARM_MS, "pause")
            ctx.emit(said, Said(ctx.key, f"step {number}"))

        @tr.on_timer("pause")
        def pause(self, ctx: tr.Context[str]) -> None:
            self.steps.append(0)
            ctx.emit(said, Said(ctx.key, f"pause {ctx.event_time}"))

    return app


of_2, of_3, of_5 = map(make_app, (2, 3, 5))


# --- what happens, and what has to come of it

EVENTS = {"orders": Order, "left": Step, "right": Step}


def drawn(random: Random, first: int, count: int) -> list[tuple[str, Any]]:
    """Events in the order of their arrival, out of order by less than is declared."""
    found: list[tuple[str, Any]] = []
    for number in range(first, first + count):
        at, item = 1_000 + 4 * number - random.randrange(DISORDER_MS), random.choice(KEYS)
        topic = random.choice(list(EVENTS))
        if topic == "orders":
            found.append((topic, Order(item, at, random.randrange(50), random.choice((0, 0, 5, 400)))))
        else:
            found.append((topic, Step(item, at, number + 1)))
    return found


def outputs(events: Sequence[tuple[str, Any]]) -> list[Output]:
    return [Output(topic, one.item.encode(), msgspec.json.encode(one), one.at) for topic, one in events]


class Expected(NamedTuple):
    """By key, what was said about orders, alarms (in any order) and steps; and the totals of regions."""

    orders: dict[str, list[str]]
    alarms: dict[str, list[str]]
    steps: dict[str, list[str]]


def expected(events: Sequence[tuple[str, Any]]) -> Expected:
    """In plain Python."""
    orders, alarms, steps = defaultdict(list), defaultdict(list), defaultdict(list)
    paths: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for place, (topic, one) in enumerate(events):
        if isinstance(one, Order):
            orders[one.item].append(f"order {one.amount}")
            if one.alarm:
                alarms[one.item].append(f"alarm {one.at + one.alarm}")
        else:
            rank, number = (0, one.number) if topic == "left" else (1, -one.number)
            paths[one.item].append((one.at, rank, place, number))
    for item, some in paths.items():
        pause = None
        for at, _, _, number in sorted(some):
            if pause is not None and pause < at:
                steps[item].append(f"pause {pause}")
            pause = at + ALARM_MS
            steps[item].append(f"step {number}")
        steps[item].append(f"pause {pause}")
    return Expected(orders, {item: sorted(some) for item, some in alarms.items()}, steps)


def found(log: Log) -> Expected:
    """What the app has said, in the order of each key."""
    said: Mapping[str, dict[str, list[str]]] = {
        what: defaultdict(list) for what in ("order", "alarm", "step")
    }
    for number in range(log.partitions("said")):
        for record in scan(log, "said", number):
            one = msgspec.json.decode(record.value or b"", type=Said)
            what = one.text.partition(" ")[0]
            said["step" if what == "pause" else what][one.who].append(one.text)
    alarms = {item: sorted(some) for item, some in said["alarm"].items()}
    return Expected(said["order"], alarms, said["step"])
