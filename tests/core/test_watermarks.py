"""Watermarks: of each operator the least of its own sources that count, never back."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.engine.watermarks import NOTHING, Watermarks


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


def marks_of(*takers: str, plain: str = "") -> Watermarks:
    """Of an app whose functions take the inputs a, b, c... that each string names; those in ``plain`` have no watermark."""
    app = tr.App("marks", partitions=1)
    topics = {
        name: app.topic(name, Event, key="key", event_time="at", watermark=name not in plain)
        for name in sorted(set("".join(takers)))
    }
    for number, names in enumerate(takers):

        @app.process(*(topics[name] for name in names), name=f"take-{number}")
        def take(event: Event, ctx: tr.Context) -> None: ...

    return Watermarks(app.plan())


def test_an_operator_is_held_back_by_its_slowest_input() -> None:
    marks = marks_of("ab")
    marks.of_source[:] = [10, 3]
    marks.advance()
    assert marks.of_operator == [3]
    assert marks.ceiling(0, 1) == 10


def test_an_input_that_has_shown_nothing_holds_its_operators_back() -> None:
    marks = marks_of("ab")
    marks.of_source[0] = 10
    marks.advance()
    assert marks.of_operator == [NOTHING]


def test_what_other_operators_read_changes_nothing() -> None:
    marks = marks_of("a", "ab", "b")
    marks.of_source[:] = [10, 3]
    marks.advance()
    assert marks.of_operator == [10, 3, 3]
    assert marks.lowest == 3


def test_reference_data_never_hold_an_operator_back() -> None:
    marks = marks_of("ab", plain="b")
    marks.of_source[0] = 10
    marks.advance()
    assert marks.of_operator == [10]
    assert marks.ceiling(0, 0) > 10


def test_idle_and_ended_inputs_do_not_count() -> None:
    marks = marks_of("abc")
    marks.of_source[:] = [10, 3, 5]
    marks.idle[1] = True
    marks.ended[2] = True
    marks.advance()
    assert marks.of_operator == [10]


def test_when_none_counts_the_highest_is_the_operators() -> None:
    marks = marks_of("abc", plain="c")
    marks.of_source[:] = [10, 3, NOTHING]
    marks.idle[:2] = [True, True]
    marks.advance()
    assert marks.of_operator == [10]


def test_an_operator_holds_others_back_until_all_of_its_sources_are_idle() -> None:
    marks = marks_of("ab")
    marks.of_source[:] = [10, 3]
    marks.advance()
    assert marks.published_ms(0, None) == 3
    marks.idle[0] = True
    assert marks.published_ms(0, None) == 3
    marks.idle[1] = True
    assert marks.published_ms(0, None) is None
    # Not even then, as long as a timer is due that has not fired.
    assert marks.published_ms(0, 2) == 1


def test_a_record_is_late_for_one_operator_and_in_time_for_another() -> None:
    marks = marks_of("a", "ab")
    marks.of_source[:] = [10, 3]
    marks.advance()
    plan = marks._plan.inputs[0]
    assert marks.common(0) is None
    assert marks.late_for(plan, 10) == {0}
    assert marks.late_for(plan, 3) == {0, 1}
    assert marks.late_for(plan, 11) == frozenset()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.one_of(st.integers(0, 100), st.sampled_from(["idle", "wake", "ended"]))
        ),
        max_size=40,
    )
)
def test_an_operators_watermark_never_goes_back(changes: list[tuple[int, object]]) -> None:
    marks = marks_of("abc")
    before = marks.of_operator[0]
    for number, change in changes:
        if change == "idle":
            marks.idle[number] = True
        elif change == "wake":
            marks.idle[number] = False
        elif change == "ended":
            marks.ended[number] = True
        else:
            assert isinstance(change, int)
            marks.of_source[number] = max(marks.of_source[number], change)
        marks.advance()
        after = marks.of_operator[0]
        assert after >= before
        counting = [
            mark
            for mark, idle, ended in zip(marks.of_source, marks.idle, marks.ended, strict=True)
            if not idle and not ended
        ]
        assert after == max(before, min(counting) if counting else max(marks.of_source))
        before = after
