"""Ordered operators that streams connect: they advance, and end, together."""

from __future__ import annotations

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError
from tailrace.testing import Harness


class Seen(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]


class Note(msgspec.Struct, frozen=True):
    text: str


def test_at_the_end_of_input_timers_lie_between_the_events_of_a_stream() -> None:
    app = tr.App("timed", partitions=1)
    outer, inner = app.topic("outer", Seen), app.topic("inner", Seen)
    passed = app.stream("passed", Seen)

    @app.actor
    class Writer(tr.Actor, order="event-time"):
        times: list[int] = tr.field(default_factory=list)

        @tr.process(outer)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            ctx.set_timer(event.at + 12)

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            ctx.emit(passed, Seen(ctx.key, ctx.event_time))

    @app.actor
    class Reader(tr.Actor, order="event-time"):
        seen: list[str] = tr.field(default_factory=list)

        @tr.process(passed)
        def passed_on(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.seen.append(f"passed {ctx.event_time}")
            ctx.set_timer(ctx.event_time + 1)

        @tr.process(inner)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.seen.append(f"inner {ctx.event_time}")

        @tr.on_timer
        def due(self, ctx: tr.Context[str]) -> None:
            self.seen.append(f"timer {ctx.event_time}")

    with Harness(app) as h:
        h.send(outer, Seen("x", 10), Seen("x", 20), Seen("x", 30))
        h.send(inner, Seen("x", 5), Seen("x", 22), Seen("x", 25))
        h.end_of_input()
        state = h.state(Reader, "x")
        assert state is not None
        assert state.seen == [
            *("inner 5", "inner 22", "passed 22", "timer 23", "inner 25"),
            *("passed 32", "timer 33", "passed 42", "timer 43"),
        ]


def test_operators_that_would_wait_for_themselves_are_refused() -> None:
    app = tr.App("waiting", partitions=1)
    events, again = app.topic("events", Seen), app.topic("again", Seen)
    passed = app.stream("passed", Seen)

    @app.process(events, order="event-time")
    def spread(event: Seen, ctx: tr.Context[str]) -> None:
        ctx.emit(passed, event)
        ctx.emit(again, Seen("other", event.at))

    @app.actor
    class Log(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(passed, again)
        def saw(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.count += 1

    with pytest.raises(
        DefinitionError, match=r"only after 'again'. This comes from spread, which advances after them"
    ):
        app.plan()


def test_messages_that_would_have_to_wait_for_their_own_sender_are_refused() -> None:
    app = tr.App("chained", partitions=1)
    events = app.topic("events", Seen)
    passed = app.stream("passed", Seen)

    @app.actor
    class First(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(events)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            ctx.emit(passed, event)
            ctx.send(Between, ctx.key, Note("first"))

    @app.actor
    class Between(tr.Actor):
        count: int = 0

        @tr.on_message
        def got(self, message: Note, ctx: tr.Context[str]) -> None:
            ctx.send(Last, ctx.key, Note("between"))

    @app.actor
    class Last(tr.Actor, order="event-time"):
        count: int = 0

        @tr.process(passed)
        def came(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.count += 1

        @tr.on_message
        def got(self, message: Note, ctx: tr.Context[str]) -> None:
            self.count += 1

    with pytest.raises(DefinitionError, match=r"only after the messages to Last. This comes from Between"):
        app.plan()


@pytest.mark.parametrize("checked", [True, False])
def test_events_that_wait_in_one_operator_have_their_turn_before_the_others_advance(checked: bool) -> None:
    app = tr.App("apart", partitions=1)
    slow, fast = app.topic("slow", Seen), app.topic("fast", Seen)
    passed, notes = app.stream("passed", Seen), app.topic("notes", Note, key="text")

    @app.actor
    class Sender(tr.Actor, order="event-time"):
        @tr.process(slow)
        def send(self, event: Seen, ctx: tr.Context[str]) -> None:
            ctx.emit(passed, event)
            ctx.emit(notes, Note(f"sent {event.at} at {ctx.watermark}"))

    @app.actor
    class Receiver(tr.Actor, order="event-time"):
        @tr.process(passed, fast)
        def receive(self, event: Seen, ctx: tr.Context[str]) -> None:
            ctx.emit(notes, Note(f"{event.at} at {ctx.watermark}"))

    with Harness(app, checked=checked) as h:
        h.send(slow, Seen("x", 10), Seen("x", 300))
        h.send(fast, Seen("x", 500))
        h.end_of_input()
        wanted = ["sent 10 at 9", "10 at 9", "sent 300 at 299", "300 at 299", "500 at 499"]
        assert [one.text for one in h.emitted(notes)] == wanted
