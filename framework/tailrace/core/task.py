"""The task: one partition of every input of an app, advanced step by step.

Rules of this file. Nothing here does I/O, reads a clock or draws a random number. Whatever comes from outside is a
*cause*, and every cause is one method; each is noted on the tape:

    cause               method      what the step does before the common part
    records, in order   run         judges lateness, runs the handlers, raises the input's watermark
    clock reading       clock       processing time moves up
    input falls idle    idle        its watermark no longer counts
    upstream watermark  upstream    the input's watermark is what its producers published
    end of an input     ended       its watermark no longer counts
    end of all          finish      the watermark rises to the latest timer then pending

The common part of every step: the task's watermark advances, then the due timers are *drained*, event time before
processing time, each in the order (time, actor name, key, timer name), those set meanwhile included. A step may be left
in the middle of its drain (``draining``), and even committed there, because what is due is itself state.

A *unit* is a record with all its handlers, or one firing. It succeeds as a whole, or nothing of it remains: outputs,
fields, entries and timers are taken back, and the failure stops the task or goes to the dead letters and on the tape,
as the app has chosen. A failed record has still been seen, so it advances the watermark; a failed timer is used up.

Results wait in the task until a driver takes them: ``take_outputs`` as they come, ``commit_batch`` for a commit, and
``committed`` once it is one. To abort, throw the task away and make one from the store. Slices, commits and restarts
cannot be seen from a handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from tailrace.core import rows, tape
from tailrace.core.cells import Cells, Table
from tailrace.core.context import Context, Measurement
from tailrace.core.errors import (
    BadRecordError,
    CorruptStateError,
    ReplayDivergedError,
    UsageError,
)
from tailrace.core.failure import dead_letter_headers, handler_error, is_handlers_fault
from tailrace.core.heads import InputHeads
from tailrace.core.plan import ActorPlan, Plan, Route
from tailrace.core.records import Delivery, Head, Headers, InputRecord, Output, Refused
from tailrace.core.schema import schema_rows
from tailrace.core.storage import StateReader
from tailrace.core.timers import FOREVER, Entry, TimerQueue
from tailrace.core.watermarks import NOTHING, Watermarks

ORIGIN_HEADER: Final = "tailrace-origin"
"""Header of every output: app, task and running number."""

_DELIVERIES = 1_000
_BY_CLOCK = (rows.EVENT_TIME, rows.PROCESSING_TIME)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How a task goes about its work. None of it changes any result, except the timer cap."""

    cache_bytes: int = 256 << 20
    """About how much memory clean live instances may take."""
    timers_in_memory: int = 200_000
    """Timers kept in memory per time domain; the others are read from the store when their time comes."""
    firing_budget: int = 10_000
    """Timers fired before a call returns to its driver."""
    timer_loop_cap: int = 1_000
    """How often in a row a timer handler may set a timer at or before the time just fired."""
    reload: bool = False
    """Decode every touched instance anew after each handler: a live object must be what its encoding says."""
    checked: bool = False
    """Look for state changed outside its own handlers, at each touch and each commit. For tests: it costs time."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """What has to be made durable together.

    ``rows`` go to the changelog and the store, ``index_rows`` (derived from them) to the store only. ``cut`` stands at
    the end of both, ``tape`` is the record of the causes.
    """

    rows: dict[bytes, bytes | None]
    index_rows: dict[bytes, bytes | None]
    cut: bytes
    tape: bytes
    positions: dict[str, int]
    measurements: list[Measurement]


class Task:
    """One partition of an app. See the head of this file.

    ``state`` and ``cut`` say where it starts; without a cut it is new and begins at ``positions`` (0 where nothing is
    said), with ``lineage`` as the seed of all its randomness. ``replaying`` gives it the skips of a tape: then a
    handler that fails without one is a ReplayDivergedError. Raises IncompatibleStateError if what is stored cannot be
    read as what is declared.
    """

    def __init__(
        self,
        plan: Plan,
        partition: int,
        state: StateReader,
        cut: bytes | None = None,
        *,
        lineage: bytes = b"",
        positions: Mapping[str, int] | None = None,
        settings: TaskSettings | None = None,
        replaying: bool = False,
    ) -> None:
        self.plan = plan
        self.partition = partition
        self.settings = settings = TaskSettings() if settings is None else settings
        self.replaying = replaying
        self.draining = False
        """A step is still firing its timers: ``drain`` must be called before the next cause."""
        self.stop_after_fired = FOREVER
        """A replay that ends in the middle of a drain stops when so many have fired."""
        self.skips: dict[tuple[int, int], Headers] = {}
        self._start = tape.decode_cut(cut) if cut is not None else None
        start = self._start
        if start is not None and (start.app, start.partition) != (plan.app, partition):
            raise CorruptStateError(
                f"the cut is of app {start.app!r} partition {start.partition}, "
                f"not of app {plan.app!r} partition {partition}"
            )
        self.lineage = lineage if start is None else start.lineage
        numbers = {actor.name: actor.index for actor in plan.actors}
        self._queues = tuple(
            TimerQueue(domain, state, numbers.get, settings.timers_in_memory, stored=start is not None)
            for domain in _BY_CLOCK
        )
        self._cells = Cells(
            plan,
            partition,
            state,
            self._queues,
            cache_bytes=settings.cache_bytes,
            reload=settings.reload,
            checked=settings.checked,
        )
        self._context: Context[Any] = Context(plan, self.lineage, settings.timer_loop_cap)
        self._cells.context = self._context
        self._schema_rows, self.orphans = schema_rows(plan, state.get(rows.SCHEMA_ROW))
        """``orphans``: actors and fields whose state is kept though nothing declares them any more."""
        self._watermarks = Watermarks(plan.inputs)
        self._inputs = [InputHeads(plan, one, partition) for one in plan.inputs]
        self.positions = {one.name: (positions or {}).get(one.name, 0) for one in plan.inputs}
        self.totals = tape.Totals()
        self.now = 0
        self._tape = tape.Tape(0)
        self._noted_start = False
        if start is not None:
            self._resume(start)
        self._budget = settings.firing_budget
        context = self._context
        context.now, context.watermark = self.now, self._watermarks.task_ms
        # A commit may have fallen in the middle of a drain.
        self.draining = self._is_due()

    def _resume(self, cut: tape.Cut) -> None:
        marks = self._watermarks
        for one in self.plan.inputs:
            self.positions[one.name] = cut.positions.get(one.name, self.positions[one.name])
            marks.of_input[one.index] = cut.watermarks.get(one.name, NOTHING)
            marks.idle[one.index] = one.name in cut.idle
            marks.ended[one.index] = one.name in cut.ended
            generator = cut.generators.get(one.name)
            if generator is not None and one.generator is not None:
                marks.generators[one.index] = msgspec.msgpack.decode(generator, type=type(one.generator))
        marks.task_ms = cut.watermark
        self.totals = msgspec.structs.replace(cut.totals)
        self.now = cut.now
        self._tape = tape.Tape(cut.tape)

    @property
    def watermark(self) -> int:
        """The task's watermark."""
        return self._watermarks.task_ms

    @property
    def tape_number(self) -> int:
        """The number of the tape record that the next commit writes."""
        return self._tape.number

    @property
    def waiting_outputs(self) -> int:
        """How many outputs wait to be taken."""
        return len(self._context._outputs)

    def watermark_of(self, number: int) -> int:
        """The watermark of one input."""
        return self._watermarks.of_input[number]

    def skip_to(self, number: int, offset: int) -> None:
        """Move an input's position over offsets that hold no record (markers, aborted or compacted ones)."""
        name = self.plan.inputs[number].name
        gap = offset - self.positions[name]
        if gap > 0:
            self.positions[name] = offset
            self._tape.run(number, gap)

    @property
    def dirty(self) -> bool:
        """Whether anything has happened since the last commit."""
        return bool(self._tape.causes) or bool(self._context._outputs) or self.draining

    @property
    def dirty_count(self) -> int:
        """How many instances and collections have been touched since the last commit."""
        return sum(len(table.dirty) for table in self._cells.tables) + len(self._cells.dirty_collections)

    # --- causes ---

    def decode(self, number: int, records: Sequence[InputRecord]) -> list[Head]:
        """Decode records of an input. What cannot be decoded comes out as a head that ``run`` will refuse."""
        return self._inputs[number].decode(records)

    def heads(self, number: int, events: Iterable[Any], first_offset: int) -> list[Head]:
        """Heads of events that are decoded already, at consecutive offsets from ``first_offset`` on."""
        return self._inputs[number].of_events(events, first_offset)

    def run(self, number: int, heads: Sequence[Head], start: int = 0) -> int:
        """Take records of one input, in order, from ``heads[start]`` on. Returns the index of the first not taken.

        That is less than ``len(heads)`` if a step is left ``draining``. Raises HandlerError or BadRecordError where
        the app is to stop on failure; then the failing record is not taken, and the task may still commit what it
        took before.
        """
        self._not_draining()
        self._budget = self.settings.firing_budget
        plan = self.plan.inputs[number]
        cells, context, marks, totals = self._cells, self._context, self._watermarks, self.totals
        outputs, chained, invoke = context._outputs, context._chained, self._invoke
        events, processing = self._queues
        touched, skips = cells.touched, self.skips
        routes, late_policy = self._inputs[number].routes(cells.tables), plan.late
        context._salt = self._inputs[number].salt
        context._fired = None
        context.timer_name = None
        judged = plan.watermark != "none"
        by_event = plan.watermark == "events"
        lag = plan.out_of_order_ms + 1
        marks.idle[number] = False
        own, ceiling = marks.of_input[number], marks.ceiling(number)
        watermark = marks.task_ms
        position = before = self.positions[plan.name]
        taken = start
        context.is_late = False
        try:
            for offset, time_ms, key, event, record in islice(heads, start, None):
                to = routes
                if time_ms is None:
                    if type(event) is Refused:
                        self._refuse(plan.index, event, record)
                        position = offset + 1
                        taken += 1
                        continue
                    time_ms = self.now
                if plan.is_inbox:
                    to, event = self._inputs[number].bound(event, cells.tables), event.message
                context.key = key
                context.event_time = time_ms
                context._origin = offset
                cells.begin()
                mark = len(outputs)
                try:
                    if judged and time_ms <= watermark:
                        totals.late += 1
                        context.is_late = True
                        if late_policy != "handle":
                            to = ()
                            if plan.late_topic is not None:
                                context.emit(plan.late_topic, event)
                    if skips and (number, offset) in skips:
                        self._skipped(number, offset, record)
                    else:
                        for route, table in to:
                            invoke(route, table, key, event)
                        if chained:
                            self._chain(key)
                except Exception as error:
                    self._failed(error, mark, number, offset, record, None)
                context.is_late = False
                totals.records += 1
                position = offset + 1
                taken += 1
                if by_event:
                    if time_ms - lag > own:
                        own = time_ms - lag
                        advanced = own if own < ceiling else ceiling
                        if advanced > watermark:
                            context.watermark = watermark = advanced
                elif judged:
                    own = self._punctuated(number, event, time_ms, own)
                    advanced = min(own, ceiling)
                    if advanced > watermark:
                        context.watermark = watermark = advanced
                if watermark >= events.due_ms or processing.due_ms <= self.now:
                    marks.of_input[number], marks.task_ms = own, watermark
                    self._drain()
                    context._salt = self._inputs[number].salt
                    if self.draining:
                        break
        finally:
            marks.of_input[number], marks.task_ms = own, watermark
            self.positions[plan.name] = position
            self._tape.run(number, position - before)
            context._table = context._instance = context._route = None
        return taken

    def clock(self, now_ms: int) -> None:
        """The clock was read. A reading before the last one is taken as the last one: the clock never goes back."""
        self._not_draining()
        if now_ms > self.now:
            self._tape.cause(tape.CLOCK, now_ms - self.now)
            self.now = self._context.now = now_ms
            self._advance()

    def idle(self, number: int) -> None:
        """There has been nothing to read on an input for its declared time. Its next record wakes it."""
        self._not_draining()
        if not self._watermarks.idle[number]:
            self._watermarks.idle[number] = True
            self._tape.cause(tape.IDLE, number, 1)
            self._advance()

    def upstream(self, number: int, watermark_ms: int) -> None:
        """The watermark that the producers of an input have published, applied at the position it was meant for."""
        self._not_draining()
        marks = self._watermarks
        before = marks.of_input[number]
        if watermark_ms > before:
            marks.of_input[number] = watermark_ms
            self._tape.cause(tape.UPSTREAM, number, watermark_ms - before)
            self._advance()

    def ended(self, number: int) -> None:
        """An input has ended: it is not waited for any more."""
        self._not_draining()
        if not self._watermarks.ended[number]:
            self._watermarks.ended[number] = True
            self._tape.cause(tape.ENDED, number)
            self._advance()

    def finish(self) -> None:
        """All inputs have ended and every inbox is drained: the watermark rises to the latest timer now pending.

        Timers that are set later, and those of processing time, stay pending.
        """
        self._not_draining()
        self._tape.cause(tape.FINISH)
        latest = self._latest_timer()
        if latest > self._watermarks.task_ms:
            self._watermarks.task_ms = latest
        self._advance()

    def drain(self, most: int | None = None) -> bool:
        """Go on firing what is due, at most ``most``. Returns whether the step is done."""
        self._budget = self.settings.firing_budget if most is None else most
        self._drain()
        return not self.draining

    # --- results ---

    def take_outputs(self) -> list[Output]:
        """The outputs since the last call, numbered."""
        outputs, self._context._outputs[:] = self._context._outputs.copy(), ()
        origin = f"{self.plan.app}/{self.partition}/"
        number = self.totals.outputs
        numbered = [
            Output(topic, key, value, time_ms, (*headers, (ORIGIN_HEADER, f"{origin}{n}".encode())))
            for n, (topic, key, value, time_ms, headers) in enumerate(outputs, number)
        ]
        self.totals.outputs = number + len(outputs)
        return numbered

    def discard_outputs(self) -> int:
        """Drop the outputs since the last call, counted but not numbered one by one. Returns how many."""
        count = len(self._context._outputs)
        self.totals.outputs += count
        self._context._outputs.clear()
        return count

    def commit_batch(self) -> CommitBatch:
        """All that has to become durable with this commit. Take the outputs first. Changes nothing."""
        if self._context._outputs:
            raise UsageError("outputs are waiting", mend="Call take_outputs() before commit_batch().")
        batch, index = self._cells.collect()
        batch.update(self._schema_rows)
        marks, inputs = self._watermarks, self.plan.inputs
        cut = tape.Cut(
            tape.FORMAT,
            self.plan.app,
            self.partition,
            self.lineage,
            dict(self.positions),
            {one.name: marks.of_input[one.index] for one in inputs},
            [one.name for one in inputs if marks.idle[one.index]],
            [one.name for one in inputs if marks.ended[one.index]],
            {
                one.name: msgspec.msgpack.encode(generator)
                for one, generator in zip(inputs, marks.generators, strict=True)
                if generator is not None
            },
            marks.task_ms,
            self.now,
            msgspec.structs.replace(self.totals),
            self._tape.number + 1,
        )
        first = not self._noted_start
        record = tape.TapeRecord(
            tape.FORMAT,
            self._tape.number,
            self._tape.causes,
            self._tape.skips,
            cut.totals,
            marks.task_ms,
            [one.name for one in inputs] if first else None,
            list(self.positions.values()) if first else None,
            self.now if first else None,
            self.plan.version if first else None,
            tape.environment() if first else None,
        )
        return CommitBatch(
            batch, index, tape.encode(cut), tape.encode(record), cut.positions, self._context._noted.copy()
        )

    def committed(self) -> None:
        """The last batch is durable and ``state`` gives its rows back."""
        self._cells.committed()
        self._tape.committed()
        self._schema_rows = {}
        self._noted_start = True
        self._context._noted.clear()

    # --- a step's handlers ---

    def _invoke(self, route: Route, table: Table | None, key: Any, event: Any) -> None:
        """Run one handler of a record, and seal what it touched."""
        context = self._context
        context._route = route
        context._table = table
        context._draws = 0
        context._random = None
        if table is None:
            route.call(event, context)
            return
        instance = table.live.get(key)
        if instance is None:
            instance = table.load(key)
        image = table.touch(instance)
        cells = self._cells
        cells.touched.append((table, key, image))
        context._instance = instance
        route.call(instance, event, context)
        if cells.touched_collections:
            cells.seal_collections()
        if table.simple and not cells.cleared:
            table.seal(instance)
        else:
            table.settle(instance, image)

    def _chain(self, key: Any) -> None:
        """Deliver what was emitted to streams, in the order of emission, within the same unit."""
        chained, deliveries = self._context._chained, 0
        salt = self._context._salt
        while chained:
            stream, event = chained.popleft()
            deliveries += 1
            if deliveries > _DELIVERIES:
                raise UsageError(
                    f"one event has caused more than {_DELIVERIES} deliveries, the last to the stream {stream.name!r}",
                    mend="A handler of the stream emits to it again without end.",
                )
            self._context._salt = salt + deliveries
            for route in self.plan.routes_of_stream[stream.index]:
                table = None if route.target is None else self._cells.tables[route.target.index]
                self._invoke(route, table, key, event)
        self._context._salt = salt

    def _punctuated(self, number: int, event: Any, time_ms: int, own: int) -> int:
        plan, generator = self.plan.inputs[number], self._watermarks.generators[number]
        if generator is not None:
            said = generator.on_event(event, time_ms)
        elif plan.punctuate is not None:
            said = plan.punctuate(event, time_ms)
        else:  # upstream: its records say nothing about it
            return own
        return own if said is None else max(own, said)

    # --- timers ---

    def _not_draining(self) -> None:
        if self.draining:
            raise UsageError("a step is not done", mend="Call drain() until it returns True before the next cause.")

    def _advance(self) -> None:
        self._context.watermark = self._watermarks.advance()
        self._budget = self.settings.firing_budget
        self._drain()

    def _is_due(self) -> bool:
        events, processing = self._queues
        return events.due_ms <= self._watermarks.task_ms or processing.due_ms <= self.now

    def _drain(self) -> None:
        events, processing = self._queues
        while True:
            if events.due_ms <= self._watermarks.task_ms:
                domain, queue = rows.EVENT_TIME, events
            elif processing.due_ms <= self.now:
                domain, queue = rows.PROCESSING_TIME, processing
            else:
                self.draining = False
                return
            if self._budget <= 0 or self.totals.fired >= self.stop_after_fired:
                self.draining = True
                return
            self._budget -= 1
            self._fire(domain, queue.pop())

    def _fire(self, domain: int, entry: Entry) -> None:
        """Fire what an entry of a queue names, if it is still true."""
        time_ms, number, key_bytes, name = entry
        table = self._cells.tables[number]
        key = table.plan.key_codec.decode(key_bytes)
        context = self._context
        self._cells.begin()
        instance = table.live.get(key)
        if instance is None:
            instance = table.load(key)
            if table.is_absent(instance):
                del table.live[key]
                return
        parts = table.parts(instance)
        context.key = key
        context.is_late = False
        context.event_time = time_ms if domain == rows.EVENT_TIME else self._watermarks.task_ms + 1
        if name[:1] == rows.EXPIRY:
            self.totals.fired += table.expire(instance, domain, time_ms, name)
            return
        timer = parts.timers.get((domain, name))
        if timer is None or timer.time_ms != time_ms:
            return
        mark = len(context._outputs)
        family, context.timer_name = table.timer_name(name)
        handlers = table.plan.event_timers if domain == rows.EVENT_TIME else table.plan.processing_timers
        route = handlers.get(family)
        context._salt, context._origin, context._depth = 1, timer.seed, timer.depth
        context._fired = (domain, time_ms)
        fired = self.totals.fired
        try:
            if self.skips and (-1, fired) in self.skips:
                table.move_timer(parts, (domain, name), None)
                self._cells.touched.append((table, key, table.touch(instance)))
                self._skipped(-1, fired, None)
            else:
                self._call_timer(route, table, instance, (domain, name), key)
                if context._chained:
                    self._chain(key)
        except Exception as error:
            try:
                self._failed(error, mark, -1, fired, None, (table.plan, context.timer_name, time_ms))
            except Exception:
                self._queues[domain].put_back(entry)
                raise
            # What the handler did is undone, the timer with it; but it has been used up.
            instance = table.live[key]
            self._cells.touched.append((table, key, table.touch(instance)))
            table.move_timer(table.parts(instance), (domain, name), None)
        self.totals.fired = fired + 1
        context._fired = None
        context._depth = 0
        context.timer_name = None

    def _call_timer(
        self, route: Route | None, table: Table, instance: Any, timer: tuple[int, bytes], key: Any
    ) -> None:
        context, cells = self._context, self._cells
        context._route, context._table, context._draws, context._random = route, table, 0, None
        image = table.touch(instance)
        cells.touched.append((table, key, image))
        table.move_timer(table.parts(instance), timer, None)
        if route is None:
            raise UsageError(
                f"{table.plan.name} has a pending timer {context.timer_name!r} but no handler for it",
                mend="It was set by an earlier version of the code. Give the actor that handler again, "
                "or let the timer go to the dead letters.",
            )
        context._instance = instance
        route.call(instance, context)
        if cells.touched_collections:
            cells.seal_collections()
        if table.simple and not cells.cleared:
            table.seal(instance)
        else:
            table.settle(instance, image)

    def _latest_timer(self) -> int:
        for time_ms, number, key_bytes, name in self._queues[rows.EVENT_TIME].latest_first():
            table = self._cells.tables[number]
            if table.is_pending(rows.EVENT_TIME, time_ms, key_bytes, name):
                return time_ms
        return NOTHING

    # --- failures ---

    def _failed(
        self,
        error: Exception,
        mark: int,
        number: int,
        at: int,
        record: InputRecord | None,
        timer: tuple[ActorPlan, str | None, int] | None,
    ) -> None:
        """A unit has failed: undo it, and stop or note it as skipped."""
        context = self._context
        route = context._route
        del context._outputs[mark:]
        context._chained.clear()
        self._cells.rollback()
        if not is_handlers_fault(error):
            raise error
        policy = self.plan.on_error if number < 0 else self.plan.inputs[number].on_error
        failure = handler_error(self.plan, self.partition, error, route, number, at, context.key, timer)
        if self.replaying:
            raise ReplayDivergedError(
                f"a handler failed in the replay that did not fail before: {failure}",
                mend="The code differs from the one that ran, or it depends on something that is not on the tape.",
            ) from error
        if policy == "stop":
            raise failure from error
        self._skipped(number, at, record, dead_letter_headers(failure, error))

    def _skipped(
        self, number: int, at: int, record: InputRecord | None, headers: Headers | None = None
    ) -> None:
        """Note a unit that failed, now or when it ran first, and write its dead letter."""
        headers = self.skips[number, at] if headers is None else headers
        self._tape.skips.append(tape.Skip(number, at, list(headers)))
        self.totals.failed += 1
        letter = Output(self.plan.dead_letters_topic, None, None, self._context.event_time, headers)
        if record is not None:
            letter = letter._replace(
                key=record.key, value=record.value, timestamp_ms=record.timestamp_ms, headers=record.headers + headers
            )
        self._context._outputs.append(letter)

    def _refuse(self, number: int, refused: Refused, record: InputRecord | None) -> None:
        plan = self.plan.inputs[number]
        assert record is not None
        error = BadRecordError(
            refused.detail,
            reason=refused.reason,
            topic=plan.name,
            partition=self.partition,
            offset=record.offset,
            mend='Correct its producer, or send such records to the dead letters with on_error="dead-letter".',
        )
        if plan.on_error == "stop":
            raise error
        self.totals.refused += 1
        headers = dead_letter_headers(error, None)
        self._context._outputs.append(
            Output(self.plan.dead_letters_topic, record.key, record.value, record.timestamp_ms, record.headers + headers)
        )
