"""The short way of ordered operators does what the sweep does: the same outputs, rows, cuts and tapes, failures included."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.records import InputRecord
from tailrace.state import MemoryStore


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int
    n: int


class Said(msgspec.Struct, frozen=True):
    key: str
    text: str


def app_of_a_group() -> tr.App:
    """Two ordered actors that a stream connects; the second one has an input of its own. Some handlers fail."""
    app = tr.App("group", partitions=1, on_error="dead-letter")
    lates: list[Literal["handle", "drop"]] = ["handle", "drop", "handle"]
    inputs = [
        app.topic(f"t{n}", Event, key="key", event_time="at", out_of_order=20 * n, late=late)
        for n, late in enumerate(lates)
    ]
    said = app.topic("said", Said, key="key")
    passed = app.stream("passed", Said, key_type=str)

    @app.actor
    class First(tr.Actor, order="event-time"):
        seen: int = 0

        @tr.process(inputs[0], inputs[1])
        def event(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1
            if event.n % 3 == 0:
                ctx.set_timer(event.at + event.n % 40, "x" if event.n % 2 else None)
            if event.n % 17 == 0:
                raise ValueError("an event")
            draw = ctx.random.random() if event.n % 4 == 0 else 0
            ctx.emit(passed, Said(ctx.key, f"{event.n} {self.seen} {ctx.watermark} {ctx.is_late} {draw}"))

        @tr.on_timer
        def timer(self, ctx: tr.Context[str]) -> None:
            if ctx.event_time % 7 == 0:
                raise ValueError("a timer")
            draw = ctx.random.random() if ctx.event_time % 4 == 0 else 0
            ctx.emit(passed, Said(ctx.key, f"timer {ctx.event_time} {ctx.watermark} {draw}"))

        @tr.on_timer("x")
        def again(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, f"x {ctx.event_time} {ctx.watermark}"))
            if ctx.event_time % 3 == 0:
                ctx.set_timer(ctx.event_time + 3, "x")

    @app.actor
    class Second(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(inputs[2])
        def own(self, event: Event, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(said, Said(ctx.key, f"own {event.n} {self.count} {ctx.watermark} {ctx.is_late}"))

        @tr.process(passed)
        def hear(self, event: Said, ctx: tr.Context[str]) -> None:
            self.count += 1
            if len(event.text) % 11 == 0:
                ctx.set_timer(ctx.event_time + len(event.text) % 8)
            ctx.emit(said, Said(ctx.key, f"{self.count} {ctx.watermark} {ctx.is_late} {event.text}"))

        @tr.on_timer
        def timer(self, ctx: tr.Context[str]) -> None:
            ctx.emit(said, Said(ctx.key, f"second {ctx.event_time} {ctx.watermark} {self.count}"))

    return app


def run(app: tr.App, seed: int, *, short: bool, third: bool) -> list[Any]:
    """What comes out of a task, with its commits."""
    random, store, plan = Random(seed), MemoryStore(), app.plan()
    settings = TaskSettings(firing_budget=random.choice([3, 1_000]))
    task = Task(plan, 0, store, store.cut, lineage=b"x", settings=settings)
    numbers = [one.index for one in plan.inputs if one.name in ("t0", "t1", "t2")[: 3 if third else 2]]
    assert all(task._inputs[number].turns for number in numbers)
    for one in task._inputs:
        one.turns = short
    if not third:
        task.idle(next(one.index for one in plan.inputs if one.name == "t2"))
    offsets, times, found = [0] * len(plan.inputs), [0] * len(plan.inputs), list[Any]()
    for _ in range(60):
        number, records = random.choice(numbers), list[InputRecord]()
        for _ in range(random.randrange(1, 12)):
            times[number] += random.randrange(15)
            at = max(1, times[number] - random.choice([0, 0, 3, 10, 60]))
            event = Event(random.choice("kl"), at, random.randrange(100))
            records.append(
                InputRecord(offsets[number], 0, event.key.encode(), msgspec.json.encode(event), ())
            )
            offsets[number] += 1
        heads, taken = task.decode(number, records), 0
        while taken < len(heads):
            taken = task.run(number, heads, taken)
            while task.draining:
                task.drain()
        if random.random() < 0.3:
            found += task.take_outputs()
            batch = task.commit_batch()
            found.append((batch.rows, batch.index_rows, batch.cut, batch.tape))
            store.write({**batch.rows, **batch.index_rows}, batch.cut)
            task.committed()
    return [*found, *task.take_outputs()]


@pytest.mark.one_seed_in(10)
def test_the_short_way_of_an_ordered_operator_does_what_the_sweep_does(seeds: range) -> None:
    app = app_of_a_group()
    for seed in seeds:
        for third in (False, True):
            assert run(app, seed, short=True, third=third) == run(app, seed, short=False, third=third)
