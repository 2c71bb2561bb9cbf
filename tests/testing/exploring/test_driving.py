"""One run of a schedule: it repeats itself, loses nothing in its faults, and ends where every
other run ends.
"""

from __future__ import annotations

from typing import Any

import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.testing.exploring.driving import Ends, Run
from tailrace.testing.exploring.feed import Feed, feed_of
from tailrace.testing.exploring.outcome import Outcome, differing
from tailrace.testing.exploring.schedules import drawn
from tailrace.testing.exploring.tracks import Trace, Tracer
from tests.testing.exploring import apps
from tests.testing.exploring.apps import Tick


def feed(app: tr.App, items: Any = None) -> Feed:
    found = apps.ticks(app) if items is None else items
    return feed_of(
        app.plan(),
        [Output(topic.name, topic.encode_key(event), topic.encode(event), 0) for topic, event in found],
    )


def run(
    app: tr.App, of: Feed, number: int, ends: Ends, tracer: Tracer | None = None, now_ms: int = 0
) -> Outcome:
    plan = app.plan()
    return Run(plan, of, drawn(plan, of, 0, number), ends, now_ms, tracer).run()


def traced(app: tr.App, of: Feed, number: int, ends: Ends) -> Trace:
    tracer = Tracer(app.plan(), ())
    run(app, of, number, ends, tracer)
    return tracer.trace


def test_every_record_is_handled_once_whatever_crashes() -> None:
    app = apps.counts()
    plan, of = app.plan(), feed(app)
    ends = Ends.of(plan, of)
    run(app, of, 0, ends)
    struck = [number for number in range(1, 60) if drawn(plan, of, 0, number).faults]
    assert len(struck) > 20
    wanted = sorted(step.cause for track in traced(app, of, 0, ends).tracks.values() for step in track)
    assert len(wanted) == of.count
    for number in struck:
        found = traced(app, of, number, ends).tracks
        assert sorted(step.cause for track in found.values() for step in track) == wanted


def repeating() -> tr.App:
    """A timer that sets itself again for ever, and one that is set for long after the last event."""
    app = tr.App("repeating", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at")
    twos = app.topic("twos", Tick, key="key", event_time="at")

    @app.actor
    class Repeating(tr.Actor, order="arrival"):
        fired: int = 0

        @tr.process(ones, twos)
        def begin(self, event: Tick, ctx: tr.Context[str]) -> None:
            ctx.set_timer(10_000, "again")
            if event.at == 0:
                ctx.set_timer(1_000_000, "last")

        @tr.on_timer("again", unless_ended=True)
        def again(self, ctx: tr.Context[str]) -> None:
            self.fired += 1
            ctx.set_timer(ctx.event_time + 10_000, "again")

        @tr.on_timer("last")
        def last(self, ctx: tr.Context[str]) -> None:
            self.fired += 1_000

    return app


def test_a_timer_that_repeats_itself_is_at_the_same_place_at_the_end_of_every_run() -> None:
    app = repeating()
    begin = [(app.topics["ones"], Tick("k0", 0)), (app.topics["twos"], Tick("k1", 3_000))]
    rest = [(app.topics["twos"], Tick(f"z{n}", n * 9_000)) for n in range(12)]
    of = feed(app, begin + rest)
    ends = Ends.of(app.plan(), of)
    first = run(app, of, 0, ends)
    for number in range(1, 40):
        found = run(app, of, number, ends)
        of_begun = [where for where in first if where.key in (b"k0", b"k1")]
        assert of_begun
        # The others set their timer again, for a time that may have passed by then.
        assert {where: found[where] for where in of_begun} == {where: first[where] for where in of_begun}


def test_the_clock_of_every_run_ends_at_the_same_instant() -> None:
    app = tr.App("clocks", partitions=1)
    ones = app.topic("ones", Tick, key="key", event_time="at")

    @app.actor
    class Clocked(tr.Actor):
        at_ms: int = 0

        @tr.process(ones)
        def begin(self, event: Tick, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 1_000_000, "end")

        @tr.on_timer("end")
        def end(self, ctx: tr.Context[str]) -> None:
            self.at_ms = ctx.now

    of = feed(app, [(ones, Tick("k", n)) for n in range(20)])
    ends = Ends.of(app.plan(), of)
    first = run(app, of, 0, ends, now_ms=500)
    for number in range(1, 30):
        assert run(app, of, number, ends, now_ms=500) == first


def test_an_input_that_follows_its_writers_is_told_how_far_they_are() -> None:
    app = tr.App("followed", partitions=2)
    ones = app.topic("ones", Tick, key="key", event_time="at", watermark="upstream")
    sums = app.topic("sums", Tick, key="key")

    @app.actor
    class Window(tr.Actor):
        open: tr.MapState[int, int]

        @tr.process(ones)
        def add(self, event: Tick, ctx: tr.Context[str]) -> None:
            end = event.at - event.at % 10_000 + 10_000
            self.open[end] = self.open.get(end, 0) + event.n
            assert not ctx.is_late
            ctx.set_timer(end - 1)

        @tr.on_timer
        def complete(self, ctx: tr.Context[str]) -> None:
            ctx.emit(sums, Tick(ctx.key, ctx.watermark, self.open.pop(ctx.event_time + 1)))

    # Events of a window come in any order: no disorder is declared, as it is the writers who say how far they
    # are.
    items = [(ones, Tick("k", at * 1_000, 1)) for at in (5, 3, 9, 1, 14, 12, 18, 11, 25, 22, 29)]
    of = feed(app, items)
    ends = Ends.of(app.plan(), of)
    run(app, of, 0, ends)
    reached: set[int] = set()
    for number in range(1, 30):
        (found,) = [items for where, items in run(app, of, number, ends).items() if where.kind == "output"]
        sums_of = [sums.decode(value) for value, _ in found]
        assert [one.n for one in sums_of] == [4, 4, 3]
        reached |= {one.at for one in sums_of}
    assert len(reached) > 3  # some windows were complete before the end of input


@pytest.mark.parametrize("quiet", [True, False])
def test_inputs_of_which_nothing_more_comes_may_fall_idle_without_an_effect(quiet: bool) -> None:
    app = apps.windows()
    plan, of = app.plan(), feed(app)
    ends = Ends.of(plan, of)
    first = run(app, of, 0, ends)
    schedules = [drawn(plan, of, 0, number) for number in range(1, 60)]
    numbers = [one.number for one in schedules if one.quiet_idle is quiet and not one.silences]
    assert len(numbers) > 15
    for number in numbers[:15]:
        assert differing(plan, first, run(app, of, number, ends), ()) == []
