"""A message from outside of its receiver's circle may be late, as an event may: it is handled, told and
counted.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Told(msgspec.Struct, frozen=True):
    text: str


def sending(*, answer: bool = False) -> tuple[tr.App, tr.Topic[Event, str], tr.Topic[Event, str]]:
    """``First`` tells ``Second`` of its events by timers; both have an input. With ``answer`` they form a
    circle.
    """
    app = tr.App("sending", partitions=1)
    ones = app.topic("ones", Event, key="key", event_time="at")
    twos = app.topic("twos", Event, key="key", event_time="at")

    @app.actor(emits=["Second"])
    class First(tr.Actor):
        seen: int = 0

        @tr.process(ones)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1
            ctx.set_timer(event.at, f"say:{event.at}")

        @tr.on_timer("say")
        def say(self, ctx: tr.Context[str]) -> None:
            ctx.send(Second, ctx.key, Told("done"))

        @tr.on_message
        def answered(self, message: Told, ctx: tr.Context[str]) -> None:
            self.seen += 100

    @app.actor(emits=["First"] if answer else [])
    class Second(tr.Actor, order="arrival"):
        seen: int = 0
        told: list[tuple[int, bool]] = tr.field(default_factory=list)

        @tr.process(twos)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1

        @tr.on_message
        def hear(self, message: Told, ctx: tr.Context[str]) -> None:
            self.told.append((ctx.event_time, ctx.is_late))

    return app, ones, twos


@pytest.mark.parametrize(
    ("answer", "idle", "sent"),
    [(False, False, (100,)), (False, True, (200, 30_000)), (True, False, (200,))],
    ids=["in time", "of an actor whose inputs were idle", "within a circle"],
)
def test_a_message_is_late_told_and_counted_if_its_sender_was_idle_and_outside_of_the_circle(
    answer: bool, idle: bool, sent: tuple[int, ...]
) -> None:
    app, ones, twos = sending(answer=answer)
    with Harness(app) as h:
        h.send(twos, Event("k", 50_000))
        if idle:
            h.fall_idle(ones)
            h.send(twos, Event("k", 61_000))
        h.send(ones, *(Event("k", at) for at in sent))
        h.advance_watermark(70_000)
        second: Any = next(one.cls for one in h.plan.actors if one.name == "Second")
        instance: Any = h.state(second, "k")
        assert ([late for _, late in instance.told], h.late) == ([idle] * len(sent), idle * len(sent))
        assert answer or [at for at, _ in instance.told] == [*sent]  # a circle has its own time
        h.replay()
