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

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.engine import tape
from tailrace.core.engine.cells import Cells
from tailrace.core.engine.evolution import stored_state
from tailrace.core.engine.firing import Firing
from tailrace.core.engine.heads import BoundRoute, InputHeads
from tailrace.core.engine.settings import CommitBatch, TaskSettings
from tailrace.core.engine.timers import TimerQueue
from tailrace.core.engine.units import Units
from tailrace.core.engine.watching import Watch
from tailrace.core.engine.watermarks import NOTHING, Watermarks
from tailrace.core.errors import CorruptStateError, UsageError
from tailrace.core.handling.context import Context
from tailrace.core.records import Head, Headers, InputRecord, Output, Refused, output_of
from tailrace.core.storage import StateReader

__all__ = ["ORIGIN_HEADER", "CommitBatch", "Task", "TaskSettings"]

ORIGIN_HEADER: Final = "tailrace-origin"
"""Header of every output: app, task and running number."""


_NO_INSTANCES: Final[dict[Any, Any]] = {}


def _nobody(*_: Any) -> Any:
    """Stands for what an input without a direct route never calls."""


class Task:
    """One partition of an app. See the head of this file.

    ``state`` and ``cut`` say where it starts; without a cut it is new and begins at ``positions`` (0 where nothing is
    said), with ``lineage`` as the seed of all its randomness. ``replaying`` gives it the skips of a tape: then a
    handler that fails without one is a ReplayDivergedError. ``drop`` names orphans (see ``stored``) whose state goes
    with the first commit; ``watch`` shows what it does. IncompatibleStateError: what is stored cannot be read as declared.
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
        drop: Collection[str] = (),
        watch: Watch | None = None,
    ) -> None:
        self.plan = plan
        self.partition = partition
        self.settings = settings = TaskSettings() if settings is None else settings
        start = tape.decode_cut(cut) if cut is not None else None
        if start is not None and (start.app, start.partition) != (plan.app, partition):
            raise CorruptStateError(
                f"the cut is of app {start.app!r} partition {start.partition}, "
                f"not of app {plan.app!r} partition {partition}"
            )
        self.stored = stored_state(plan, state, drop)
        """What is stored, in the light of what is declared; ``state`` shows it without what is dropped."""
        state, self._dropping = self.stored.state, bool(drop)
        self.lineage = lineage if start is None else start.lineage
        self._base = "" if start is None else start.base
        numbers = {actor.name: actor.index for actor in plan.actors}
        events, processing = (
            TimerQueue(domain, state, numbers.get, settings.timers_in_memory, stored=start is not None)
            for domain in (rows.EVENT_TIME, rows.PROCESSING_TIME)
        )
        self._cells = Cells(
            plan,
            partition,
            state,
            (events, processing),
            cache_bytes=settings.cache_bytes,
            reload=settings.reload,
            checked=settings.checked,
            past=self.stored.past,
        )
        self._context: Context[Any] = Context(plan, self.lineage, settings.timer_loop_cap, settings.promises)
        self._cells.context = self._context
        self._context.metrics.bind(self._cells.undo)
        self._watermarks = Watermarks(plan.inputs)
        self._context.watermark = self._watermarks.task_ms
        self._inputs = [InputHeads(plan, one, partition) for one in plan.inputs]
        self.positions = {one.name: (positions or {}).get(one.name, 0) for one in plan.inputs}
        self.totals = tape.Totals() if start is None else msgspec.structs.replace(start.totals)
        self._tape = tape.Tape(0 if start is None else start.tape)
        self._noted_start = False
        self._fired = self.totals.fired
        make_units = Units if watch is None else watch.units
        self._units = make_units(plan, partition, self._cells, self._context, self.totals, self._tape)
        self._units.replaying = replaying
        self._firing = Firing(self._units, self._watermarks, events, processing)
        if start is not None:
            self._resume(start)
        # A commit may have fallen in the middle of a drain.
        self._firing.draining = self._firing.is_due()

    def _resume(self, cut: tape.Cut) -> None:
        for one in self.plan.inputs:
            self.positions[one.name] = cut.positions.get(one.name, self.positions[one.name])
        self._watermarks.resume(cut)
        self._context.watermark = cut.watermark
        self._context.now = cut.now

    @property
    def watermark(self) -> int:
        """The task's watermark."""
        return self._watermarks.task_ms

    @property
    def holds_nobody_back(self) -> bool:
        """Whether every input that has a watermark is idle or has ended."""
        return self._watermarks.holds_nobody_back

    @property
    def now(self) -> int:
        """The last clock reading."""
        return self._context.now

    @property
    def clock_due_ms(self) -> int:
        """No clock reading before this makes anything due by processing time."""
        return self._firing.processing.due_ms

    @property
    def draining(self) -> bool:
        """A step is still firing its timers: ``drain`` must be called before the next cause."""
        return self._firing.draining

    def follow(self, skips: dict[tuple[int, int], Headers], stop_after_fired: int) -> None:
        """For a replay: what to skip, and how many timers will have fired at the next commit."""
        self._units.skips = skips
        self._firing.stop_after_fired = stop_after_fired

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
        return (
            self._dropping
            or self.totals.fired != self._fired
            or bool(self._tape.causes)
            or bool(self._context._outputs)
            or self._firing.draining
        )

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
        if start >= len(heads):
            return start
        plan, inputs = self.plan.inputs[number], self._inputs[number]
        inputs.prefetch(heads, start, self._cells.tables)
        cells, context, marks, totals = self._cells, self._context, self._watermarks, self.totals
        units, firing = self._units, self._firing
        events, processing, now = firing.events, firing.processing, context.now
        outputs, chained, skips = context._outputs, context._chained, units.skips
        undo, touched, cleared = cells.undo, cells.touched, cells.cleared
        touched_collections = cells.touched_collections
        routes: Sequence[BoundRoute] = inputs.routes(cells.tables)
        inbox, judged = plan.is_inbox, plan.watermark != "none"
        asked = judged and plan.watermark != "events"
        lag = plan.out_of_order_ms + 1
        firing.budget = self.settings.firing_budget
        slept, marks.idle[number] = marks.idle[number], False
        own, ceiling, watermark = marks.of_input[number], marks.ceiling(number), marks.task_ms
        taken, refused = start, 0
        context.is_late = False
        context._salt = inputs.salt
        # Most inputs have one route, to one actor that needs no more than its types checked. What Units.invoke does
        # is written out for these: a quarter of the time per event would go into calls.
        direct = routes if len(routes) == 1 and not skips and units.direct else None
        route, table = routes[0] if direct else (None, None)
        if route is None or table is None or not table.simple:
            direct, call, settle = None, _nobody, _nobody
            load, touch, encode, seal, live = _nobody, _nobody, _nobody, _nobody, _NO_INSTANCES
        else:
            call, load, touch, encode = route.call, table.load, table.touch, table.encode
            seal, settle, live = table.seal, table.settle, table.live
        epoch = cells.epoch
        context._route, context._table = route, table
        context._draws, context._random = 0, None
        try:
            for offset, time_ms, key, event, record in islice(heads, start, None):
                to = routes
                if time_ms is None:
                    if type(event) is Refused:
                        units.refuse(number, event, record)
                        refused += 1
                        taken += 1
                        continue
                    time_ms = now
                if inbox:
                    to, event = inputs.bound(event, cells.tables), event.message
                context.key = key
                context.event_time = time_ms
                context._origin = offset
                if undo or touched:
                    cells.begin()
                mark = len(outputs)
                said = time_ms - lag
                image: bytes | None = b""
                try:
                    if time_ms <= watermark and judged:
                        totals.late += 1
                        context.is_late = True
                        to = self._late(plan, event, to)
                    if to is direct:
                        instance = live.get(key)
                        if instance is None:
                            instance = load(key)
                        image = encode(instance) if instance._tr_mark == epoch else touch(instance)
                        context._instance = instance
                        call(instance, event, context)
                        if touched_collections:
                            cells.seal_collections()
                        if cleared:
                            settle(instance, image)
                        else:
                            seal(instance)
                    else:
                        units.record(number, offset, record, to, key, event, mark)
                    if chained:
                        units.deliver_chained(key)
                        context._route, context._table = route, table
                    if asked:
                        context._route = context._table = None  # if this fails, it is no handler's fault
                        said = NOTHING if (number, offset) in skips else marks.said(plan, event, time_ms)
                        context._route, context._table = route, table
                except Exception as error:  # noqa: BLE001  # whatever a handler raises fails its unit
                    if image != b"" and table is not None:
                        touched.insert(0, (table, key, image))  # before what streams have touched
                    units.failed(error, mark, number, offset, record)
                    context._salt, context._route, context._table = inputs.salt, route, table
                    if asked:
                        said = NOTHING
                taken += 1
                if context.is_late:
                    context.is_late = False
                if context._draws:
                    context._draws, context._random = 0, None
                if said > own and judged:
                    own = said
                    if own > watermark and ceiling > watermark:
                        context.watermark = watermark = own if own < ceiling else ceiling  # noqa: FURB136  # faster
                elif not undo:
                    continue  # the watermark has not moved, and no timer can have been set
                if watermark >= events.due_ms or now >= processing.due_ms:
                    marks.of_input[number], marks.task_ms = own, watermark
                    firing.drain()
                    if firing.draining:
                        break
                    context._salt, context._draws, context._random = inputs.salt, 0, None
                    context._route, context._table = route, table
        finally:
            if context.is_late:  # it was not taken, and will be judged again
                context.is_late = False
                totals.late -= 1
            marks.of_input[number], marks.task_ms = own, watermark
            totals.records += taken - start - refused
            if taken == start:
                marks.idle[number] = slept  # nothing was taken that could have woken it
            else:
                before = self.positions[plan.name]
                self.positions[plan.name] = heads[taken - 1][0] + 1
                self._tape.run(number, self.positions[plan.name] - before)
            context._table = context._instance = context._route = None
        return taken

    def clock(self, now_ms: int) -> None:
        """The clock was read. A reading before the last one is taken as the last one: the clock never goes back."""
        self._not_draining()
        if now_ms > self._context.now:
            self._tape.cause(tape.CLOCK, now_ms - self._context.now)
            self._context.now = now_ms
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

    def finish(self, to_ms: int | None = None) -> None:
        """All inputs have ended and every inbox is drained: the watermark rises to the latest timer now pending.

        Timers set later, and those of processing time, stay pending. ``to_ms``: what it rose to with keys left out now.
        """
        self._not_draining()
        self._tape.cause(tape.FINISH)
        to_ms = self._firing.latest_ms() if to_ms is None else to_ms
        self._watermarks.task_ms = max(self._watermarks.task_ms, to_ms)
        self._advance()

    def drain(self, most: int | None = None) -> bool:
        """Go on firing what is due, at most ``most``. Returns whether the step is done."""
        self._firing.budget = self.settings.firing_budget if most is None else most
        self._firing.drain()
        return not self._firing.draining

    # --- results ---

    def take_outputs(self) -> list[Output]:
        """The outputs since the last call, numbered."""
        outputs = self._context._outputs.copy()
        self._context._outputs.clear()
        origin = f"{self.plan.app}/{self.partition}/".encode()
        number = self.totals.outputs
        numbered = [
            output_of((topic, key, value, time_ms, (*headers, (ORIGIN_HEADER, b"%b%d" % (origin, n)))))
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
        if self.stored.rows:
            batch, index = self.stored.rows | batch, self.stored.index | index
        cut = tape.Cut(
            tape.FORMAT,
            self.plan.app,
            self.partition,
            self.lineage,
            dict(self.positions),
            *self._watermarks.noted(),
            self.now,
            msgspec.structs.replace(self.totals),
            self._tape.number + 1,
            self._base,
        )
        first = not self._noted_start
        record = tape.TapeRecord(
            tape.FORMAT,
            self._tape.number,
            self._tape.causes,
            self._tape.skips,
            cut.totals,
            cut.watermark,
            list(self.positions) if first else None,
            list(self.positions.values()) if first else None,
            self.now if first else None,
            self.plan.version if first else None,
            tape.environment(self.settings.timezones) if first else None,
        )
        return CommitBatch(
            batch, index, tape.encode(cut), tape.encode(record), cut.positions, self._context.metrics.take()
        )

    def committed(self) -> None:
        """The last batch is durable and ``state`` gives its rows back."""
        self._cells.committed()
        self._tape.committed()
        self.stored.written()
        self._dropping = False
        self._noted_start = True
        self._fired = self.totals.fired
        self._context.metrics.clear()

    def put_off(self) -> None:
        """For a replay: a tape record is done, and what it has changed is left to a later commit."""
        self._tape.committed()
        self._context.metrics.clear()

    # --- parts of a step ---

    def _late(self, plan: InputPlan, event: Any, to: Sequence[BoundRoute]) -> Sequence[BoundRoute]:
        """Who takes a late event: its handlers as ever, or nobody, or another topic."""
        if plan.late == "handle":
            return to
        if plan.late_topic is not None:
            context = self._context
            route, context._route = context._route, None  # if this fails, it is no handler's fault
            context.emit(plan.late_topic, event)
            context._route = route
        return ()

    def _not_draining(self) -> None:
        if self._firing.draining:
            raise UsageError(
                "a step is not done", mend="Call drain() until it returns True before the next cause."
            )

    def _advance(self) -> None:
        self._context.watermark = self._watermarks.advance()
        self._firing.budget = self.settings.firing_budget
        self._firing.drain()
