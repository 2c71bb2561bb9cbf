"""The second half of every step: fire what is due.

An event-time timer is due when the watermark of its actor has reached it, one of processing time when the clock has. Order:
event time before processing time; within each (time, place of the actor, key, timer name), over all actors. The place is
that of ``Plan.order``: of two actors with a timer for one instant the one nearer to the sources comes first, since what it
hands on by a stream belongs to that instant, too. What handlers set meanwhile takes its place in that order.

Because a drain may be long (an outage can make millions of timers due), it can be left after any firing and taken up
again, even by another process after a commit: what is due is state, so nothing else has to be remembered. Until then an
actor *holds* what is published: others go by the watermark of what it emits, and more of it is to come.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core import rows
from tailrace.core.declare.plan import Plan, Route
from tailrace.core.declare.schema import timer_family
from tailrace.core.durations import INSTANT_LIMIT_MS, NO_WATERMARK, is_instant
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.timers import FOREVER, Entry, TimerQueue
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import UsageError


class Due:
    """When the next of several queues is due: like one queue, as far as ``due_ms`` is asked."""

    __slots__ = ("_queues",)

    def __init__(self, queues: Sequence[TimerQueue]) -> None:
        self._queues = queues

    @property
    def due_ms(self) -> int:
        """The least of theirs."""
        return min((queue.due_ms for queue in self._queues), default=FOREVER)


class Firing:
    """Fires the timers of a task. ``events`` and ``processing`` are its queues, by actor, ``budget`` what it may still fire."""

    __slots__ = ("before", "budget", "draining", "events", "marks", "processing", "stop_after_fired", "units")

    def __init__(
        self, units: Units, marks: Watermarks, events: Sequence[TimerQueue], processing: Sequence[TimerQueue]
    ) -> None:
        self.units = units
        self.marks = marks
        self.events = events
        self.processing = processing
        self.before = tuple(_before_any_watermark(units.plan, one.index) for one in units.plan.actors)
        """By actor: the event time of what happens outside of event time while there is no watermark."""
        self.budget = 0
        self.stop_after_fired = FOREVER
        self.draining = False

    def is_due(self) -> bool:
        """Whether anything may be due."""
        return self._next() is not None

    def clock_due_ms(self) -> int:
        """No clock reading before this makes anything due."""
        return min((queue.due_ms for queue in self.processing), default=FOREVER)

    def held_ms(self, actor: int) -> int | None:
        """An event-time timer of this time is due and has not fired, and none before it; None if none is."""
        due_ms = self.events[actor].due_ms
        return due_ms if due_ms <= self.marks.of_operator[actor] else None

    def drain(self) -> None:
        """Fire what is due, in order, until nothing is or the budget is spent; then ``draining`` is left True."""
        units, unit = self.units, self.units.unit
        apart, units.apart = units.apart, True  # each actor stands at its own watermark
        try:
            while True:
                found = self._next()
                if found is None:
                    self.draining = False
                    break
                if self.budget <= 0 or units.totals.fired >= self.stop_after_fired:
                    self.draining = True
                    break
                self.budget -= 1
                domain, queue, table = found
                entry = queue.pop()
                try:
                    self._fire(domain, entry, table)
                except BaseException:
                    queue.put_back(entry)
                    raise
        finally:
            units.apart = apart
        unit.leave()
        # The next handler draws from its own beginning, whether or not timers have fired before it.
        unit.draws, unit.random = 0, None

    def _next(self) -> tuple[int, TimerQueue, Table] | None:
        """The queue whose first entry is the next to fire, with its domain and table."""
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

    def _fire(self, domain: int, entry: Entry, table: Table) -> None:
        """Fire what an entry of a queue names, if it is still true."""
        units = self.units
        time_ms, _, key_bytes, name = entry
        key = table.plan.key_codec.decode(key_bytes)
        units.cells.begin()
        instance = table.live.get(key)
        if instance is None:
            instance = table.load(key)
            if table.is_absent(instance):
                del table.live[key]
                if name[:1] == rows.EXPIRY:
                    units.cells.disarm(domain, time_ms, table.plan, key_bytes, name)
                return
        context, unit = units.context, units.unit
        context.key = key
        context.is_late = False
        context.watermark = watermark = self.marks.of_operator[table.plan.index]
        is_moment = domain == rows.EVENT_TIME and is_instant(time_ms)
        context.event_time = time_ms if is_moment else self._after(table, watermark)
        if name[:1] == rows.EXPIRY:
            units.totals.fired += units.expire(table, instance, domain, time_ms, name)
            return
        timer = table.parts(instance).timers.get((domain, name))
        if timer is None or timer.time_ms != time_ms:
            table.put_off(domain, timer, time_ms, key_bytes, name)
            return
        family, context.timer_name = table.timer_name(name)
        unit.salt, unit.origin, unit.depth = 1, timer.seed, timer.depth
        unit.fired = (domain, time_ms)
        mark, fired = len(unit.outputs), units.totals.fired
        try:
            skipped = units.timer_skip(fired, table, time_ms) if units.skips else None
            if skipped is not None:
                units.use_up(table, instance, (domain, name))
                units.skip(TIMER, fired, None, skipped)
            else:
                units.invoke_timer(self._route(table, domain, family), table, instance, (domain, name))
                if unit.chained:
                    units.deliver_chained(key)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises fails its unit
            units.failed(error, mark, TIMER, fired, None, (table.plan, context.timer_name, time_ms))
            # All that the handler did is undone, and with it that the timer was used up.
            units.use_up(table, table.live[key], (domain, name))
        finally:
            unit.fired, unit.depth, context.timer_name = None, 0, None
        units.totals.fired = fired + 1

    def _after(self, table: Table, watermark_ms: int) -> int:
        """The event time of what happens outside of event time: right behind what has been seen, so that it is not late."""
        if is_instant(watermark_ms):
            return min(watermark_ms + 1, INSTANT_LIMIT_MS - 1)
        return self.before[table.plan.index]

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

    def latest_ms(self, actor: int) -> int:
        """The time of the latest event-time timer of an actor that is pending."""
        table = self.units.cells.tables[actor]
        moved_ms = table.latest_moved_ms(rows.EVENT_TIME)
        for time_ms, _, key_bytes, name in self.events[actor].latest_first():
            if time_ms <= moved_ms:
                break
            if table.is_pending(rows.EVENT_TIME, time_ms, key_bytes, name):
                return time_ms
        return max(moved_ms, NO_WATERMARK)


def _before_any_watermark(plan: Plan, actor: int) -> int:
    """1970, or the first instant that the actor's inputs may have, if that is earlier: nothing that follows is late for it."""
    earliest = [one.time_min_ms for one in plan.inputs if not one.is_inbox and actor in one.touches]
    return min([0, *earliest])
