"""Watermarks: the least of those that count, never back."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.declare.plan import InputPlan
from tailrace.core.engine.watermarks import NOTHING, Watermarks


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
