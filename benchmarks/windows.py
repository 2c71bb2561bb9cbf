"""Windows of the library beside the same by hand: what an event costs, over an actor that only counts.

The events are spread over hours: a key has some 70 of them in an hour, and sessions of ten with pauses between them. The actors by hand
are what a user writes who knows the engine: small tuples, a timer per window. They add floats as they come, so their sums
depend on the order; those of the library do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import msgspec

import tailrace as tr
from benchmarks import apps
from benchmarks.apps import Event
from benchmarks.drive import Drive
from benchmarks.measure import Row, Scale, alternating, rate
from tailrace import agg, windows

HOUR_MS = 3_600_000
QUARTER_MS = HOUR_MS // 4
GAP_MS = 30_000


class Result(msgspec.Struct, frozen=True, gc=False):
    key: str
    start: int
    value: float


Pair = tuple[tr.App, tr.App]
"""An app with an operator, and one by hand."""


def _app(name: str) -> tuple[tr.App, tr.Topic[Event, str], tr.Topic[Result, str]]:
    app = tr.App(name, partitions=1)
    events = app.topic("events", Event, key="key", key_type=str, event_time="at", out_of_order="1s")
    return app, events, app.topic("results", Result, key="key", key_type=str)


def counting() -> tr.App:
    """An actor that counts, and emits nothing."""
    app, events, _ = _app("counting")

    @app.actor
    class Counter(tr.Actor):
        count: int = 0

        @tr.process(events)
        def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
            del event, ctx
            self.count += 1

    return app


def tumbling() -> Pair:
    """The mean of each hour."""
    app, events, results = _app("tumbling")
    app.window("hours", events, windows.tumbling("1h"), agg.mean(lambda e: e.value), into=results)
    other, same, out = _app("tumbling-by-hand")

    @other.actor
    class Hours(tr.Actor):
        open: tuple[tuple[int, int, float], ...] = ()

        @tr.process(same)
        def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
            start = event.at - event.at % HOUR_MS
            if start + HOUR_MS - 1 <= ctx.watermark:
                return
            for at, (first, count, total) in enumerate(self.open):
                if first == start:
                    self.open = (
                        *self.open[:at],
                        (start, count + 1, total + event.value),
                        *self.open[at + 1 :],
                    )
                    return
            self.open = (*self.open, (start, 1, float(event.value)))
            ctx.set_timer(start + HOUR_MS - 1)

        @tr.on_timer
        def over(self, ctx: tr.Context[str]) -> None:
            for first, count, total in self.open:
                if first == ctx.event_time - HOUR_MS + 1:
                    ctx.emit(out, Result(ctx.key, first, total / count))
            self.open = tuple(one for one in self.open if one[0] != ctx.event_time - HOUR_MS + 1)

    return app, other


def sliding() -> Pair:
    """The mean of an hour, every quarter of an hour. By hand, each event adds to four windows."""
    app, events, results = _app("sliding")
    app.window(
        "moving", events, windows.sliding("1h", every="15m"), agg.mean(lambda e: e.value), into=results
    )
    other, same, out = _app("sliding-by-hand")

    @other.actor
    class Moving(tr.Actor):
        open: tuple[tuple[int, int, float], ...] = ()

        @tr.process(same)
        def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
            last = event.at - event.at % QUARTER_MS
            found = {first: (count, total) for first, count, total in self.open}
            for start in range(last - HOUR_MS + QUARTER_MS, last + 1, QUARTER_MS):
                if start + HOUR_MS - 1 > ctx.watermark:
                    if start not in found:
                        ctx.set_timer(start + HOUR_MS - 1)
                    count, total = found.get(start, (0, 0.0))
                    found[start] = (count + 1, total + event.value)
            self.open = tuple((first, *one) for first, one in found.items())

        @tr.on_timer
        def over(self, ctx: tr.Context[str]) -> None:
            for first, count, total in self.open:
                if first == ctx.event_time - HOUR_MS + 1:
                    ctx.emit(out, Result(ctx.key, first, total / count))
            self.open = tuple(one for one in self.open if one[0] != ctx.event_time - HOUR_MS + 1)

    return app, other


def sessions() -> Pair:
    """The number of events of each session."""
    app, events, results = _app("sessions")
    app.window("visits", events, windows.sessions(GAP_MS), agg.count(), into=results)
    other, same, out = _app("sessions-by-hand")

    @other.actor
    class Visits(tr.Actor):
        open: tuple[tuple[int, int, int], ...] = ()

        @tr.process(same)
        def on_event(self, event: Event, ctx: tr.Context[str]) -> None:
            at = event.at
            near = [one for one in self.open if one[0] - GAP_MS <= at <= one[1] + GAP_MS]
            if not near and at + GAP_MS <= ctx.watermark:
                return
            first = min([at, *(one[0] for one in near)])
            last = max([at, *(one[1] for one in near)])
            merged = first, last, 1 + sum(one[2] for one in near)
            self.open = tuple(sorted([merged, *(one for one in self.open if one not in near)]))
            if not near:
                ctx.set_timer(self.open[0][1] + GAP_MS, "over")

        @tr.on_timer("over")
        def over(self, ctx: tr.Context[str]) -> None:
            for first, last, count in self.open:
                if last + GAP_MS <= ctx.event_time:
                    ctx.emit(out, Result(ctx.key, first, count))
            self.open = tuple(one for one in self.open if one[1] + GAP_MS > ctx.event_time)
            if self.open:
                ctx.set_timer(self.open[0][1] + GAP_MS, "over")

    return app, other


def bursts(count: int, names: Sequence[str]) -> Iterator[Event]:
    """Visits: a key has ten events, some half a second out of order, then none for a while."""
    random, found, at = Random(1), list[Event](), 0
    while len(found) < count:
        at += max(1, 200_000 // len(names))
        key = names[random.randrange(len(names))]
        found += [Event(key, at + n * 1_500 + random.randrange(500), 1) for n in range(10)]
    found.sort(key=lambda one: one.at + one.value % 2)
    return iter(found[:count])


def windowed(scale: Scale) -> list[Row]:
    """Tumbling, sliding and session windows, each beside the same by hand."""
    names = apps.keys(max(10, scale.keys // 100))
    spread = [*apps.events(scale.events, names, per_ms=len(names) * 70 / HOUR_MS)]
    rows: list[Row] = []
    for name, pair, events, most_us in (
        ("tumbling 1h, mean", tumbling(), spread, 3.0),
        ("sliding 1h by 15m, mean", sliding(), spread, 5.0),
        ("sessions, count", sessions(), [*bursts(scale.events, names)], 10.0),
    ):

        def through(app: tr.App, events: list[Event] = events) -> Drive:
            drive = Drive(app)
            drive.feed(events)
            return drive

        least = rate(len(events), lambda through=through: through(counting()), scale.repeats)  # type: ignore[misc]
        operator, by_hand = pair
        found = alternating(
            len(events),
            lambda through=through, operator=operator: through(operator),  # type: ignore[misc]
            lambda through=through, by_hand=by_hand: through(by_hand),  # type: ignore[misc]
            scale.repeats,
        )
        cost_us = 1e6 / found.case - 1e6 / least
        rows.append(
            Row(
                case=f"windows: {name}",
                measured=cost_us,
                unit="us/event",
                target=f"{most_us:g} us or less over a count",
                met=cost_us <= most_us,
            )
        )
        rows.append(
            Row(
                case=f"windows: {name}, beside the same by hand",
                measured=found.case,
                unit="events/s",
                target="83 % or more",
                met=found.ratio >= 0.83,
                ratio=found.ratio,
                compared_with="by hand",
                compared=found.baseline,
            )
        )
    return rows
