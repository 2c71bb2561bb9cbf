"""The end of input of operators with more open for a key than timers may follow each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace import agg, windows
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import TimerLoopError
from tailrace.testing import Harness

MOST, MANY = 5, 40


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    id: int = 0


class Given(msgspec.Struct, frozen=True):
    key: str
    at: int


Case = tuple[Callable[[tr.App, Any, Any], Any], int]
CASES: dict[str, Case] = {
    "sliding": (lambda app, a, b: app.window("w", a, windows.sliding(400, every=10), agg.count()), MANY + 39),
    "fill": (
        lambda app, a, b: app.window("w", a, windows.tumbling(10), agg.count(), fill=0, fill_windows=MANY),
        2 * MANY,
    ),
    "tumbling": (lambda app, a, b: app.window("w", a, windows.tumbling(10), agg.count()), MANY),
    "lateness": (
        lambda app, a, b: app.window("w", a, windows.tumbling(10), agg.count(), lateness=5_000),
        MANY,
    ),
    "sessions": (lambda app, a, b: app.window("w", a, windows.sessions(5), agg.count()), MANY),
    "dedupe": (lambda app, a, b: app.dedupe("w", a, within=5_000), MANY),
    "limit": (lambda app, a, b: app.limit("w", a, 1, per=10), MANY),
    "left join": (lambda app, a, b: app.join("w", a, b, within=(0, 5_000), how="left"), MANY),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_operator_has_open_is_no_loop_of_timers(name: str) -> None:
    define, results = CASES[name]
    app = tr.App("ends", partitions=1)
    a, b, out = (
        app.topic("a", Event, out_of_order=100_000),
        app.topic("b", Event),
        app.topic("out", Given, key="key"),
    )

    def show(one: Any, ctx: tr.Context[str]) -> None:
        ctx.emit(out, Given(ctx.key, ctx.event_time))

    show.__annotations__ = {}
    app.process(define(app, a, b), emits=(out,))(show)
    with Harness(app, settings=TaskSettings(timer_loop_cap=MOST)) as h:
        h.send(a, *(Event("k", at * 10, at) for at in range(MANY)))
        h.end_of_input()
        assert len(h.emitted(out)) == results
        h.replay()


@pytest.mark.parametrize("beats", [False, True])
def test_a_timer_of_the_user_without_end_is_an_error_beside_a_field_of_windows(beats: bool) -> None:
    app = tr.App("ends", partitions=1)
    a = app.topic("a", Event, out_of_order=100_000)

    @app.actor
    class Beating(tr.Actor):
        hours: tr.Windows[Event, int] = tr.windowed(windows.tumbling(10), agg.count())

        @tr.process(a)
        def take(self, event: Event, ctx: tr.Context[str]) -> None:
            self.hours.add(event)
            ctx.set_timer(event.at + 3, "beat")

        @tr.on_timer("beat")
        def beat(self, ctx: tr.Context[str]) -> None:
            if beats:
                ctx.set_timer(ctx.event_time + 1_000, "beat")

    with Harness(app, settings=TaskSettings(timer_loop_cap=MOST)) as h:
        h.send(a, *(Event("k", at * 10) for at in range(MANY)))
        if not beats:
            h.end_of_input()
            return
        with pytest.raises(TimerLoopError, match="A heartbeat never ends"):
            h.end_of_input()
