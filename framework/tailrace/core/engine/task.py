"""The task: one partition of every input of an app, advanced step by step.

Rules of this file. Nothing here does I/O, reads a clock or draws a random number. Everything that comes from
outside is a *cause*. Each kind of cause has one method, and each cause is recorded on the tape:

    cause                    method      what the step does before the common part
    records, in order        run         judges lateness, runs the handlers, raises the input's watermark
    clock reading            clock       advances processing time
    source becomes idle      idle        its watermark no longer counts
    upstream watermark       upstream    sets the source's watermark to the one that its writers published
    source may have more     wake        an idle source counts again
    end of all input         ended       an operator takes the highest watermark of its sources
    input may have more      opened      an operator takes the lowest watermark of its sources again
    end for an actor         finish      its watermark rises to the latest timer that is then pending; again while there is one
    a cut that was reached   raised      an operator takes the watermark that it has there

The common part of every step: the watermarks of the operators advance, each by its own sources
(``watermarks``). Then the due timers are *drained* (``firing``), including timers that are set during the
drain. A driver may leave a step in the middle of its drain (``draining``), and even commit there, because the
due timers are themselves state. ``wake`` and ``opened`` are not steps: more sources count after them, so no
watermark can rise, and they may come in the middle of a drain.

A *unit* is a record with all its handlers, or one firing. It succeeds as a whole, or the task undoes all of
it: outputs, fields, entries and timers. The app decides whether a failure stops the task, or goes to the dead
letters and on the tape. A failed record has been read and advances the watermark; a failed timer is used up.

There is one loop over records, ``_take``: live and in a replay. For each record it judges the lateness, runs the
unit, moves the watermark and fires the timers that are due. Most inputs have one route to one actor whose table is not checked. For these, the code of
``Units.invoke`` is inlined: the calls would take a quarter of the time per event. What is rare is in methods.

Results wait in the task until a driver takes them: ``take_outputs`` at any time, ``commit_batch`` for a
commit, and ``committed`` after it succeeded. To abort, the driver drops the task and makes a new one from the
store. Handlers cannot observe slices, commits and restarts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.failure import FAILURES
from tailrace.core.engine.input_decoder import INDIRECT, DirectCall
from tailrace.core.engine.ordered_task import NOBODY, NOT_TOUCHED, OrderedTask
from tailrace.core.engine.settings import CommitBatch, TaskSettings
from tailrace.core.errors import UsageError
from tailrace.core.records import Head, InputRecord, Refused
from tailrace.core.unit_ids import ORIGIN_HEADER

__all__ = ["ORIGIN_HEADER", "CommitBatch", "Task", "TaskSettings"]


class Task(OrderedTask):
    """One partition of an app. See the head of this file.

    ``state`` and ``cut`` give the point where the task starts. Without a cut it is new: it begins at
    ``positions`` (0 for inputs that are not named), and ``lineage`` is the seed of all its randomness.
    ``nonce`` makes the identities of its commits differ from those of any other start (see ``tape``).
    ``replaying``: the task gets the skips of a tape, and a handler that fails without a skip raises
    ReplayDivergedError. ``drop`` names orphans (see ``stored``) whose state the first commit deletes.
    ``watch`` shows what the task does. IncompatibleStateError: the stored state cannot be read as declared.
    """

    _straight: DirectCall = INDIRECT
    """The direct call of the current run."""

    def run(self, number: int, heads: Sequence[Head], start: int = 0) -> int:
        """Take an input's records in order, from ``heads[start]``. Returns the index of the first not taken.

        This is less than ``len(heads)`` if a step is left ``draining``. Raises HandlerError or BadRecordError
        if the app stops on failures. The failing record is then not taken, and the task can still commit the
        records before it.
        """
        self._not_draining()
        if start >= len(heads):
            return start
        one = self._inputs[number]
        ranged = self._units.ranged
        if ranged is None:
            one.prefetch(heads, start)
        else:
            ranged.taken_before = self.totals.records + self.totals.refused - start
            one.prefetch(ranged.own(heads, start), 0)
        return self._run_ordered(one, heads, start) if one.waits else self._run(number, heads, start)

    def clock(self, now_ms: int) -> None:
        """Apply a clock reading. A reading before the last one changes nothing: the clock never goes back."""
        self._not_draining()
        if now_ms > self._context.now:
            self._tape.cause(tape.CLOCK, now_ms - self._context.now)
            self._context.now = now_ms
            self._advance()

    def idle(self, source: int) -> None:
        """Mark a source as idle. The next record of its input, or watermark of its writers, wakes it."""
        self._not_draining()
        if not self.watermarks.idle[source]:
            self.watermarks.fall_idle(source, self.now - self._idle_after_ms(source))
            self._tape.cause(tape.IDLE, source, 1)
            self._unit.outputs += self.first_start.marks(source, self.now)
            self._advance()

    def _idle_after_ms(self, source: int) -> int:
        """For how long a source had nothing to read when it becomes idle; 0 if its writers say so."""
        inputs = self.plan.inputs
        follows = source >= len(inputs) or inputs[source].watermark == "upstream"
        return 0 if follows else inputs[source].idle_after_ms

    def upstream(self, source: int, watermark_ms: int) -> None:
        """Apply the watermark that a source's writers published, at the position it was published for."""
        self._not_draining()
        marks = self.watermarks
        before = marks.of_source[source]
        if watermark_ms > before or marks.idle[source]:
            marks.of_source[source] = max(before, watermark_ms)
            marks.idle[source] = False
            self._tape.cause(tape.UPSTREAM, source, max(0, watermark_ms - before))
            self._advance()

    def wake(self, source: int) -> None:
        """Count an idle source again, without a record or new watermark: it may have more to read."""
        if self.watermarks.idle[source]:
            self.watermarks.idle[source] = False
            self._tape.cause(tape.UPSTREAM, source, 0)

    def wake_all(self) -> None:
        """Count every source again."""
        for source in range(len(self.watermarks.idle)):
            self.wake(source)

    def ended(self, operator: int) -> None:
        """Note that an operator's input has ended and no writer is working: it waits for no source."""
        self._not_draining()
        if not self.watermarks.ended_operators[operator]:
            self.watermarks.ended_operators[operator] = True
            self._tape.cause(tape.ENDED, operator)
            self._advance()

    def opened(self, operator: int) -> None:
        """Note that an operator gets more input, although its input had ended for good."""
        if self.watermarks.ended_operators[operator]:
            self.watermarks.ended_operators[operator] = False
            self._tape.cause(tape.OPENED, operator)

    def reopen(self) -> None:
        """Open all operators whose input had ended."""
        for operator in range(len(self.plan.operators)):
            self.opened(operator)

    def finish(self, operator: int, to_ms: int | None = None) -> bool:
        """At the end of input, raise the watermark of an operator, and of those together with it, to the latest of their
        now pending timers.

        Returns whether there was one. Call it until there is none, since handlers may set more timers: in
        order, every timer fires. Processing-time timers, expiries and the timers of handlers that are declared
        with ``unless_ended`` do not count. ``to_ms``: in a replay, the watermark of the first run.

        Raises TimerLoopError if the handlers set timers without end.
        """
        self._not_draining()
        together = self.plan.operators[operator].together
        if to_ms is None:
            actors = [one for number in together if (one := self.plan.operators[number].actor) is not None]
            cap = self.settings.timer_loop_cap
            to_ms = max((self._firing.latest_to_end(one, cap) for one in actors), default=NO_WATERMARK)
        if to_ms <= min([self.watermarks.ready[one] for one in together]):
            return False
        for one in together:
            if to_ms > self.watermarks.ready[one]:
                self.watermarks.rise(one, to_ms)
        self._tape.cause(tape.RISEN, operator, to_ms)
        self._advance()
        return True

    def raised(self, marks: Mapping[int, int], *, more: bool = False) -> None:
        """Lift operators to the watermarks that they have at a cut, all in one step, whatever their sources say. ``more``: in a
        replay, others of this step follow.
        """
        self._not_draining()
        left = len(marks)
        for operator, to_ms in marks.items():
            left -= 1
            if to_ms > self.watermarks.ready[operator]:
                self.watermarks.rise(operator, to_ms)
            self._tape.cause(tape.RAISED, operator, to_ms, int(more or left > 0))
        if not more:
            self._advance()

    def drain(self, most: int | None = None) -> bool:
        """Continue to fire due timers, at most ``most``. Returns whether the step is finished."""
        self._firing.budget = self.settings.firing_budget if most is None else most
        self._firing.drain()
        return not self._firing.draining

    # --- the hot loop ---

    def _run(self, number: int, heads: Sequence[Head], start: int) -> int:
        """``run`` without its checks: lets ``_take`` handle the records, and counts what it has taken."""
        one, plan, marks, totals = (
            self._inputs[number],
            self.plan.inputs[number],
            self.watermarks,
            self.totals,
        )
        units, unit, context = self._units, self._unit, self._context
        self._firing.budget = self.settings.firing_budget
        slept, marks.idle[number] = marks.idle[number], False
        # In most apps all operators that read this input have the same watermark: then one number is enough.
        # If messages may be late, each belongs to one actor.
        shared = None if one.inbox and one.judged else marks.shared_watermark(number)
        units.apart = shared is None
        unit.watermark, ceiling = (marks.highest(number), 0) if shared is None else shared
        if shared is not None:
            context.watermark = unit.watermark
        is_direct = units.direct and not (units.skips or units.apart)
        self._straight = one.direct if is_direct else INDIRECT
        if unit.used:
            unit.reset()
        unit.input, context.is_late = number, False
        unit.route, unit.table = self._straight.route, self._straight.table
        refused, unit.taken = totals.refused, start
        try:
            self._take(number, heads, start, ceiling)
        finally:
            taken = unit.taken
            if shared is not None:
                marks.set_after_run(number, marks.of_source[number], unit.watermark)
            context.is_late = False
            self._late_events, units.late, units.apart = 0, NOBODY, False
            totals.records += taken - start - (totals.refused - refused)
            if taken == start:
                marks.idle[number] = slept  # no record was taken that could have woken the input
            else:
                before = self.positions[plan.name]
                self.positions[plan.name] = heads[taken - 1][0] + 1
                self._tape.run(number, self.positions[plan.name] - before)
            unit.leave()
        return taken

    def _take(self, number: int, heads: Sequence[Head], start: int, ceiling: int) -> None:
        one, cells, context, unit = self._inputs[number], self._cells, self._context, self._unit
        units, marks, (events, processing) = self._units, self.watermarks, self._due[number]
        routes, judged, lag, apart, ranged = one.routes, one.judged, one.lag, units.apart, units.ranged
        picks = one.inbox or ranged is not None
        outputs, chained, undo, touched = unit.outputs, unit.chained, cells.undo, cells.touched
        direct, _, table, call, load, touch, encode, seal, settle, full = self._straight
        live, epoch, collections = {} if table is None else table.live, cells.epoch, cells.touched_collections
        own, taken, late = marks.of_source[number], start, False
        try:
            for offset, time_ms, key, event, record in islice(heads, start, None):
                if time_ms is None:
                    if type(event) is Refused:
                        taken += units.refuse(number, event, record)
                        continue
                    time_ms = context.now
                to, watermark, mark, image = routes, unit.watermark, len(outputs), NOT_TOUCHED
                if picks:
                    if ranged is not None and not one.inbox:
                        to = ranged.taken(number, offset, routes, key, mark)
                    elif event.redriven >= 0:
                        self._handle_redriven(one, (offset, time_ms, key, event, record))
                        taken += 1
                        if self._left_draining(number, own, watermark):
                            break
                        continue
                    else:
                        to, event = one.takers(event), event.message
                context.key, context.event_time, unit.cause = key, time_ms, record
                if undo or touched:
                    cells.begin()
                try:
                    if time_ms <= watermark and judged:
                        to, late = self._late(one.plan, event, to, time_ms, record, own), True
                    if to is direct:
                        instance = live.get(key)
                        if instance is None:
                            instance = load(key)
                        image = encode(instance) if instance._tr_mark == epoch else touch(instance)
                        unit.instance = instance
                        call(instance, event, context)
                        if collections:
                            cells.seal_collections()
                        if full:
                            settle(instance, image)
                        else:
                            seal(instance)
                    else:
                        units.record(number, offset, record, to, key, event, mark)
                    if chained:
                        units.deliver_chained(key)
                except FAILURES as error:
                    late = self._failed(error, mark, number, offset, record, image)
                taken += 1
                if late:
                    late = self._end_unit()
                elif unit.used:
                    unit.reset()
                if time_ms - lag > own:
                    own = time_ms - lag
                    if apart:
                        watermark = self._moved_apart(number, own)
                    elif own > watermark and ceiling > watermark:
                        watermark = own if own < ceiling else ceiling  # noqa: FURB136  # faster
                        context.watermark = unit.watermark = watermark
                elif not undo:
                    continue  # no watermark has moved, and no timer can have been set
                is_due = watermark >= events.due_ms or context.now >= processing.due_ms
                if is_due and self._left_draining(number, own, watermark):
                    break
        finally:
            unit.taken, marks.of_source[number] = taken, own

    # --- parts of a step ---

    def _failed(
        self,
        error: BaseException,
        mark: int,
        number: int,
        offset: int,
        record: InputRecord | None,
        image: bytes | None,
    ) -> bool:
        """Undo a failed unit. Raises the error, or writes a dead letter and returns True."""
        unit, straight = self._unit, self._straight
        if image is not NOT_TOUCHED:  # a direct call; goes before the instances that streams touched
            self._cells.touched.insert(0, (straight.table, self._context.key, image))
        try:
            self._units.failed(error, mark, number, offset, record)
        finally:
            if not self._units.apart:
                self.watermarks.set_after_run(number, self.watermarks.of_source[number], unit.watermark)
            self._firing.drop_undone()
        unit.route, unit.table = straight.route, straight.table
        return True

    def _end_unit(self) -> bool:
        """Reset what a late event, a draw or a send has left, and count the event. Returns False."""
        self.totals.late += self._late_events
        if self._late_after_idle is not None and self._late_events:
            self.watermarks.note_late(*self._late_after_idle, self.now)
        self._late_events, self._late_after_idle = 0, None
        self._units.late, self._context.is_late = NOBODY, False
        self._unit.reset()
        return False

    def _moved_apart(self, number: int, source_ms: int) -> int:
        """Move the watermarks of operators that differ. Returns the highest of those that are concerned."""
        marks = self.watermarks
        marks.of_source[number] = source_ms
        marks.advance(self.plan.inputs[number].moves)
        self._unit.watermark = highest = marks.highest(number)
        return highest

    def _left_draining(self, number: int, source_ms: int, watermark: int) -> bool:
        """Fire the timers that are due after a record. Returns whether some are left."""
        firing, unit, straight = self._firing, self._unit, self._straight
        if not self._units.apart:
            self.watermarks.set_after_run(number, source_ms, watermark)
        firing.drain()
        if firing.draining:
            return True
        self._context.watermark = watermark
        unit.route, unit.table = straight.route, straight.table
        return False

    def _not_draining(self) -> None:
        if self._firing.draining:
            raise UsageError(
                "a step is not done", hint="Call drain() until it returns True before the next cause."
            )

    def _advance(self) -> None:
        self.watermarks.advance()
        self._firing.budget = self.settings.firing_budget
        self._firing.drain()
