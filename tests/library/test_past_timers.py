"""What a timer that was set in the past emits to a stream is late for each receiver whose watermark has passed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.engine.settings import TaskSettings
from tailrace.testing import COMMIT, CRASH, END, RELOAD, Harness

TIMES = (0, 1, 100, 2, 101)
"""Of the events in the order of arrival; that at 2 is late."""


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


class Given(msgspec.Struct, frozen=True):
    key: str
    start: int
    value: int
    kind: str = "final"


def counted(app: tr.App, quiet: Any, given: Any, which: Any, **options: Any) -> None:
    app.window("w", quiet, which, agg.count(), into=given, **options)


def passed(app: tr.App, stream: Any, given: Any) -> None:
    def show(event: Any, ctx: tr.Context[str]) -> None:
        ctx.emit(given, Given(ctx.key, ctx.event_time, 1))

    show.__annotations__ = {}
    app.process(stream, emits=(given,))(show)


def joined(app: tr.App, quiet: Any, given: Any, join: str) -> None:
    others = app.topic("others", Event)
    stream: Any = (
        app.join("j", quiet, others, within=9, how="left")
        if join == "join"
        else app.window_join("j", quiet, others, windows.tumbling(10), how="left")
        if join == "window"
        else app.asof("j", quiet, others, keep=9)
        if join == "asof"
        else app.gather("j", quiet, others, within=9)
    )
    passed(app, stream, given)


def field(app: tr.App, quiet: Any, given: Any, own: bool = False) -> None:
    held: Any = tr.windowed(windows.tumbling(10), agg.count())

    @app.actor
    class Rooms(tr.Actor):
        hours: tr.Windows[Any, int] = held

        @tr.process(quiet)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.hours.add(event)

        @tr.on_window(held)
        def hour(self, hour: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
            ctx.emit(given, Given(ctx.key, hour.start, hour.value))


Case = tuple[Callable[[tr.App, Any, Any], Any], list[tuple[int, int, str]], int]
# In time are the events at 5, 6, 105 and 106 (each five later); that at 7 is late.
CASES: dict[str, Case] = {
    "window": (
        lambda app, quiet, given: counted(app, quiet, given, windows.tumbling(10)),
        [(0, 2, "final"), (100, 2, "final")],
        1,
    ),
    "window with lateness": (
        lambda app, quiet, given: counted(app, quiet, given, windows.tumbling(10), lateness=1000),
        [(0, 2, "final"), (0, 3, "correction"), (100, 2, "final")],
        0,
    ),
    "sliding": (
        lambda app, quiet, given: counted(app, quiet, given, windows.sliding(10, every=5)),
        [(0, 2, "final"), (5, 2, "final"), (100, 2, "final"), (105, 2, "final")],
        1,
    ),
    "sessions": (
        lambda app, quiet, given: counted(app, quiet, given, windows.sessions(10)),
        [(5, 2, "final"), (105, 2, "final")],
        1,
    ),
    "dedupe": (
        lambda app, quiet, given: passed(app, app.dedupe("d", quiet, within=9, by="at"), given),
        [(at, 1, "final") for at in (5, 6, 105, 106)],
        1,
    ),
    "limit": (
        lambda app, quiet, given: passed(app, app.limit("l", quiet, 9, per=10), given),
        [(at, 1, "final") for at in (5, 6, 105, 106)],
        1,
    ),
    "field": (field, [(0, 2, "final"), (100, 2, "final")], 1),
    "join": (
        lambda app, quiet, given: joined(app, quiet, given, "join"),
        [(at + 9, 1, "final") for at in (5, 6, 105, 106)],
        1,
    ),
    "window join": (
        lambda app, quiet, given: joined(app, quiet, given, "window"),
        [(9, 1, "final")] * 2 + [(109, 1, "final")] * 2,
        1,
    ),
    "asof": (
        lambda app, quiet, given: joined(app, quiet, given, "asof"),
        [(at, 1, "final") for at in (5, 6, 105, 106)],
        1,
    ),
    "gather": (
        lambda app, quiet, given: joined(app, quiet, given, "gather"),
        [(14, 1, "final"), (114, 1, "final")],
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("steps", [(), (COMMIT, CRASH), (RELOAD,)])
def test_what_a_timer_in_the_past_emits_is_late(name: str, steps: Any) -> None:
    declare, wanted, dropped = CASES[name]
    is_join = name in ("join", "window join", "asof", "gather")
    app = tr.App("a", partitions=1)
    events = app.topic("events", Event, time_range=(-(10**9), 10**9))
    given, quiet = app.topic("given", Given, key="key"), app.stream("quiet", Event, key_type=str)

    @app.actor
    class Debounce(tr.Actor, order="event-time" if is_join else "arrival"):
        """Passes each event on, five milliseconds later."""

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 5, f"due:{event.at}")

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(quiet, Event(ctx.key, ctx.event_time))

    declare(app, quiet, given)
    with Harness(app) as h:
        h.run([one for at in TIMES for one in ((events, Event("a", at)), *steps)] + [END])
        found = [(one.start, one.value, one.kind) for one in h.emitted(given)]
        assert (sorted(found), h.dropped) == (sorted(wanted), dropped)
        h.replay()


def test_a_timer_in_the_past_adds_nothing_to_a_window_that_has_closed() -> None:
    app = tr.App("a", partitions=1)
    events, given = app.topic("events", Event), app.topic("given", Given, key="key")
    held: Any = tr.windowed(windows.tumbling(10), agg.count())

    @app.actor
    class Room(tr.Actor):
        hours: tr.Windows[Any, int] = held

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 5, f"due:{event.at}")

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            self.hours.add(None)

        @tr.on_window(held)
        def hour(self, hour: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
            ctx.emit(given, Given(ctx.key, hour.start, hour.value))

    with Harness(app) as h:
        h.send(events, *(Event("a", at) for at in TIMES))
        h.end_of_input()
        assert [(one.start, one.value) for one in h.emitted(given)] == [(0, 2), (100, 2)]
        assert h.dropped == 1
        h.replay()


def test_a_commit_between_a_timer_in_the_past_and_its_firing_changes_nothing() -> None:
    """Two of them: the second fires after a commit that falls into the drain."""
    app = tr.App("a", partitions=1)
    events, quiet = app.topic("events", Event), app.stream("quiet", Event, key_type=str)
    given = app.topic("given", Given, key="key")

    @app.actor
    class Late(tr.Actor):
        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            if ctx.is_late:
                for later in (1, 2, 3):
                    ctx.set_timer(event.at + later, f"due:{later}")
            else:
                ctx.emit(quiet, event)

        @tr.on_timer("due")
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(quiet, Event(ctx.key, ctx.event_time))

    app.window("w", quiet, windows.tumbling(10), agg.count(), into=given)
    found: set[Any] = set()
    for budget in (1, 10_000):
        with Harness(app, settings=TaskSettings(firing_budget=budget), commit_every=1) as h:
            h.run([one for at in TIMES for one in ((events, Event("a", at)), CRASH)] + [END])
            found.add((tuple((one.start, one.value) for one in h.emitted(given)), h.dropped))
            h.replay()
    assert found == {(((0, 2), (100, 2)), 3)}
