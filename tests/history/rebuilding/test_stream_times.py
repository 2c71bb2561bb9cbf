"""An event of a stream may have a time of its own: its handlers go by that time, however the app is run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import HandlerError
from tailrace.testing import Harness


class Step(msgspec.Struct, frozen=True):
    key: str
    at: int
    gives: int | None = None
    """The time that the handler, or the timer that it sets, gives to the event of the stream."""
    timer: int | None = None
    fails: bool = False


def stepping(*, apart: bool) -> tuple[tr.App, tr.Topic[Step, str], list[tuple[int, bool]]]:
    """``seen`` gets the time of each event of the stream, and whether it was late for its receiver.

    ``apart``: the receiver also waits for another topic.
    """
    app = tr.App("stepping", partitions=1, on_error="dead-letter")
    steps = app.topic("steps", Step, key="key", event_time="at")
    others = app.topic("others", Step, key="key", event_time="at")
    first, second = app.stream("first", Step), app.stream("second", Step)
    seen: list[tuple[int, bool]] = []

    @app.actor
    class Emitter(tr.Actor):
        step: Step | None = None

        @tr.process(steps)
        def take(self, event: Step, ctx: tr.Context[str]) -> None:
            if event.timer is None:
                ctx.emit(first, event, at=event.gives)
                ctx.emit(first, event)
            else:
                self.step = event
                ctx.set_timer(event.timer)

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            assert self.step is not None
            ctx.emit(first, self.step, at=self.step.gives)

    @app.process(first)
    def pass_on(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(second, event)

    @app.process(*((second, others) if apart else (second,)), order="arrival")
    def receive(event: Step, ctx: tr.Context[str]) -> None:
        if event.fails:
            raise ValueError("no")
        seen.append((ctx.event_time, ctx.is_late))

    return app, steps, seen


@pytest.mark.parametrize("apart", [False, True])
def test_an_event_behind_the_watermark_is_late_for_its_receiver_and_counted(apart: bool) -> None:
    app, steps, seen = stepping(apart=apart)
    others: Any = app.plan().topics["others"]
    with Harness(app, checked=False) as h:
        for at, gives in ((1_000, 1_500), (1_100, 1_000), (1_200, 1_098), (1_300, 1_199), (1_400, None)):
            h.send(steps, Step("a", at, gives))
        # The watermark of the emitter is 1 ms before the step before. The receiver has none while ``others``
        # has no event.
        late = [False, False, not apart, not apart, False]
        times = [1_500, 1_000, 1_098, 1_199, 1_400]
        assert seen[::2] == list(zip(times, late, strict=True))
        assert seen[1::2] == [(at, False) for at in (1_000, 1_100, 1_200, 1_300, 1_400)]
        assert h.behind == {("first", "Emitter.take"): 2}
        if apart:
            h.send(others, Step("a", 5_000))
        h.send(steps, Step("a", 1_500, 1_399), Step("a", 1_600, 1_600))
        assert seen[-4:] == [(1_399, True), (1_500, False), (1_600, False), (1_600, False)]
        del seen[:]
        h.replay()
        assert len(seen) == 14 + (1 if apart else 0)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("gives", "late"), [(1_999, True), (2_000, False), (2_500, False), (9_000, False)])
def test_in_the_handler_of_a_timer_only_times_before_the_timer_are_behind(
    apart: bool, gives: int, late: bool
) -> None:
    app, steps, seen = stepping(apart=apart)
    with Harness(app, checked=False) as h:
        h.send(app.plan().topics["others"], Step("a", 9_000)) if apart else None
        seen.clear()
        h.send(steps, Step("a", 1_000, gives, timer=2_000))
        h.send(steps, Step("b", 5_000))
        assert seen[2:] == [(gives, late)]
        assert h.behind == ({("first", "Emitter.due"): 1} if late else {})
        h.replay()


def test_a_failed_receiver_leaves_the_time_of_its_cause() -> None:
    app, steps, seen = stepping(apart=False)
    with Harness(app) as h:
        h.send(steps, Step("a", 1_000, 1_500, timer=2_000, fails=True), Step("b", 3_000))
        assert [one.timestamp_ms for one in h.log.read(app.plan().dead_letters_topic)] == [2_000]
        assert len(h.dead_letters()) == 1
        assert seen == [(3_000, False), (3_000, False)]
        h.replay()


def test_a_time_of_its_own_is_refused_where_events_are_handled_in_their_order() -> None:
    app = tr.App("ordered", partitions=1)
    steps = app.topic("steps", Step, key="key", event_time="at")
    stream = app.stream("stream", Step)
    seen: list[int] = []

    @app.process(steps, order="event-time")
    def forward(event: Step, ctx: tr.Context[str]) -> None:
        ctx.emit(stream, event, at=event.at if event.gives is None else event.gives)

    @app.process(stream, order="event-time")
    def take(event: Step, ctx: tr.Context[str]) -> None:
        seen.append(ctx.event_time)

    with Harness(app) as h:
        h.send(steps, Step("a", 1_000), Step("a", 2_000))
        assert seen == [1_000]
        with pytest.raises(HandlerError, match="emits to the stream 'stream' at another time than its own"):
            h.send(steps, Step("a", 3_000, 3_500), Step("a", 4_000))
