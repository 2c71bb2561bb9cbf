"""Two chained services for the soak, and the events between them.

``first`` counts what its devices do, in windows that a timer closes: set by the first step of a window, moved by each
further one, cancelled and set again at random. It passes every step on, and ``second`` does the same with what it
follows there, at the watermarks that the first publishes. ``first`` also raises alarms, in bursts: so at most times its
watermarks are far ahead of its last record in that topic.

A window is closed after its end and before nothing else depends on when: so what must come of it follows from the steps
alone, whatever was killed meanwhile. Steps far behind are late, and are only told.

Two variants. *Plain*: one input, no messages, no processing time, and each task of ``first`` writes one partition for
one task of ``second``: every run over the same input gives the same. *Rich*: three inputs, one of which falls idle,
messages, randomness, processing-time timers, and any task may write to any partition. Steps are also joined by pairs: two steps with
numbers that follow each other, of any two devices, are re-keyed through a topic of the app, and belong together or not.
"""

from __future__ import annotations

import faulthandler
import os
import time
from typing import Any, Literal
from zlib import crc32

import msgspec

import tailrace as tr
from tests.runtime.processes import DUMP

PARTITIONS = 4
WINDOW_MS = 10_000
DISORDER_MS = 3_000
TOGETHER_MS = 2_000
"""Two steps of a pair belong together if their times differ by no more than this."""
ALARMS_EVERY, ALARMS_LAST = 4_096, 512
"""After so many steps alarms begin again, and for so many steps some raise one."""
AUDITORS = 5
GROUPS = 7

Kind = Literal["add", "quiet", "cancel"]


class Step(msgspec.Struct, frozen=True):
    device: str
    at: int
    number: int
    kind: Kind
    amount: int


class Call(msgspec.Struct, frozen=True):
    device: str
    at: int


class Notice(msgspec.Struct, frozen=True):
    device: str
    at: int


class Passed(msgspec.Struct, frozen=True):
    """A step as ``first`` passes it on, with what is known of its device by then: number of steps, their sum, the least."""

    group: str
    device: str
    at: int
    count: int
    total: int
    least: int
    kind: Kind
    amount: int


class Closed(msgspec.Struct, frozen=True):
    key: str
    window: int
    at: int
    steps: int
    amount: int
    least: int | None
    calls: int


class Alarm(msgspec.Struct, frozen=True):
    """A step that is worth a look."""

    group: str
    at: int
    number: int


class Half(msgspec.Struct, frozen=True):
    """A step under the key of its pair."""

    pair: str
    at: int
    number: int
    amount: int


class Told(msgspec.Struct, frozen=True):
    """Something about a key, with a number that says about what."""

    key: str
    what: str
    number: int


class Open(msgspec.Struct):
    """A window that is not closed yet."""

    steps: int = 0
    amount: int = 0
    least: int | None = None
    calls: int = 0


class Noted(msgspec.Struct):
    number: int


def due(window: int, steps: int, *, second: bool) -> int:
    """When a window of so many steps is to be closed: never before its end, earlier or later with each step."""
    return (window + 1) * WINDOW_MS + (steps * 3 % 7 if second else steps % 5) * 700


def group_of(device: str, *, rich: bool) -> str:
    """Whom a device belongs to in the second service; to itself, if it is to stay in its partition."""
    return f"group {crc32(device.encode()) % GROUPS}" if rich else device


def raises_alarm(number: int) -> bool:
    """Whether a step raises an alarm."""
    return number % ALARMS_EVERY < ALARMS_LAST and number % 8 == 0


def pair_of(number: int) -> str:
    """The key under which a step is joined with its neighbour."""
    return f"pair {number // 2}"


