"""An event that is late because its input had been idle is counted apart, by the input."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.testing import CRASH, REBALANCE, RELOAD, Harness

IDLE_MS = 5_000
DISORDER_MS = 20


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


def joining(late: Any = "handle") -> tuple[tr.App, dict[str, tr.Topic[Event, str]]]:
    """An actor with two inputs, of which one is out of order."""
    app = tr.App("joining", partitions=1)
    topics = {
        "orders": app.topic(
            "orders", Event, key="key", event_time="at", idle_after="5s", out_of_order="20ms"
        ),
        "carts": app.topic("carts", Event, key="key", event_time="at", idle_after="5s", late=late),
    }

    @app.actor
    class Join(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(*topics.values())
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1

    return app, topics


@dataclass
class Oracle:
    """What two inputs of one actor do, by the documentation alone."""

    now_ms: int = 0
    lag_ms: dict[str, int] = field(default_factory=lambda: {"orders": DISORDER_MS + 1, "carts": 1})
    marks: dict[str, int] = field(default_factory=lambda: {"orders": NO_WATERMARK, "carts": NO_WATERMARK})
    quiet_since_ms: dict[str, int] = field(default_factory=lambda: {"orders": 0, "carts": 0})
    idle: set[str] = field(default_factory=set[str])
    actor: int = NO_WATERMARK
    late: int = 0
    after_idle: Counter[str] = field(default_factory=Counter[str])

    def take(self, name: str, at: int) -> None:
        self.idle.discard(name)
        if at <= self.actor:
            self.late += 1
            self.after_idle[name] += at > self.marks[name]
        self.marks[name] = max(self.marks[name], at - self.lag_ms[name])
        self.quiet_since_ms[name] = self.now_ms
        self._advance()

    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for name, since_ms in self.quiet_since_ms.items():
            if self.now_ms - since_ms >= IDLE_MS:
                self.idle.add(name)
                self._advance()

    def restart(self) -> None:
        """An input becomes idle when it had nothing for so long since the start."""
        for name in self.quiet_since_ms:
            self.quiet_since_ms[name] = self.now_ms

    def _advance(self) -> None:
        counting = [mark for name, mark in self.marks.items() if name not in self.idle]
        self.actor = max(self.actor, min(counting) if counting else max(self.marks.values()))


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("orders", "carts")), st.integers(0, 200)),
        st.tuples(st.just("wait"), st.sampled_from((1, 2_000, 4_999, 5_000, 60_000))),
        st.sampled_from((("crash", 0), ("restart", 0))),
    ),
    max_size=30,
)


@given(steps)
def test_an_event_is_late_after_idleness_if_its_own_input_had_not_come_to_it(
    history: list[tuple[str, int]],
) -> None:
    app, topics = joining()
    oracle = Oracle()
    with Harness(app) as h:
        h.advance_clock(0)
        for what, number in history:
            if what == "wait":
                h.advance_clock_by(number)
                oracle.wait(number)
            elif what == "crash":
                h.crash()
                h.advance_clock_by(0)  # it runs again at once
                oracle.restart()
            elif what == "restart":
                h.run([REBALANCE])
                oracle.restart()
            else:
                h.send(topics[what], Event("k", number))
                oracle.take(what, number)
        assert (h.late, +Counter(h.late_after_idle)) == (oracle.late, +oracle.after_idle)
        h.replay()


def test_no_other_input_passes_what_an_idle_one_has_to_read() -> None:
    app, topics = joining()
    with Harness(app) as h:
        h.send(topics["orders"], Event("k", 1_000))
        h.fall_idle(topics["orders"])
        for name, at in (("carts", 2_900), ("orders", 2_500)):  # in one step of the merge the carts go first
            h.log.append(name, b"k", msgspec.json.encode(Event("k", at)), 0)
        h.commit()
        assert (h.late, +Counter(h.late_after_idle)) == (0, Counter())
        h.replay()


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
    later = tr.App("joining", partitions=1)
    names = [later.topic(name, Event, key="key", event_time="at") for name in ("orders", "carts", "refunds")]

    @later.actor
    class Join(tr.Actor, order="arrival"):
        seen: int = 0

        @tr.process(*names)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.seen += 1

    with Harness(later, start=snapshot) as h:
        h.send(names[2], Event("k", 100))
        assert (h.late, +Counter(h.late_after_idle)) == (1, Counter())


def test_an_event_that_failed_is_counted_once() -> None:
    app, topics = joining("drop")
    with Harness(app) as h:
        h.send(topics["carts"], Event("k", 1_000))
        h.send(topics["orders"], Event("k", 90_000))
        h.fall_idle(topics["carts"])
        h.run([(topics["carts"], Event("k", 2_000)), CRASH, RELOAD])
        assert dict(h.late_after_idle) == {"carts": 1}
        h.replay()
