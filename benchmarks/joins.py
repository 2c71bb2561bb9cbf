"""An interval join of the library beside the same by hand: impressions, and the clicks within ten minutes.

Nine of ten clicks are about one of the last impressions. The actor by hand keeps impressions in a tuple, and has one timer.
"""

from __future__ import annotations

from random import Random

import msgspec

import tailrace as tr
from benchmarks import apps
from benchmarks.apps import Event
from benchmarks.drive import SLICE, Drive
from benchmarks.measure import Row, Scale, alternating

TEN_MINUTES_MS = 600_000


class Click(msgspec.Struct, frozen=True, gc=False):
    key: str
    at: int
    value: int


class Clicked(msgspec.Struct, frozen=True, gc=False):
    key: str
    shown: int
    clicked: int


class Both(msgspec.Struct, frozen=True, gc=False):
    left: Event
    right: Click


def _app(name: str) -> tuple[tr.App, tr.Topic[Event, str], tr.Topic[Click, str], tr.Topic[Clicked, str]]:
    app = tr.App(name, partitions=1)
    shown = app.topic("a-shown", Event, key="key", key_type=str, event_time="at", out_of_order="1s")
    clicks = app.topic("b-clicks", Click, key="key", key_type=str, event_time="at", out_of_order="1s")
    return app, shown, clicks, app.topic("clicked", Clicked, key="key", key_type=str)


def operator() -> tr.App:
    """``app.join``."""
    app, shown, clicks, clicked = _app("join")

    @app.process(app.join("near", shown, clicks, within=("0s", "10m")))
    def publish(both: tr.Pair[Event, Click], ctx: tr.Context[str]) -> None:
        ctx.emit(clicked, Clicked(ctx.key, both.left.value, both.right.value))

    return app


def by_hand() -> tr.App:
    """The same as an actor."""
    app, shown, clicks, clicked = _app("join-by-hand")
    near = app.stream("near", Both, key_type=str)

    @app.actor
    class Near(tr.Actor, order="event-time"):
        kept: tuple[Event, ...] = ()

        @tr.process(shown)
        def show(self, event: Event, ctx: tr.Context[str]) -> None:
            if not self.kept:
                ctx.set_timer(event.at + TEN_MINUTES_MS, "over")
            self.kept = (*self.kept, event)

        @tr.process(clicks)
        def click(self, event: Click, ctx: tr.Context[str]) -> None:
            for one in self.kept:
                ctx.emit(near, Both(one, event))

        @tr.on_timer("over")
        def over(self, ctx: tr.Context[str]) -> None:
            self.kept = tuple(one for one in self.kept if one.at > ctx.event_time - TEN_MINUTES_MS)
            if self.kept:
                ctx.set_timer(self.kept[0].at + TEN_MINUTES_MS, "over")

    @app.process(near)
    def publish(both: Both, ctx: tr.Context[str]) -> None:
        ctx.emit(clicked, Clicked(ctx.key, both.left.value, both.right.value))

    return app


def history(count: int, keys: int) -> tuple[list[Event], list[Click]]:
    """Impressions and clicks of an hour, some half a second out of order."""
    draw, names = Random(1).random, apps.keys(keys)
    shown, clicks = list[Event](), list[Click]()
    for n in range(count // 2):
        at = n * 6 * TEN_MINUTES_MS // (count // 2)
        shown.append(Event(names[int(draw() * keys)], at + int(draw() * 500), n))
        recent = shown[-1 - int(draw() * min(n, keys))].key if draw() < 0.9 else names[int(draw() * keys)]
        clicks.append(Click(recent, at + 200 + int(draw() * 500), n))
    return shown, clicks


def joined(scale: Scale) -> list[Row]:
    """Inner join, beside the same by hand."""
    inputs = history(scale.events, max(10, scale.keys // 5))

    def through(app: tr.App) -> Drive:
        drive = Drive(app)
        rest = [list(one) for one in inputs]
        while any(rest):
            for number in range(2):
                drive.run(number, drive.heads(rest[number][:SLICE], number))
                rest[number] = rest[number][SLICE:]
        return drive

    found = alternating(scale.events, lambda: through(operator()), lambda: through(by_hand()), scale.repeats)
    return [
        Row(
            case="joins: within 10m, beside the same by hand",
            measured=found.case,
            unit="events/s",
            target="83 % or more",
            met=found.ratio >= 0.83,
            ratio=found.ratio,
            compared_with="by hand",
            compared=found.baseline,
            note=f"{1e6 / found.case:.1f} us per event; by hand {1e6 / found.baseline:.1f}",
        )
    ]
