"""A message from outside of its receiver's circle may be late, as an event may: it is handled, told and
counted.
"""

from __future__ import annotations

from typing import Any

import msgspec

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


def told(h: Harness) -> list[tuple[int, bool]]:
    second: Any = next(one.cls for one in h.plan.actors if one.name == "Second")
    instance = h.state(second, "k")
    return [] if instance is None else list(getattr(instance, "told"))  # noqa: B009  # the class is made within a function


def test_a_message_in_time_is_not_late() -> None:
    app, ones, twos = sending()
    with Harness(app) as h:
        h.send(twos, Event("k", 50_000))
        h.send(ones, Event("k", 100))
        h.advance_watermark(60_000)
        assert (told(h), h.late) == ([(100, False)], 0)
        h.replay()


def test_a_message_of_an_actor_whose_inputs_were_idle_is_late_told_and_counted() -> None:
    app, ones, twos = sending()
    with Harness(app) as h:
        h.send(twos, Event("k", 50_000))
        h.fall_idle(ones)
        h.send(twos, Event("k", 61_000))
        h.send(ones, Event("k", 200), Event("k", 30_000))
        h.advance_watermark(70_000)
        assert (told(h), h.late) == ([(200, True), (30_000, True)], 2)
        h.replay()


def test_within_a_circle_no_message_is_late() -> None:
    app, ones, twos = sending(answer=True)
    with Harness(app) as h:
        h.send(twos, Event("k", 50_000))
        h.send(ones, Event("k", 200))
        h.advance_watermark(70_000)
        assert ([late for _, late in told(h)], h.late) == ([False], 0)
        h.replay()