def first_app(*, rich: bool, slow_s: float = 0.0) -> tr.App:
    """The service that takes what devices do."""
    app = tr.App("first", partitions=PARTITIONS)
    disorder = f"{DISORDER_MS}ms"
    steps = app.topic("steps", Step, key="device", event_time="at", out_of_order=disorder, idle_after="10h")
    passed = app.topic("passed", Passed, key="group", event_time="at")
    alarms = app.topic("alarms", Alarm, key="group", event_time="at")
    closed = app.topic("first-closed", Closed, key="key")
    told = app.topic("first-told", Told, key="key")
    audits = app.topic("audits", Told, key="key")
    halves = app.topic("halves", Half, key="pair", event_time="at")

    @app.actor
    class Auditor(tr.Actor):
        total: int = 0

        @tr.on_message
        def noted(self, message: Noted, ctx: tr.Context[str]) -> None:
            self.total += 1
            ctx.emit(audits, Told(ctx.key, "audit", self.total))

    @app.actor
    class Device(tr.Actor, order="arrival"):
        count: int = 0
        total: int = 0
        least: int | None = None
        late: int = 0
        naps: int = 0
        luck: float = 0.0
        recent: list[int] = tr.field(default_factory=list)
        windows: tr.MapState[int, Open]

        @tr.process(steps)
        def stepped(self, event: Step, ctx: tr.Context[str]) -> None:
            if slow_s:
                time.sleep(slow_s)
            if ctx.is_late:
                self.late += 1
                ctx.emit(told, Told(ctx.key, "late", event.number))
                ctx.set_timer(event.at, f"past:{event.number}")
                return
            self.count += 1
            self.total += event.amount
            self.least = event.amount if self.least is None else min(self.least, event.amount)
            self.recent = [*self.recent[-4:], event.number]
            _change(self, event.kind, event.amount, event.at // WINDOW_MS, ctx, second=False)
            group = group_of(ctx.key, rich=rich)
            known = (self.count, self.total, self.least)
            ctx.emit(passed, Passed(group, ctx.key, event.at, *known, event.kind, event.amount))
            if raises_alarm(event.number):
                ctx.emit(alarms, Alarm(group, event.at, event.number))
            if rich:
                self.luck = ctx.random.random()
                ctx.send(Auditor, f"auditor {event.number % AUDITORS}", Noted(event.number))
                ctx.emit(halves, Half(pair_of(event.number), event.at, event.number, event.amount))

        @tr.on_timer("close")
        def close(self, ctx: tr.Context[str]) -> None:
            _close(self, ctx, closed)

        @tr.on_timer("echo")
        def echo(self, ctx: tr.Context[str]) -> None:
            ctx.emit(told, Told(ctx.key, "echo", _number(ctx)))

        @tr.on_timer("past")
        def past(self, ctx: tr.Context[str]) -> None:
            ctx.emit(told, Told(ctx.key, "past", _number(ctx)))

        if rich:

            @tr.process(
                app.topic(
                    "calls", Call, key="device", event_time="at", out_of_order=disorder, idle_after="10h"
                )
            )
            def called(self, event: Call, ctx: tr.Context[str]) -> None:
                window = event.at // WINDOW_MS
                found = self.windows.get(window, Open())
                found.calls += 1
                self.windows[window] = found
                if ctx.is_late:
                    ctx.emit(told, Told(ctx.key, "a call that is late", event.at))

            @tr.process(app.topic("notices", Notice, key="device", event_time="at", idle_after="300ms"))
            def noticed(self, event: Notice, ctx: tr.Context[str]) -> None:
                ctx.set_processing_timer(ctx.now + 500, "nap")

            @tr.on_processing_timer("nap")
            def nap(self, ctx: tr.Context[str]) -> None:
                self.naps += 1
                ctx.emit(told, Told(ctx.key, "nap", self.naps))

    if rich:
        _add_pairs(app, halves)
    return app


def _add_pairs(app: tr.App, halves: tr.Topic[Half, str]) -> None:
    """Join two steps of any devices whose times are close. A timer reports a step without a partner."""
    pairs = app.topic("pairs", Told, key="key")

    @app.actor
    class Pair(tr.Actor):
        waiting: Half | None = None

        @tr.process(halves)
        def arrived(self, event: Half, ctx: tr.Context[str]) -> None:
            if ctx.is_late:
                ctx.emit(pairs, Told(ctx.key, "a half that is late", event.number))
            other = self.waiting
            if other is not None and abs(other.at - event.at) <= TOGETHER_MS:
                ctx.cancel_timer(f"alone:{other.number}")
                ctx.emit(pairs, Told(ctx.key, "together", other.amount + event.amount))
                self.waiting = None
                return
            self.waiting = event
            ctx.set_timer(event.at + TOGETHER_MS, f"alone:{event.number}")

        @tr.on_timer("alone")
        def alone(self, ctx: tr.Context[str]) -> None:
            number = _number(ctx)
            ctx.emit(pairs, Told(ctx.key, "alone", number))
            if self.waiting is not None and self.waiting.number == number:
                self.waiting = None


def second_app(*, slow_s: float = 0.0) -> tr.App:
    """The service that follows the first."""
    app = tr.App("second", partitions=PARTITIONS)
    passed = app.topic("passed", Passed, key="group", event_time="at", watermark="upstream", idle_after="10h")
    alarms = app.topic("alarms", Alarm, key="group", event_time="at", watermark="upstream", idle_after="10h")
    closed = app.topic("second-closed", Closed, key="key")
    told = app.topic("second-told", Told, key="key")

    @app.actor
    class Guard(tr.Actor):
        count: int = 0

        @tr.process(alarms)
        def alarmed(self, event: Alarm, ctx: tr.Context[str]) -> None:
            self.count += 1
            if ctx.is_late:
                ctx.emit(told, Told(ctx.key, "a late alarm", event.number))

    @app.actor
    class Group(tr.Actor):
        count: int = 0
        amount: int = 0
        counts: tr.MapState[str, int]
        windows: tr.MapState[int, Open]

        @tr.process(passed)
        def followed(self, event: Passed, ctx: tr.Context[str]) -> None:
            if slow_s:
                time.sleep(slow_s)
            self.count += 1
            self.amount += event.amount
            if ctx.is_late:
                ctx.emit(told, Told(ctx.key, f"late from {event.device}", event.count))
            if event.count != self.counts.get(event.device, 0) + 1:
                ctx.emit(told, Told(ctx.key, f"a gap or repeat from {event.device}", event.count))
            self.counts[event.device] = event.count
            _change(self, event.kind, event.amount, event.at // WINDOW_MS, ctx, second=True)

        @tr.on_timer("close")
        def close(self, ctx: tr.Context[str]) -> None:
            _close(self, ctx, closed)

        @tr.on_timer("echo")
        def echo(self, ctx: tr.Context[str]) -> None:
            ctx.emit(told, Told(ctx.key, "echo", _number(ctx)))

    return app


def _change(actor: Any, kind: Kind, amount: int, window: int, ctx: tr.Context[str], *, second: bool) -> None:
    """Take a step into its window, and set, move, cancel or leave the timer that closes it."""
    found: Open = actor.windows.get(window, Open())
    if kind == "cancel":
        ctx.cancel_timer(f"close:{window}")
    else:
        found.steps += 1
        found.amount += amount
        found.least = amount if found.least is None else min(found.least, amount)
        if kind == "add":
            ctx.set_timer(due(window, found.steps, second=second), f"close:{window}")
    actor.windows[window] = found


def _close(actor: Any, ctx: tr.Context[str], closed: tr.Topic[Closed, str]) -> None:
    """Close a window; every other one has an echo, by a timer that is set for a time gone by."""
    window = _number(ctx)
    found: Open = actor.windows.pop(window, Open(-1))
    ctx.emit(
        closed, Closed(ctx.key, window, ctx.event_time, found.steps, found.amount, found.least, found.calls)
    )
    if window % 2:
        ctx.set_timer(ctx.event_time - 1, f"echo:{window}")


def _number(ctx: tr.Context[str]) -> int:
    return int((ctx.timer_name or "").rpartition(":")[2])


faulthandler.register(DUMP, chain=False)

RICH = bool(os.environ.get("SOAK_RICH"))
SLOW_S = float(os.environ.get("SOAK_SLOW_MS", "0")) / 1_000

first = first_app(rich=RICH, slow_s=SLOW_S)
second = second_app(slow_s=SLOW_S / 2)
