"""A late event is counted once, and routed once, however many operators take its topic and in whatever order."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import COMMIT, CRASH, END, RELOAD, Harness


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


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
            h.run(
                [
                    *first,
                    *steps,
                    (other, Event("x", 2_000)),
                    *steps,
                    *then,
                    *steps,
                    (other, Event("x", 5_000)),
                    *steps,
                    END,
                ]
            )
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
