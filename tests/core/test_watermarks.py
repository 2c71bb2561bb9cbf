"""Watermarks: of each operator the least of its own sources that count, never back."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.watermarks import Watermarks


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


def plan_of(*takers: str, plain: str = "") -> Plan:
    """Of an app whose functions take the inputs a, b, c... that each string names; those in ``plain`` have no
    watermark.
    """
    app = tr.App("marks", partitions=1)
    topics = {
        name: app.topic(name, Event, key="key", event_time="at", watermark=name not in plain)
        for name in sorted(set("".join(takers)))
    }
    for number, names in enumerate(takers):

        @app.process(*(topics[name] for name in names), name=f"take-{number}", order="arrival")
        def take(event: Event, ctx: tr.Context) -> None: ...

    return app.plan()


def marks_of(*takers: str, plain: str = "") -> Watermarks:
    return Watermarks(plan_of(*takers, plain=plain))


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
    assert marks.of_operator == [NO_WATERMARK]


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


def test_idle_inputs_do_not_count() -> None:
    marks = marks_of("abc")
    marks.of_source[:] = [10, 3, 5]
    marks.idle[1:] = [True, True]
    marks.advance()
    assert marks.of_operator == [10]


def test_when_none_counts_the_highest_is_the_operators() -> None:
    marks = marks_of("abc", plain="c")
    marks.of_source[:] = [10, 3, NO_WATERMARK]
    marks.idle[:2] = [True, True]
    marks.advance()
    assert marks.of_operator == [10]


def test_an_operator_holds_others_back_until_all_of_its_sources_are_idle() -> None:
    marks = marks_of("ab")
    marks.of_source[:] = [10, 3]
    marks.advance()
    assert marks.published_ms(0, never) == 3
    marks.idle[0] = True
    assert marks.published_ms(0, never) == 3
    marks.idle[1] = True
    assert marks.published_ms(0, never) is None
    marks.ended_operators[0] = True
    assert marks.published_ms(0, never) == 3


def never(_: int) -> None:
    """No timer is due."""


def test_an_actor_holds_others_back_as_long_as_a_timer_is_due_that_leads_to_what_it_emits() -> None:
    app = tr.App("marks", partitions=1)
    events = app.topic("events", Event, key="key", event_time="at")
    out = app.topic("out", Event, key="key", event_time="at")
    stream = app.stream("stream", Event)

    @app.actor
    class First(tr.Actor):
        n: int = 0

        @tr.process(events)
        def take(self, event: Event, ctx: tr.Context[str]) -> None: ...

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(stream, Event(ctx.key, ctx.event_time))

    @app.process(stream)
    def second(event: Event, ctx: tr.Context[str]) -> None:
        ctx.emit(out, event)

    marks = Watermarks(app.plan())
    marks.of_source[0] = 10
    marks.idle[0] = True
    marks.advance()
    assert [marks.published_ms(one, never) for one in (0, 1)] == [None, None]
    # All is idle, but a timer of the first is to fire, and the second emits what comes of it.
    assert [marks.published_ms(one, {0: 7}.get) for one in (0, 1)] == [6, 6]


def test_a_record_is_late_for_one_operator_and_in_time_for_another() -> None:
    marks, plan = marks_of("a", "ab"), plan_of("a", "ab").inputs[0]
    marks.of_source[:] = [10, 3]
    marks.advance()
    assert marks.shared_watermark(0) is None
    assert marks.late_for(plan, 10) == {0}
    assert marks.late_for(plan, 3) == {0, 1}
    assert marks.late_for(plan, 11) == frozenset()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.one_of(st.integers(0, 100), st.sampled_from(["idle", "wake"]))),
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
        else:
            assert isinstance(change, int)
            marks.of_source[number] = max(marks.of_source[number], change)
        marks.advance()
        after = marks.of_operator[0]
        assert after >= before
        counting = [mark for mark, idle in zip(marks.of_source, marks.idle, strict=True) if not idle]
        assert after == max(before, min(counting) if counting else max(marks.of_source))
        before = after
