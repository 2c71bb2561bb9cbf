"""Ordered operators: they handle their events in the order of event time, each once their watermark has passed it.

Theory. An event of an ordered operator has a *place*: (time, rank of its input, tail). The time is that of the event, the rank follows
the order of declaration of the topics. The tail is the offset in an input from outside; in an input that the app writes, where offsets
depend on the schedule, it is the sender with its running number, see ``core.unit_ids``. A record is *taken* when it is read: its input's position and watermark advance, and the
tape has it, as for every record. Then, for each ordered operator that it concerns:

    of an input that is no source        handled at once: slow reference data, and feedback of a circle
    behind the watermark of its input    late: it waits in the place right after that watermark, and is then handled,
                                         or what the topic's ``late=`` says
    otherwise                            it waits in the place of its event time
    and if that place is passed          late, because an input was idle: handled at once, or what ``late=`` says

At the end of every step, event time *sweeps* up, over all ordered operators of the task together: the next thing is
always the one of the lowest time among the events and timers that are ready (at or before their operator's
watermark); at one time events come before timers, and among events the order is (place of the operator, rank,
tail). Before an event of time t, an ordered operator stands at t - 1: that is its ``ctx.watermark``. So what an
ordered operator does is a function of the set of its events. Nothing depends on the order in which they were taken. That
holds for late events, too: whether one is late, and its place, follow from the records of its own input.

**The log is the buffer.** A cut has no list of what waits: while a step sweeps nothing is taken, so an event that was
taken and was not late waits if, and only if, its place is after the *frontier* of its operator: the time that it
stands at, and, if the commit fell between two events of one time, the place of the last one of them. A cut notes per
operator and input the lowest offset that waits, the number of those events and the sum of their offsets. A task that
continues reads the input again from there (``refill``), keeps what is after the frontier, and compares: other event
times in the code, or records that the log has lost, are an error, never an event that is lost or handled twice. Late
events that wait are listed with their places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tailrace.core import rows
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.firing import Firing
from tailrace.core.engine.input_decoder import BoundInput
from tailrace.core.engine.tape import Ordered
from tailrace.core.engine.timers import FOREVER, TimerQueue
from tailrace.core.engine.units import Units
from tailrace.core.engine.waiting import Waiting
from tailrace.core.engine.waiting_runs import Waiter
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import IncompatibleStateError
from tailrace.core.records import Head
from tailrace.core.unit_ids import Tail

_BYTES_OF_EVENT: Final = 700
"""Of the head, the decoded event, the record and their place in a heap; besides the value, which counts twice."""

Place = tuple[int, int, Tail]
"""Event time, rank of the input, tail."""


class Sweep(Firing):
    """Handles the events that are ready, and fires the timers that are due, in the order of their times."""

    __slots__ = (
        "_event",
        "before",
        "event_bytes",
        "handle",
        "highest_elsewhere",
        "inputs",
        "last",
        "operators",
        "waiting",
    )

    def __init__(
        self, units: Units, marks: Watermarks, events: Sequence[TimerQueue], processing: Sequence[TimerQueue]
    ) -> None:
        super().__init__(units, marks, events, processing)
        plan, self.inputs = units.plan, units.inputs
        self.handle: Callable[[BoundInput, Head, int, int], None]
        """Handles an event for an operator, in its turn; the last argument is the time of its place."""
        self.operators = sorted(
            (one.index for one in plan.operators if one.ordered),
            key=lambda number: (plan.operators[number].level, number),
        )
        """The ordered operators, in the order of their places."""
        self.waiting = {number: Waiting(self.inputs) for number in self.operators}
        self.last: dict[int, Waiter] = {}
        """By operator, the last event that it has handled in its turn."""
        self.before: dict[int, Place] = {}
        """By operator, the place of the last one before the cut that the task began with."""
        self.highest_elsewhere = [NO_WATERMARK] * len(plan.operators)
        """By operator: the highest time of a place of an event of a key that is not watched."""
        marks.waiting_until = lambda one: max(self.waiting[one].last_ms(), self.highest_elsewhere[one])
        self.event_bytes = 1_000
        """About so many bytes of memory an event that waits takes."""
        self._event = -1

    @property
    def bytes_in_memory(self) -> int:
        """The memory that the events take that wait, about."""
        return self.event_bytes * sum(one.in_memory for one in self.waiting.values())

    def weigh(self, value: bytes | None) -> None:
        """Estimate again how large an event is, by the value of one."""
        found = _BYTES_OF_EVENT + 2 * len(value or b"")
        self.event_bytes += (found - self.event_bytes) // 8

    def is_ahead(self, number: int, read: Collection[int] = ()) -> bool:
        """Whether events of an input can only wait, as another input, which is read from outside, is behind it.

        Those that were ``read`` to their ends do not count.
        """
        marks, plan = self.marks, self.units.plan
        mark = marks.of_source[number]
        behind = {
            one.index
            for one in plan.inputs
            if one.watermark == "events" and not marks.idle[one.index] and marks.of_source[one.index] < mark
        }.difference(read)
        return any(not behind.isdisjoint(plan.operators[one].sources) for one in self.inputs[number].waits)

    def is_due(self) -> bool:
        """Find the next event or timer that is ready. Returns whether there is one.

        If there is none left of event time, the operators have reached their watermarks. An entry of a queue that is no
        timer any more must not delay that: a task that has started again, or replays, does not have it.
        """
        while (timer := self._next_timer()) is not None and self._stops and not self._fires(*timer):
            self._found = timer
            super().take_next()
        if self._event < 0 and timer is None:
            self.marks.reach(FOREVER)
            return super().is_due()
        self._found = timer
        return True

    @property
    def _stops(self) -> bool:
        return self.budget <= 0 or self.units.totals.drained >= self.stop_after

    def _fires(self, domain: int, queue: TimerQueue, table: Table) -> bool:
        time_ms, _, key, name = queue.first
        return table.fires(domain, time_ms, key, name)

    def _next_timer(self) -> tuple[int, TimerQueue, Table] | None:
        """The event-time timer that is next. ``_event`` is the operator whose event is next, or -1."""
        waiting, ready = self.waiting, self.marks.ready
        event, event_ms = -1, FOREVER
        for operator in self.operators:
            due_ms = waiting[operator].due_ms
            if due_ms < event_ms and due_ms <= ready[operator]:
                event, event_ms = operator, due_ms
        timer, first = -1, (event_ms, -1, b"", b"")
        for actor, queue in enumerate(self.events):
            if queue.due_ms <= ready[actor] and queue.first < first:
                timer, first = actor, queue.first
        self._event = event if timer < 0 else -1
        return None if timer < 0 else (rows.EVENT_TIME, self.events[timer], self.units.cells.tables[timer])

    def fire_first(self) -> None:
        """Fire the first timer that is due. There is one, before all events."""
        self._found = self._next_timer()
        self.take_next()

    def take_next(self) -> None:
        """Handle the next event, or fire the next timer. Event time advances to it, if it is one and succeeds."""
        before = self.marks.of_operator.copy()
        try:
            self._take_next(before)
        except BaseException:
            self.marks.of_operator[:] = before
            raise

    def _take_next(self, before: Sequence[int]) -> None:
        operator, marks = self._event, self.marks
        if operator >= 0:
            waiting = self.waiting[operator]
            first: Waiter = waiting.first()
            time_ms, _, _, number, head = first
            marks.reach(time_ms - 1)
            self.handle(self.inputs[number], head, operator, time_ms)
            waiting.pop(first)
            self.last[operator] = first
            self.units.totals.ordered += 1
            return
        assert self._found is not None
        domain, queue, _ = self._found
        fired = self.units.totals.fired
        if domain == rows.EVENT_TIME:
            marks.reach(queue.due_ms)
        super().take_next()
        if self.units.totals.fired == fired:
            marks.of_operator[:] = before

    def place_of(self, waiter: Waiter) -> Place:
        """The place of an event that has waited."""
        time_ms, rank, _, number, head = waiter
        return time_ms, rank, self.inputs[number].tail(head)

    # --- the cut

    def noted(self) -> dict[str, Ordered]:
        """For a cut: the operators in which events wait, or that are within a drain."""
        found: dict[str, Ordered] = {}
        for operator, waiting in self.waiting.items():
            reached, ready = self.marks.of_operator[operator], self.marks.ready[operator]
            if waiting or ready != reached:
                last = (
                    self.place_of(self.last[operator]) if operator in self.last else self.before.get(operator)
                )
                found[self.units.plan.operators[operator].name] = Ordered(
                    ready,
                    last if last is not None and last[0] > reached else None,
                    {self.units.plan.inputs[number].name: low for number, low in waiting.lows().items()},
                    {
                        one.plan.name: sorted(late.items())
                        for one, late in zip(self.inputs, waiting.late, strict=True)
                        if late
                    },
                )
        return found

    def resumed(self, cut: Mapping[str, Ordered], dropped: Collection[str]) -> dict[int, Ordered]:
        """What a cut has, by operator.
        Raises IncompatibleStateError: events wait for an operator that does not take them any more, or
        handles them on arrival.
        """
        plan, found = self.units.plan, dict[int, Ordered]()
        numbers = {one.name: one.index for one in plan.operators}
        for name, one in cut.items():
            operator = numbers.get(name, -1)
            if operator in self.waiting:
                found[operator] = one
                if one.last is not None:
                    time_ms, rank, tail = one.last
                    self.before[operator] = time_ms, rank, tail
                    self._check_tail(name, operator, rank, tail)
            taken = {bound.plan.name for bound in self.inputs if operator in bound.waits or bound.inbox}
            lost = {topic: low for topic, low in one.lows.items() if topic not in taken}
            for topic, (_, count, _) in lost.items() if name not in dropped else ():
                raise IncompatibleStateError(
                    f"{count} events of {topic!r} wait for their turn in {name}, which "
                    f"{'is not there any more' if operator < 0 else 'does not handle them in the order of event time any more'}",
                    hint="Let the code that they wait in handle them first: run it until it has caught up and its inputs are "
                    "idle.",
                )
        return found

    def _check_tail(self, name: str, operator: int, rank: int, tail: Tail) -> None:
        """Raises IncompatibleStateError: an input of an operator that is within a drain has places of another kind now."""
        of_rank = [
            one for one in self.inputs if one.plan.rank == rank and (operator in one.waits or one.inbox)
        ]
        if any((one.tail_of is None) != isinstance(tail, int) for one in of_rank):
            raise IncompatibleStateError(
                f"{name} has handled some events of one time, and their topic is one that the app writes itself now, or not any more",
                hint="Let the code that they wait in handle them first: run it until it has caught up.",
            )
