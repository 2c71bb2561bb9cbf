"""A small app with timers, late events and failing handlers: the laws that need no random app run this one."""

from __future__ import annotations

from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.records import InputRecord
from tests.proof.seeds import Records


class Note(msgspec.Struct, frozen=True):
    key: str
    at: int
    text: str = ""


class Alarm(msgspec.Struct, frozen=True):
    key: str
    due: int
    number: int


def alarms_app(on_error: Any = "dead-letter", late: Any = "handle") -> tr.App:
    """Every note sets, moves and cancels alarms; each that goes off says for when it was set, and how many did before."""
    app = tr.App("alarms", partitions=1, on_error=on_error)
    lates = app.topic("lates", Note, key="key", event_time="at")
    notes = app.topic("notes", Note, key="key", event_time="at", late=lates if late == "route" else late)
    alarms = app.topic("alarms", Alarm, key="key")

    @app.actor
    class Clock(tr.Actor):
        seen: int = 0
        late: int = 0
        gone_off: int = 0
        due: dict[str, int] = tr.field(default_factory=dict)

        @tr.process(notes)
        def noted(self, event: Note, ctx: tr.Context[str]) -> None:
            self.seen += 1
            self.late += ctx.is_late
            name = f"n{event.at % 3}" if event.at % 5 else None
            if event.text == "fail":
                raise ValueError("told to fail")
            if event.at % 7 == 0:
                ctx.cancel_timer(f"n{event.at % 3}")
                self.due.pop(f"n{event.at % 3}", None)
            else:
                due = event.at + event.at % 11 * 10 - 20
                ctx.set_timer(due, name)
                self.due[str(due) if name is None else name] = due

        def off(self, ctx: tr.Context[str]) -> None:
            name = ctx.timer_name
            due = self.due.pop(str(ctx.event_time) if name is None else name, None)
            if due is None or due != ctx.event_time:
                raise AssertionError(f"an alarm for {due} went off at {ctx.event_time}")
            self.gone_off += 1
            ctx.emit(alarms, Alarm(ctx.key, due, self.gone_off))

        @tr.on_timer("n0")
        def zero(self, ctx: tr.Context[str]) -> None:
            self.off(ctx)

        @tr.on_timer("n1")
        def one(self, ctx: tr.Context[str]) -> None:
            self.off(ctx)

        @tr.on_timer("n2")
        def two(self, ctx: tr.Context[str]) -> None:
            self.off(ctx)

        @tr.on_timer
        def unnamed(self, ctx: tr.Context[str]) -> None:
            self.off(ctx)

    return app


def records_of(app: tr.App, events: list[Note | bytes]) -> Records:
    topic = app.topics["notes"]
    values = [event if isinstance(event, bytes) else topic.encode(event) for event in events]
    return {("notes", 0): [InputRecord(offset, 0, None, value) for offset, value in enumerate(values)]}
