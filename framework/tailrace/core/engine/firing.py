"""The second half of every step: fire what is due.

Order: event time before processing time; within each (time, actor name, key, timer name). What handlers set meanwhile
takes its place in that order. Because a drain may be long (an outage can make millions of timers due), it can be left
after any firing and taken up again, even by another process after a commit: what is due is state, so nothing else
has to be remembered.
"""

from __future__ import annotations

from tailrace.core import rows
from tailrace.core.declare.plan import Route
from tailrace.core.declare.schema import timer_family
from tailrace.core.engine.tables import Table
from tailrace.core.engine.timers import FOREVER, Entry, TimerQueue
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.engine.watermarks import NOTHING, Watermarks
from tailrace.core.errors import UsageError


class Firing:
    """Fires the timers of a task. ``events`` and ``processing`` are its queues, ``budget`` what it may still fire."""

    __slots__ = ("budget", "draining", "events", "marks", "processing", "stop_after_fired", "units")

    def __init__(self, units: Units, marks: Watermarks, events: TimerQueue, processing: TimerQueue) -> None:
        self.units = units
        self.marks = marks
        self.events = events
        self.processing = processing
        self.budget = 0
        self.stop_after_fired = FOREVER
        self.draining = False

    def is_due(self) -> bool:
        """Whether anything may be due."""
        return self.events.due_ms <= self.marks.task_ms or self.processing.due_ms <= self.units.context.now

    def drain(self) -> None:
        """Fire what is due, in order, until nothing is or the budget is spent; then ``draining`` is left True."""
        units, marks, events, processing = self.units, self.marks, self.events, self.processing
        now = units.context.now
        while True:
            if events.due_ms <= marks.task_ms:
                domain, queue = rows.EVENT_TIME, events
            elif processing.due_ms <= now:
                domain, queue = rows.PROCESSING_TIME, processing
            else:
                self.draining = False
                break
            if self.budget <= 0 or units.totals.fired >= self.stop_after_fired:
                self.draining = True
                break
            self.budget -= 1
            entry = queue.pop()
            try:
                self._fire(domain, entry)
            except BaseException:
                queue.put_back(entry)
                raise
        context = units.context
        context._table = context._instance = context._route = None
        # The next handler draws from its own beginning, whether or not timers have fired before it.
        context._draws, context._random = 0, None

    def _fire(self, domain: int, entry: Entry) -> None:
        """Fire what an entry of a queue names, if it is still true."""
        units = self.units
        time_ms, number, key_bytes, name = entry
        table = units.cells.tables[number]
        key = table.plan.key_codec.decode(key_bytes)
        units.cells.begin()
        instance = table.live.get(key)
        if instance is None:
            instance = table.load(key)
            if table.is_absent(instance):
                del table.live[key]
                if name[:1] == rows.EXPIRY:
                    units.cells.disarm(domain, time_ms, table, key_bytes, name)
                return
        context = units.context
        context.key = key
        context.is_late = False
        context.event_time = time_ms if domain == rows.EVENT_TIME else max(self.marks.task_ms + 1, 0)
        if name[:1] == rows.EXPIRY:
            units.totals.fired += units.expire(table, instance, domain, time_ms, name)
            return
        timer = table.parts(instance).timers.get((domain, name))
        if timer is None or timer.time_ms != time_ms:
            table.put_off(domain, timer, time_ms, key_bytes, name)
            return
        family, context.timer_name = table.timer_name(name)
        context._salt, context._origin, context._depth = 1, timer.seed, timer.depth
        context._fired = (domain, time_ms)
        mark, fired = len(context._outputs), units.totals.fired
        try:
            skipped = units.timer_skip(fired, table, time_ms) if units.skips else None
            if skipped is not None:
                units.use_up(table, instance, (domain, name))
                units.skip(TIMER, fired, None, skipped)
            else:
                units.invoke_timer(self._route(table, domain, family), table, instance, (domain, name))
                if context._chained:
                    units.deliver_chained(key)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises fails its unit
            units.failed(error, mark, TIMER, fired, None, (table.plan, context.timer_name, time_ms))
            # All that the handler did is undone, and with it that the timer was used up.
            units.use_up(table, table.live[key], (domain, name))
        finally:
            context._fired, context._depth, context.timer_name = None, 0, None
        units.totals.fired = fired + 1

    def _route(self, table: Table, domain: int, family: str) -> Route:
        plan = table.plan
        handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
        route = handlers.get(family)
        if route is None:
            raise UsageError(
                f"{plan.name} has a pending timer of the family {family!r} but no handler for it",
                mend="It was set by an earlier version of the code. Give the actor that handler again, "
                f"or delete such timers: --drop-state {plan.name}.{timer_family(domain, family)}.",
            )
        return route

    def latest_ms(self) -> int:
        """The time of the latest event-time timer that is pending."""
        tables = self.units.cells.tables
        moved_ms = max((table.latest_moved_ms(rows.EVENT_TIME) for table in tables), default=NOTHING)
        for time_ms, number, key_bytes, name in self.events.latest_first():
            if time_ms <= moved_ms:
                break
            if tables[number].is_pending(rows.EVENT_TIME, time_ms, key_bytes, name):
                return time_ms
        return moved_ms
