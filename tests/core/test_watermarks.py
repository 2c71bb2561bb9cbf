"""Watermarks: of each operator the least of its own sources that count, never back."""

from __future__ import annotations

import msgspec

import tailrace as tr
from tailrace.core.declare.plan import Plan
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
