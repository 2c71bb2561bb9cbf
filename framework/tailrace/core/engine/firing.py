"""The second half of every step: fire the due timers.

An event-time timer is due when its actor's watermark has reached its time. A processing-time timer is due
when the clock has reached its time. Order: event time before processing time; within each (time, place of the
actor, key, timer name), over all actors. The place is that of ``Plan.order``. If two actors have a timer for
the same instant, the actor nearer to the sources fires first, because the events that it emits to streams
belong to that instant too. Timers that handlers set in the meantime take their place in this order.

A drain may be long (an outage can make millions of timers due). It can therefore be left after any firing and
resumed later, even by another process after a commit: due timers are state, so nothing else has to be
remembered. Until the drain is finished, the actor *holds* the published watermark back: readers rely on the
watermark of its outputs, and more outputs will come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.plan import Route
from tailrace.core.declare.schema import timer_family
from tailrace.core.durations import INSTANT_LIMIT_MS, NO_WATERMARK, is_instant
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.failure import FAILURES
from tailrace.core.engine.timers import FOREVER, Entry, TimerQueue
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import TimerLoopError, UsageError


class Due:
    """When the next timer of several queues is due. It has only the ``due_ms`` of a queue."""

    def __init__(self, queues: Sequence[TimerQueue]) -> None:
        self._queues = queues

    @property
    def due_ms(self) -> int:
        """The lowest ``due_ms`` of the queues."""
        return min((queue.due_ms for queue in self._queues), default=FOREVER)


class Firing:
    """Fires a task's timers. ``events``, ``processing``: queues by actor; ``budget``: how many may fire."""

    __slots__ = (
        "_found",
        "budget",
        "draining",
        "events",
        "marks",
        "processing",
        "rises",
        "stop_after",
        "units",
    )

    def __init__(
        self, units: Units, marks: Watermarks, events: Sequence[TimerQueue], processing: Sequence[TimerQueue]
    ) -> None:
        self.units = units
        self.marks = marks
        self.events = events
        self.processing = processing
        self.budget = 0
        self._found: tuple[int, TimerQueue, Table] | None = None
        self.stop_after = FOREVER
        self.draining = False
        self.rises = [0] * len(events)
        """How often in a row each actor has risen to a timer at the end of input."""

    def is_due(self) -> bool:
        """Whether any timer is due; ``take_next`` then fires it."""
        self._found = self._next()
        return self._found is not None

    def clock_due_ms(self) -> int:
        """No clock reading before this time makes a timer due."""
        return min((queue.due_ms for queue in self.processing), default=FOREVER)

    def held_ms(self, actor: int) -> int | None:
        """The time of the first event-time timer that is due and has not fired; None if there is none."""
        due_ms = self.events[actor].due_ms
        return due_ms if due_ms <= self.marks.of_operator[actor] else None

    def drain(self) -> None:
        """Fire due timers in order. ``draining`` is then True if the budget ended before the last one."""
        units, unit = self.units, self.units.unit
        apart, units.apart = units.apart, True  # each actor has its own watermark
        try:
            while True:
                if not self.is_due():
                    self.draining = False
                    break
                if self.budget <= 0 or units.totals.drained >= self.stop_after:
                    self.draining = True
                    break
                self.budget -= 1
                self.take_next()
        finally:
            units.apart = apart
        unit.leave()
        if (
            unit.used
        ):  # the next handler begins its own draws and sends, whether or not timers have fired before it
            unit.reset()

    def drop_undone(self) -> None:
        """Take the due entries out of the queues that a failed record has left; no others are due then.

        They have no timer, but would hold back what the task publishes, and seem to wait for a clock reading.
        """
        while (found := self._next()) is not None:
            found[1].pop()

    def take_next(self) -> None:
        """Fire the next due timer."""
        assert self._found is not None
        domain, queue, table = self._found
        entry = queue.pop()
        try:
            self.fire(domain, entry, table)
        except BaseException:
            queue.put_back(entry)
            raise

    def _next(self) -> tuple[int, TimerQueue, Table] | None:
        """The queue whose first entry fires next, with its domain and table."""
        of_operator, tables, now = self.marks.of_operator, self.units.cells.tables, self.units.context.now
        first: Entry | None = None
        found: tuple[int, TimerQueue, Table] | None = None
        for actor, queue in enumerate(self.events):
            if queue.due_ms <= of_operator[actor] and (first is None or queue.first < first):
                first, found = queue.first, (rows.EVENT_TIME, queue, tables[actor])
        if found is not None:
            return found
        for actor, queue in enumerate(self.processing):
            if queue.due_ms <= now and (first is None or queue.first < first):
                first, found = queue.first, (rows.PROCESSING_TIME, queue, tables[actor])
        return found

    def fire(self, domain: int, entry: Entry, table: Table) -> None:
        """Fire a timer, or remove what has expired. Nothing happens if the entry is not valid any more."""
        units = self.units
        time_ms, _, key_bytes, name = entry
        key = table.plan.key_codec.decode(key_bytes)
        units.cells.begin()
        instance = table.live.get(key)
        if instance is None:
            instance = table.load(key)
            if table.is_absent(instance):
                del table.live[key]
                units.cells.disarm(domain, time_ms, table.plan, key_bytes, name)
                return
        timer: rows.Timer | None = None
        if name[:1] != rows.EXPIRY:
            parts = instance._tr_parts or table.parts(instance)
            timer = (parts._timers or parts.timers).get((domain, name))
            if timer is None or timer.time_ms != time_ms:
                table.postpone_timer(parts, (domain, name), time_ms)
                return
        context, unit = units.context, units.unit
        context.key = key
        context.is_late = False
        context.watermark = watermark = self.marks.of_operator[table.plan.index]
        context.event_time = time_ms if domain == rows.EVENT_TIME else _after(watermark)
        if timer is None:
            units.totals.fired += units.expire(table, instance, domain, time_ms, name)
            return
        family, context.timer_name = table.timer_name(name)
        unit.cause, unit.depth = timer, timer.depth
        units.timer = table.plan.name, key_bytes, domain, name, timer.cause
        unit.fired, unit.decided_ms = (domain, time_ms), timer.decided_ms
        apart = units.apart
        if timer.decided_ms is not None:
            units.apart = True
            units.judge(time_ms)
        context.timer_due = time_ms
        mark, fired = len(unit.outputs), units.totals.fired
        try:
            skipped = None
            if units.skips:
                skipped = units.timer_skip(fired)
            if skipped is not None:
                units.skip(TIMER, fired, None, skipped)
                self._give_up(table, key, domain, name, timer)
            else:
                units.invoke_timer(self._route(table, domain, family), table, instance, (domain, name))
                if unit.chained:
                    units.deliver_chained(key)
        except FAILURES as error:
            units.failed(error, mark, TIMER, fired, None, (table.plan, context.timer_name, time_ms))
            # Undoing the handler's changes has also restored the timer.
            self._give_up(table, key, domain, name, timer)
        finally:
            unit.fired, unit.depth, context.timer_name, context.timer_due = None, 0, None, None
            if timer.decided_ms is not None:
                unit.decided_ms, units.late, units.apart = None, frozenset(), apart
        units.totals.fired = fired + 1

    def _give_up(self, table: Table, key: Any, domain: int, name: bytes, timer: rows.Timer) -> None:
        """Use up a timer that has failed and is a dead letter. The handler declared for this case is called instead."""
        units, time_ms, which = self.units, timer.time_ms, (domain, name)
        plan, unit, context, instance = table.plan, units.unit, units.context, table.instance(key)
        handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
        route = handlers.get(table.timer_name(name)[0])
        if route is None or route.failed is None:
            units.use_up(table, instance, which)
            return
        context.key, context.event_time, context.is_late = key, time_ms, False
        context.watermark = self.marks.of_operator[plan.index]
        unit.cause, unit.fired = timer, (domain, time_ms)
        units.invoke_timer(replace(route, call=route.failed), table, instance, which)

    def _route(self, table: Table, domain: int, family: str) -> Route:
        plan = table.plan
        handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
        route = handlers.get(family)
        if route is None:
            raise UsageError(
                f"{plan.name} has a pending timer of the family {family!r} but no handler for it",
                hint="It was set by an earlier version of the code. Give the actor that handler again, "
                f"or delete such timers: --drop-state {plan.name}.{timer_family(domain, family)}.",
            )
        return route

    def latest_to_end(self, actor: int, cap: int) -> int:
        """The time of the latest timer to which an actor rises at the end of input; NO_WATERMARK if none is.

        Raises TimerLoopError if it was asked more than ``cap`` times, and there has always been one.
        """
        table: Table = self.units.cells.tables[actor]
        latest_ms, key, name = NO_WATERMARK, None, b""
        for _, _, key_bytes, other in sorted(self.events[actor].entries()):
            if table.moves_the_end(other):
                at_ms = table.due_ms(rows.EVENT_TIME, key_bytes, other)
                if at_ms > latest_ms:
                    latest_ms, key, name = at_ms, table.plan.key_codec.decode(key_bytes), other
        if name and not table.is_of_library(name):  # each of those of an operator is there once
            self.rises[actor] += 1
        if self.rises[actor] > cap:
            family, full = table.timer_name(name)
            raise TimerLoopError(
                f"the inputs of {table.plan.name} have ended, and its timer handlers still set timers, after event "
                f"time has risen to the last timer {cap} times",
                actor=table.plan.name,
                key=key,
                timer=full,
                hint="A heartbeat never ends. Let it stop, or declare its handler with unless_ended=True: "
                f"@tr.on_timer({f'{family!r}, ' if family else ''}unless_ended=True).",
            )
        return latest_ms


def _after(watermark_ms: int) -> int:
    """The event time of a processing-time timer, just after the watermark so not late; 0 before the first."""
    return min(watermark_ms + 1, INSTANT_LIMIT_MS - 1) if is_instant(watermark_ms) else 0
