"""An event that is late because its input had been idle is counted apart, by the input. Which one is late is a law of the oracle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.engine import tape
from tailrace.testing import Harness


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


def joining(*more: str) -> tuple[tr.App, dict[str, tr.Topic[Event, str]]]:
    """An actor with two inputs, of which one is out of order, and more."""
    app = tr.App("joining", partitions=1)
    options: dict[str, Any] = {"key": "key", "event_time": "at", "idle_after": "5s"}
    topics = {name: app.topic(name, Event, **options) for name in ("carts", *more)}
    topics["orders"] = app.topic("orders", Event, out_of_order="20ms", **options)

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
