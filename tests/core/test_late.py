"""Late events and messages: each is handled as its topic says, told and counted once, and counted apart if its input had been idle.

Which one is late is a law of the oracle.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.testing import COMMIT, CRASH, END, RELOAD, Harness


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


def joining(*more: str) -> tuple[tr.App, dict[str, tr.Topic[Event, str]]]:
    """An actor with two inputs, of which one is out of order, and more."""
    app = tr.App("joining", partitions=1)
    topics = {name: app.topic(name, Event, key_type=str, idle_after="5s") for name in ("carts", *more)}
    topics["orders"] = app.topic("orders", Event, key_type=str, out_of_order="20ms", idle_after="5s")

    @app.actor
    class Join(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(*topics.values())
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app, topics


def cut_of(h: Harness) -> tape.Cut:
    return tape.decode_cut(h.log.read("joining.changelog")[-1].value or b"")


def test_the_cut_has_how_long_an_input_was_idle_and_how_far_it_came_back_behind() -> None:
    app, topics = joining()
    with Harness(app, now_ms=1_000_000) as h:
        h.send(topics["carts"], Event("k", 1_000))
        for at in range(2_000, 63_000, 1_000):
            h.advance_clock_by("1s")
            h.send(topics["orders"], Event("k", at))
        h.send(topics["carts"], Event("k", 2_500), Event("k", 2_600))
        h.send(topics["orders"], Event("k", 100))  # out of order by more than declared: another cause
        cut = cut_of(h)
        assert (h.late, dict(h.late_after_idle)) == (3, {"carts": 2})
        assert cut.idleness["carts"] == tape.Idleness(
            since_ms=1_000_000, late=2, woke_ms=1_061_000, idle_ms=61_000, behind_ms=62_000 - 21 - 2_500
        )
        h.advance_clock_by("6s")
        h.send(topics["orders"], Event("k", 100))  # and that it has been idle meanwhile is not the reason
        assert (h.late, +Counter(h.late_after_idle)) == (4, {"carts": 2})


def test_the_events_of_a_new_input_are_not_late_after_idleness() -> None:
    app, topics = joining()
    with Harness(app) as h:
        h.send(topics["orders"], Event("k", 50_000))
        h.send(topics["carts"], Event("k", 60_000))
        snapshot = h.snapshot()
    later, topics = joining("refunds")
    with Harness(later, start=snapshot) as h:
        h.send(topics["refunds"], Event("k", 100))
        assert (h.late, +Counter(h.late_after_idle)) == (1, Counter())


class Told(msgspec.Struct, frozen=True):
    text: str


def sending(*, answer: bool = False) -> tuple[tr.App, tr.Topic[Event, str], tr.Topic[Event, str]]:
    """``First`` tells ``Second`` of its events by timers; both have an input. With ``answer`` they form a
    circle.
    """
    app = tr.App("sending", partitions=1)
    ones = app.topic("ones", Event, key_type=str)
    twos = app.topic("twos", Event, key_type=str)

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


FIRST = (1_000, 0)
THEN = (3_000, 10)
"""The second of each is late."""


def actor(app: tr.App, name: str, order: Any, *topics: Any) -> type[tr.Actor]:
    class Taking(tr.Actor, order=order):
        times: list[tuple[int, bool]] = tr.field(default_factory=list)

        @tr.process(*topics)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.times.append((event.at, ctx.is_late))

    return app.actor(name=name)(Taking)


@pytest.mark.parametrize("mode", ["handle", "drop", "topic"])
@pytest.mark.parametrize("orders", list(product(("arrival", "event-time"), repeat=3)))
def test_a_late_event_is_counted_and_routed_once(mode: str, orders: tuple[str, ...]) -> None:
    for steps in ((), (COMMIT, CRASH), (RELOAD,)):
        app = tr.App("late", partitions=1)
        late, other = app.topic("late", Event), app.topic("other", Event)
        options: Any = {"late": late if mode == "topic" else mode}
        events = app.topic("events", Event, **options)
        one = actor(app, "one", orders[0], events)
        two = actor(app, "two", orders[1], events, other)  # it waits for the other topic
        three = actor(app, "three", orders[2], events)
        with Harness(app) as h:
            first, then = ([(events, Event("x", at)) for at in times] for times in (FIRST, THEN))
            before, after = (other, Event("x", 2_000)), (other, Event("x", 5_000))
            h.run([*first, *steps, before, *steps, *then, *steps, after, *steps, END])
            assert [one.at for one in h.emitted(late)] == ([0, 10] if mode == "topic" else [])
            assert h.late == 2
            for cls, order in ((one, orders[0]), (two, orders[1]), (three, orders[2])):
                wanted = [(at, False) for at in (1_000, 3_000)]
                if mode == "handle":
                    wanted += [(0, True), (10, True)]
                if cls is two:
                    wanted += [(2_000, False), (5_000, False)]
                if cls is two and order == "arrival":  # the first one comes before the other topic has any
                    wanted = [*(each for each in wanted if each[0]), (0, False)]
                state: Any = h.state(cls, "x")
                assert state is not None
                assert sorted(state.times) == sorted(wanted)
            h.replay()
