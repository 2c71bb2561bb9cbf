"""Watermarks: the least of those that count, never back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.declare.plan import InputPlan
from tailrace.core.engine.watermarks import NOTHING, Watermarks
from tailrace.testing import Harness


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


def inputs(*watermarks: bool) -> tuple[InputPlan, ...]:
    """The plans of inputs a, b, c..., with a watermark or without."""
    app = tr.App("marks", partitions=1)
    for name, watermark in zip("abcdef", watermarks, strict=False):
        topic = app.topic(name, Event, key="key", event_time="at", watermark=watermark)

        @app.process(topic, name=f"take-{name}")
        def take(event: Event, ctx: tr.Context) -> None: ...

    return app.plan().inputs


def test_the_task_is_held_back_by_its_slowest_input() -> None:
    marks = Watermarks(inputs(True, True))
    marks.of_input[:] = [10, 3]
    assert marks.advance() == 3
    assert marks.ceiling(1) == 10


def test_an_input_that_has_shown_nothing_holds_the_task_back() -> None:
    marks = Watermarks(inputs(True, True))
    marks.of_input[0] = 10
    assert marks.advance() == NOTHING


def test_reference_data_never_hold_the_task_back() -> None:
    marks = Watermarks(inputs(True, False))
    marks.of_input[0] = 10
    assert marks.advance() == 10
    assert marks.ceiling(0) > 10


def test_idle_and_ended_inputs_do_not_count() -> None:
    marks = Watermarks(inputs(True, True, True))
    marks.of_input[:] = [10, 3, 5]
    marks.idle[1] = True
    marks.ended[2] = True
    assert marks.advance() == 10


def test_when_none_counts_the_highest_is_the_tasks() -> None:
    marks = Watermarks(inputs(True, True, False))
    marks.of_input[:] = [10, 3, NOTHING]
    marks.idle[:2] = [True, True]
    assert marks.advance() == 10


class Said(tr.WatermarkGenerator):
    """Says what it is told, and counts."""

    count: int = 0

    def on_event(self, event: Event, event_time_ms: int, /) -> int | None:
        self.count += 1
        said: int | None = says(event, event_time_ms)
        return said


def says(event: Event, event_time_ms: int) -> Any:
    values = {"huge": 2**63 - 1, "low": -(2**70), "text": "noon", "real": 1.0, "nothing": None, "true": True}
    return values.get(event.key, event.at)


@pytest.mark.parametrize("watermark", [says, Said()], ids=["function", "generator"])
def test_a_watermark_function_may_return_any_int(watermark: Any) -> None:
    app = tr.App("marks", partitions=1)
    topic = app.topic("a", Event, key="key", event_time="at", watermark=watermark)
    seen: list[int] = []

    @app.process(topic)
    def take(event: Event, ctx: tr.Context) -> None:
        seen.append(ctx.watermark)

    with Harness(app) as h:
        h.send(topic, Event("nothing", 5), Event("low", 5), Event("a", 5), Event("huge", 5), Event("a", 5))
        assert seen == [tr.NO_WATERMARK, tr.NO_WATERMARK, tr.NO_WATERMARK, 5, 2**61 - 1]
        h.replay()


@pytest.mark.parametrize("watermark", [says, Said()], ids=["function", "generator"])
@pytest.mark.parametrize(("key", "shown"), [("text", "'noon'"), ("real", "1.0"), ("true", "True")])
def test_a_watermark_function_that_returns_something_else_is_told(
    watermark: Any, key: str, shown: str
) -> None:
    app = tr.App("marks", partitions=1)
    topic = app.topic("a", Event, key="key", event_time="at", watermark=watermark)

    @app.process(topic)
    def take(event: Event, ctx: tr.Context) -> None: ...

    with Harness(app) as h, pytest.raises(tr.HandlerError, match=f"function of 'a' returned {shown}"):
        h.send(topic, Event(key, 5))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.one_of(st.integers(0, 100), st.sampled_from(["idle", "wake", "ended"]))
        ),
        max_size=40,
    )
)
def test_the_tasks_watermark_never_goes_back(changes: list[tuple[int, object]]) -> None:
    marks = Watermarks(inputs(True, True, True))
    before = marks.task_ms
    for number, change in changes:
        if change == "idle":
            marks.idle[number] = True
        elif change == "wake":
            marks.idle[number] = False
        elif change == "ended":
            marks.ended[number] = True
        else:
            assert isinstance(change, int)
            marks.of_input[number] = max(marks.of_input[number], change)
        after = marks.advance()
        assert after >= before
        counting = [
            mark
            for mark, idle, ended in zip(marks.of_input, marks.idle, marks.ended, strict=True)
            if not idle and not ended
        ]
        assert after == max(before, min(counting) if counting else max(marks.of_input))
        before = after
