"""Count, ships and failing: one actor over one input."""

from __future__ import annotations

from collections import Counter
from random import Random

import tailrace as tr
from tests.cast.member import NEVER, Case, Event, Found, Said, history, in_order, records

DISORDER_MS = 2_000
SILENCE_MS = 5_000


def count(random: Random) -> Case:
    """Events are counted in the order of event time; late ones go to a topic."""
    sent = history(random, "events", disorder_ms=DISORDER_MS, late=0.1)
    found = Found()
    keys, late = in_order(sent, "events", DISORDER_MS)
    for key, some in keys.items():
        for number, one in enumerate(some, 1):
            found["said", Said(key, one.at, f"count {number}", one.n)] += 1
    found.update(("lates", one) for one in late)
    return Case(count_app, random.choice((1, 3)), records(sent), found, ("said", "lates"))


def count_app(partitions: int) -> tr.App:
    app = tr.App("count", partitions=partitions)
    lates = app.topic("lates", Event, idle_after=NEVER)
    events = app.topic("events", Event, out_of_order=DISORDER_MS, late=lates, idle_after=NEVER)
    said = app.topic("said", Said)

    @app.actor
    class Count(tr.Actor, order="event-time"):
        n: int = 0

        @tr.process(events)
        def counted(self, event: Event, ctx: tr.Context[str]) -> None:
            self.n += 1
            ctx.emit(said, Said(ctx.key, event.at, f"count {self.n}", event.n))

    return app


def ships(random: Random) -> Case:
    """A ship that is silent for too long is reported once, with its last position."""
    sent = history(random, "positions", disorder_ms=DISORDER_MS)
    found = Found()
    for key, some in in_order(sent, "positions", DISORDER_MS)[0].items():
        for one, after in zip(some, [*some[1:], None], strict=True):
            due = one.at + SILENCE_MS
            if after is None or after.at > due:
                found["said", Said(key, due, "silent", one.n)] += 1
    return Case(ships_app, random.choice((1, 2)), records(sent), found)


def ships_app(partitions: int) -> tr.App:
    app = tr.App("ships", partitions=partitions)
    positions = app.topic("positions", Event, out_of_order=DISORDER_MS, idle_after=NEVER)
    said = app.topic("said", Said)

    @app.actor
    class Ship(tr.Actor, order="event-time"):
        last: int | None = None

        @tr.process(positions)
        def seen(self, event: Event, ctx: tr.Context[str]) -> None:
            self.last = event.n
            ctx.set_timer(event.at + SILENCE_MS, "silent")

        @tr.on_timer("silent")
        def silent(self, ctx: tr.Context[str]) -> None:
            assert self.last is not None
            ctx.emit(said, Said(ctx.key, ctx.event_time, "silent", self.last))
            ctx.clear()

    return app


def failing(random: Random) -> Case:
    """Some events fail, some timers fail, some records cannot be decoded: these are dead letters, and leave nothing else."""
    sent = history(random, "events")
    found, inputs, done = Found(), records(sent), Counter[str]()
    for at, (_, one) in enumerate(sent):
        if one.n % 11 == 3:
            inputs[at] = inputs[at]._replace(value=b"{")
            found["failing.dead-letters", (b"undecodable", inputs[at].key)] += 1
        elif one.n % 7 == 2:
            found["failing.dead-letters", (b"handler-failed", inputs[at].key)] += 1
        else:
            done[one.key] += 1
            found["said", Said(one.key, one.at, "done", done[one.key])] += 1
            if one.n % 5:
                found["said", Said(one.key, one.at + 10, "later", one.n)] += 1
            else:
                found["failing.dead-letters", (b"handler-failed", None)] += 1
    return Case(failing_app, random.choice((1, 2)), inputs, found)


class Sorry(Exception):
    """A handler fails."""


def failing_app(partitions: int) -> tr.App:
    app = tr.App("failing", partitions=partitions, on_error="dead-letter")
    events = app.topic("events", Event, idle_after=NEVER)
    said = app.topic("said", Said)

    @app.actor
    class Careless(tr.Actor):
        done: int = 0
        left: tr.MapState[int, int]

        @tr.process(events)
        def handled(self, event: Event, ctx: tr.Context[str]) -> None:
            self.done += 1
            self.left[event.n] = event.at
            ctx.set_timer(event.at + 10, f"later:{event.n}")
            ctx.emit(said, Said(ctx.key, event.at, "done", self.done))
            if event.n % 7 == 2:
                raise Sorry

        @tr.on_timer("later")
        def later(self, ctx: tr.Context[str]) -> None:
            n = int(str(ctx.timer_name).partition(":")[2])
            del self.left[n]
            ctx.emit(said, Said(ctx.key, ctx.event_time, "later", n))
            if not n % 5:
                raise Sorry

    return app


def letter(headers: dict[str, bytes], key: bytes | None) -> tuple[bytes, bytes | None]:
    """What is compared of a dead letter."""
    return headers["tailrace-reason"], key
