"""Two chained services for the soak, and the events between them.

``first`` counts what its devices do, in windows that a timer closes: set by the first step of a window, moved by each
further one, cancelled and set again at random. It passes every step on, and ``second`` does the same with what it
follows there, at the watermarks that the first publishes.

A window is closed after its end and before nothing else depends on when: so what must come of it follows from the steps
alone, whatever was killed meanwhile. Steps far behind are late, and are only told.

Two variants. *Plain*: one input, no messages, no processing time, and each task of ``first`` writes one partition for
one task of ``second``: every run over the same input gives the same. *Rich*: three inputs, one of which falls idle,
messages, randomness, processing-time timers, and any task may write to any partition.
"""

from __future__ import annotations

import os
import time
from typing import Any, Literal
from zlib import crc32

import msgspec

import tailrace as tr

PARTITIONS = 4
WINDOW_MS = 10_000
DISORDER_MS = 3_000
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
    """A step as ``first`` passes it on; ``count`` numbers those of its device."""

    group: str
    device: str
    at: int
    count: int
    kind: Kind
    amount: int


class Closed(msgspec.Struct, frozen=True):
    key: str
    window: int
    at: int
    steps: int
    amount: int
    calls: int


class Told(msgspec.Struct, frozen=True):
    """Something about a key, with a number that says about what."""

    key: str
    what: str
    number: int


class Open(msgspec.Struct):
    """A window that is not closed yet."""

    steps: int = 0
    amount: int = 0
    calls: int = 0


class Noted(msgspec.Struct):
    number: int


def due(window: int, steps: int, *, second: bool) -> int:
    """When a window of so many steps is to be closed: never before its end, earlier or later with each step."""
    return (window + 1) * WINDOW_MS + (steps * 3 % 7 if second else steps % 5) * 700


def group_of(device: str, *, rich: bool) -> str:
    """Whom a device belongs to in the second service; to itself, if it is to stay in its partition."""
    return f"group {crc32(device.encode()) % GROUPS}" if rich else device


def first_app(*, rich: bool, slow_s: float = 0.0) -> tr.App:
    """The service that takes what devices do."""
    app = tr.App("first", partitions=PARTITIONS)
    disorder = f"{DISORDER_MS}ms"
    steps = app.topic("steps", Step, key="device", event_time="at", out_of_order=disorder, idle_after="10h")
    passed = app.topic("passed", Passed, key="group", event_time="at")
    closed = app.topic("first-closed", Closed, key="key")
    told = app.topic("first-told", Told, key="key")
    audits = app.topic("audits", Told, key="key")

    @app.actor
    class Auditor(tr.Actor):
        total: int = 0

        @tr.on_message
        def noted(self, message: Noted, ctx: tr.Context[str]) -> None:
            self.total += 1
            ctx.emit(audits, Told(ctx.key, "audit", self.total))

    @app.actor
    class Device(tr.Actor):
        count: int = 0
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
            self.recent = [*self.recent[-4:], event.number]
            _change(self, event.kind, event.amount, event.at // WINDOW_MS, ctx, second=False)
            group = group_of(ctx.key, rich=rich)
            ctx.emit(passed, Passed(group, ctx.key, event.at, self.count, event.kind, event.amount))
            if rich:
                self.luck = ctx.random.random()
                ctx.send(Auditor, f"auditor {event.number % AUDITORS}", Noted(event.number))

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

    return app


def second_app(*, slow_s: float = 0.0) -> tr.App:
    """The service that follows the first."""
    app = tr.App("second", partitions=PARTITIONS)
    passed = app.topic("passed", Passed, key="group", event_time="at", watermark="upstream", idle_after="10h")
    closed = app.topic("second-closed", Closed, key="key")
    told = app.topic("second-told", Told, key="key")

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
        if kind == "add":
            ctx.set_timer(due(window, found.steps, second=second), f"close:{window}")
    actor.windows[window] = found


def _close(actor: Any, ctx: tr.Context[str], closed: tr.Topic[Closed, str]) -> None:
    """Close a window; every other one has an echo, by a timer that is set for a time gone by."""
    window = _number(ctx)
    found: Open = actor.windows.pop(window, Open(-1))
    ctx.emit(closed, Closed(ctx.key, window, ctx.event_time, found.steps, found.amount, found.calls))
    if window % 2:
        ctx.set_timer(ctx.event_time - 1, f"echo:{window}")


def _number(ctx: tr.Context[str]) -> int:
    return int((ctx.timer_name or "").rpartition(":")[2])


RICH = bool(os.environ.get("SOAK_RICH"))
SLOW_S = float(os.environ.get("SOAK_SLOW_MS", "0")) / 1_000

first = first_app(rich=RICH, slow_s=SLOW_S)
second = second_app(slow_s=SLOW_S / 2)
