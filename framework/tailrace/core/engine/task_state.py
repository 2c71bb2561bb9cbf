"""The parts of a task, and its results at a commit; ``task`` has the steps.

A task is built from a store and a cut. Drivers inspect it and take its results: outputs at any time, and at a
commit the rows that have changed, a cut that is written after them, and the tape record of their causes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import repeat
from typing import Any, Final

import msgspec

from tailrace.core.declare.broadcast import FirstStart
from tailrace.core.declare.context import CheckedContext, Context
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.user_metrics import Measurement
from tailrace.core.engine import tape
from tailrace.core.engine.actor_table import give_tables
from tailrace.core.engine.at_work import AtWork
from tailrace.core.engine.evolution import stored_state
from tailrace.core.engine.firing import Due, Firing
from tailrace.core.engine.input_decoder import INDIRECT, BoundInput, InputDecoder
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.ordering import Sweep
from tailrace.core.engine.redriven import is_redriven
from tailrace.core.engine.settings import CommitBatch, TaskSettings
from tailrace.core.engine.timers import FOREVER, TimerQueue, Timers, timer_queues
from tailrace.core.engine.trace import TRACE
from tailrace.core.engine.units import Units
from tailrace.core.engine.watermarks import Watermarks, published_by
from tailrace.core.errors import CorruptStateError, UsageError
from tailrace.core.records import Headers, InputRecord, Output, OwnKey, RawOutput, output_of
from tailrace.core.storage import StateReader
from tailrace.core.unit_ids import ORIGIN_HEADER, SentNumbers

_NONE: Final[frozenset[int]] = frozenset()


class TaskState:
    """The parts of a task. See the head of this file; ``Task`` describes the arguments."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        state: StateReader,
        cut: bytes | None = None,
        *,
        lineage: bytes = b"",
        nonce: bytes = b"",
        positions: Mapping[str, int] | None = None,
        settings: TaskSettings | None = None,
        replaying: bool = False,
        drop: Collection[str] = (),
        watch: Watch | None = None,
    ) -> None:
        self.plan = plan
        self.own_keys = False
        """Whether all outputs that were taken last have the keys of their instances: see ``OWN_KEY``."""
        self.partition = partition
        self.event_clock_ms: int | None = None
        """The driver's clock, with which event times are compared (``ahead_of_clock``); None: with none."""
        self.settings = settings = TaskSettings() if settings is None else settings
        start = _decoded(cut, plan, partition)
        self._dropped = frozenset(drop)
        self.stored = stored_state(plan, state, drop)
        """The stored state compared with the declarations. Its ``state`` hides what is dropped."""
        state, self._dropping = self.stored.state, bool(drop)
        self.lineage = lineage if start is None else start.lineage
        self._base = "" if start is None else start.base
        events, processing = timer_queues(plan, state, settings.timers_in_memory, stored=start is not None)
        self._cells = self._new_cells(state, (events, processing))
        self._unit = self._cells.unit
        self._emitted = 0
        self._context = self._new_context()
        self.watermarks = Watermarks(plan)
        self._decoding: tuple[int, Sequence[InputRecord]] | None = None
        """The records that are being decoded, and the number of their input."""
        self._decoders = [InputDecoder(plan, one) for one in plan.inputs]
        tables, marks = self._cells.tables, self.watermarks
        inner = plan.forwarded
        self._forwarded = frozenset(one.index for one in plan.inputs if one.name in inner)
        """The inputs behind ``repartition=True``, which the app alone writes."""
        inside = plan.inside
        self._inputs = [
            BoundInput(one, partition, tables, marks, plan.app if one.name in inside else None)
            for one in plan.inputs
        ]
        self.positions = {one.name: (positions or {}).get(one.name, 0) for one in plan.inputs}
        self.totals = tape.Totals() if start is None else msgspec.structs.replace(start.totals)
        self._sent = SentNumbers(partition, {} if start is None else start.sent)
        self._tape = tape.Tape(0 if start is None else start.tape)
        self._noted_start = self._moved = False
        self._nonce = nonce
        self.identity = b"" if start is None else start.identity
        """The identity of the last commit."""
        self._taped_identity: bytes | None = None
        self._fired = self.totals.drained
        self._units = self._new_units(watch)
        self._units.replaying, self._units.inputs = replaying, self._inputs
        self._sweep = Sweep(self._units, self.watermarks, events, processing)
        """The firing, if an operator is ordered."""
        self._firing = (
            self._sweep if self._sweep.operators else Firing(self._units, self.watermarks, events, processing)
        )
        self._resumed: dict[int, tape.Ordered] = {}
        """By ordered operator: what the cut has about the events that wait in it."""
        numbers = range(len(plan.inputs))
        self.first_start = FirstStart(plan, partition, tables)
        self._due = [(self._due_of(one, events), self._due_of(one, processing)) for one in numbers]
        """By input: next due timer, in event and processing time, of the actors that may get its records."""
        if plan.tracing:
            for one in self._inputs:
                one.direct, one.turns = INDIRECT, False
        if start is not None:
            self._resume(start)
        # A commit may have fallen in the middle of a drain. What waits must be there first: see ``refilled``.
        self._firing.draining = bool(self._resumed) or self._firing.is_due()

    def _new_cells(self, state: StateReader, timers: tuple[Timers, Timers]) -> InstanceCache:
        settings, plan = self.settings, self.plan
        is_ordered = any(one.ordered for one in plan.operators)
        cells = InstanceCache(
            plan,
            self.partition,
            state,
            timers,
            cache_bytes=settings.cache_bytes * 3 // 4 if is_ordered else settings.cache_bytes,
            reload=settings.reload,
        )
        give_tables(cells, plan, self.stored.past, checked=settings.checked)
        return cells

    def _new_context(self) -> Context[Any]:
        settings, unit = self.settings, self._cells.unit
        make = CheckedContext if settings.checked else Context
        context: Context[Any] = make(
            self.plan, self.lineage, settings.timer_loop_cap, settings.promises, unit
        )
        self._cells.context = context
        unit.most_bytes = settings.max_record_bytes
        context.metrics._bind(self._cells.undo)
        return context

    def _new_units(self, watch: Watch | None) -> Units:
        make = Units if watch is None else watch.units
        return make(
            self.plan, self.partition, self._cells, self._context, self.watermarks, self.totals, self._tape
        )

    def _due_of(self, number: int, queues: Sequence[TimerQueue]) -> TimerQueue | Due:
        concerned = self.watermarks.concerned(number)
        found = [queues[one] for one in concerned if one < len(queues)]
        return found[0] if len(found) == 1 else Due(found)

    def _resume(self, cut: tape.Cut) -> None:
        for one in self.plan.inputs:
            self.positions[one.name] = cut.positions.get(one.name, self.positions[one.name])
        self.watermarks.resume(cut)
        self._context.now = cut.now
        self._resumed = self._sweep.resumed(cut.ordered, self._dropped)
        for one in self.plan.inputs:
            offsets = cut.refused.get(one.name, ())
            self._units.refused += [(one.index, offset) for offset in offsets]
            self._decoders[one.index].refused = frozenset(offsets)

    def waiting_from(self) -> dict[str, int]:
        """By input: the first offset to read again for ``refill``, where events waited at the cut."""
        lows: dict[str, int] = {}
        for one in self._resumed.values():
            for name, (low, _, _) in one.lows.items():
                lows[name] = min(low, lows.get(name, low))
        return lows

    @property
    def actors_with_timers(self) -> list[str]:
        """The actors that have event-time timers pending, by name. A time to live may count as one."""
        queues = self._firing.events
        return [
            one.name for one in self.plan.actors if one.event_timers and queues[one.index].due_ms < FOREVER
        ]

    @property
    def waiting(self) -> dict[str, int]:
        """By ordered operator, the number of events that wait in it, if there are any."""
        counts = {self.plan.operators[number].name: len(one) for number, one in self._sweep.waiting.items()}
        return {name: count for name, count in counts.items() if count}

    def take_out(self, numbers: Collection[int]) -> Iterator[tuple[int, InputRecord, int]]:
        """Remove the events of some inputs that wait in ordered operators. Returns operator, record and input of each."""
        for operator, waiting in self._sweep.waiting.items():
            for *_, number, head in waiting.take_out(numbers):
                assert head[4] is not None
                yield operator, head[4], number

    @property
    def at_work(self) -> AtWork | None:
        """The handler that runs now, or the decoding of records, which calls functions for key and event time; None if neither
        does. Another thread may ask, and a signal handler.
        """
        unit, context = self._unit, self._context
        route, fired = unit.route, unit.fired
        if route is None:
            if (decoding := self._decoding) is None or not decoding[1]:
                return None
            topic = self.plan.inputs[decoding[0]].name
            return AtWork(f"decoding {topic}", None, self.partition, topic, decoding[1][0].offset)
        if fired is not None:
            timer = f"{context.timer_name or 'unnamed'} at {fired[1]} ms"
            return AtWork(route.name, context.key, self.partition, timer=timer, fired=self.totals.fired)
        topic = self.plan.inputs[unit.input].name
        cause: Any = unit.cause
        while not hasattr(cause, "offset"):
            if hasattr(cause, "time_ms"):  # a timer that has just fired
                return None
            cause = cause[0]  # of an event of a stream
        return AtWork(route.name, context.key, self.partition, topic=topic, offset=cause.offset)

    @property
    def watermark(self) -> int:
        """The lowest watermark of all operators."""
        return self.watermarks.lowest

    def published_ms(self, operator: int) -> int | None:
        """The event time up to which an operator emits nothing more; None if its sources are idle.

        It is its watermark, but below any timer, also of an actor before it in a stream, that is due.
        """
        return self.watermarks.published_ms(operator, self._firing.held_ms)

    def publications(self) -> dict[str, int | None]:
        """The watermarks of the next commit, by topic and channel; None if it holds no reader back."""
        return published_by(
            self.plan.published, {one.index: self.published_ms(one.index) for one in self.plan.operators}
        )

    @property
    def cells(self) -> InstanceCache:
        """The present state, for an observer."""
        return self._cells

    @property
    def now(self) -> int:
        """The last clock reading."""
        return self._context.now

    @property
    def clock_due_ms(self) -> int:
        """No clock reading before this time makes a processing-time timer due."""
        return self._firing.clock_due_ms()

    @property
    def draining(self) -> bool:
        """Whether a step is still firing its timers. If so, call ``drain`` before the next cause."""
        return self._firing.draining

    def follow(
        self,
        skips: dict[tuple[int, int, int], Headers],
        stop_after: int,
        named: Sequence[tape.Skip] | None = None,
    ) -> None:
        """For a replay: the units to skip (see ``Units.follow``), and ``Totals.drained`` at the next commit."""
        self._units.follow(skips, named)
        refused: defaultdict[int, set[int]] = defaultdict(set)
        for number, offset, operator in skips:
            if operator == tape.REFUSED:
                refused[number].add(offset)
        for number, decoder in enumerate(self._decoders):
            decoder.refused = frozenset(refused[number]) if refused else _NONE
        self._firing.stop_after = stop_after

    def note_failures(self) -> set[tuple[int, int, int]]:
        """Note which records fail from now on, see ``Units.failed_here``. Returns the set that grows."""
        self._units.failed_here = found = set[tuple[int, int, int]]()
        return found

    @property
    def is_tape_full(self) -> bool:
        """Whether a commit is due because of its failures."""
        return self._tape.is_full

    @property
    def tape_number(self) -> int:
        """The number of the tape record that the next commit writes."""
        return self._tape.number

    def identify(self, identity: bytes) -> None:
        """For a replay: the identity of the next commit, from the tape."""
        self._taped_identity = identity

    def _next_identity(self) -> bytes:
        if self._taped_identity is not None:
            return self._taped_identity
        nonce = b"" if self._noted_start else self._nonce
        return tape.identity_of(self.identity, nonce, self._tape.number)

    def _identified(self) -> None:
        self.identity = self._next_identity()
        self._taped_identity = None

    @property
    def waiting_outputs(self) -> int:
        """The number of outputs that are not taken yet."""
        return len(self._unit.outputs)

    @property
    def emitted(self) -> int:
        """The digest of all outputs since the last commit (``tape.digest_of``), those that are not taken yet included."""
        return tape.digest_of(self._unit.outputs, self._emitted)

    def watermark_of(self, source: int) -> int:
        """The watermark of one source."""
        return self.watermarks.of_source[source]

    def is_redriven(self, number: int, record: InputRecord | None) -> bool:
        """Whether a late record was redriven, and then forwarded by its key. Then it is not treated as late."""
        return number in self._forwarded and record is not None and is_redriven(record.headers)

    def skip_to(self, number: int, offset: int) -> None:
        """Move an input's position past offsets without a record (markers, aborted or compacted records)."""
        name = self.plan.inputs[number].name
        gap = offset - self.positions[name]
        if gap > 0:
            self.positions[name] = offset
            self._tape.run(number, gap)

    def begin_at(self, name: str, offset: int) -> None:
        """Continue at another position of an input, before any cause. The next tape record has it."""
        self.positions[name] = offset
        self._moved = True

    @property
    def dirty(self) -> bool:
        """Whether anything has happened since the last commit."""
        return (
            self._dropping
            or self.stored.is_upgrade
            or self._moved
            or self.totals.drained != self._fired
            or bool(self._tape.causes)
            or bool(self._unit.outputs)
            or self._firing.draining
        )

    @property
    def dirty_count(self) -> int:
        """The number of instances and collections touched since the last commit."""
        return sum(len(table.dirty) for table in self._cells.tables) + len(self._cells.dirty_collections)

    def take_outputs(self) -> list[Output]:
        """The outputs since the last call, numbered."""
        return list(map(output_of, self.take_numbered()))

    def take_numbered(self) -> list[RawOutput]:
        """The same as plain tuples, for bulk use. They are made column by column, without a step of Python for each."""
        outputs = self._unit.outputs
        if not outputs:
            return []
        first, count = self.totals.outputs, len(outputs)
        if not self._units.replaying:  # a replay compares before it takes
            self._emitted = self.emitted
        topics, keys, values, times_ms, headers = zip(*outputs, strict=True)
        outputs.clear()
        self.own_keys = set(map(type, headers)) == {OwnKey}
        origin = f"{self.plan.app}/{self.partition}/".replace("%", "%%").encode()
        numbers = map((origin + b"%d").__mod__, range(first, first + count))
        own: Iterable[Headers] = (
            self._sent.numbered(headers, numbers)
            if any(headers)
            else zip(zip(repeat(ORIGIN_HEADER), numbers))  # the inner zip makes (name, value)
        )
        self.totals.outputs = first + count
        return list(zip(topics, keys, values, times_ms, own, strict=True))

    def discard_outputs(self) -> int:
        """Drop the outputs since the last call. They are counted, but not numbered. Returns their number."""
        outputs = self._unit.outputs
        if any(headers := [one[4] for one in outputs]):
            self._sent.numbered(headers, repeat(b"", len(outputs)))
        count = len(outputs)
        self.totals.outputs += count
        outputs.clear()
        return count

    def commit_batch(self) -> CommitBatch:
        """Everything that must become durable with this commit. Take the outputs first. Changes nothing."""
        if self._unit.outputs:
            raise UsageError("outputs are waiting", hint="Call take_outputs() before commit_batch().")
        batch, index = self._cells.collect()
        if self.stored.rows:
            batch, index = self.stored.rows | batch, self.stored.index | index
        plan, of_operator, ordered = self.plan, self.watermarks.of_operator, self._sweep.noted()
        cut = tape.Cut(
            tape.FORMAT,
            plan.app,
            self.partition,
            self.lineage,
            dict(self.positions),
            *self.watermarks.noted(),
            self.now,
            msgspec.structs.replace(self.totals),
            self._tape.number + 1,
            self._base,
            {one.name: of_operator[one.index] for one in plan.operators},
            [one.name for one in plan.operators if self.watermarks.ended_operators[one.index]],
            self._next_identity(),
            ordered,
            {name: copy(one) for name, one in self.watermarks.idleness.items()},
            self._refused(ordered),
            self._sent.noted(),
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
            plan.version if first else None,
            tape.environment(self.settings.timezones) if first else None,
            operators=[one.name for one in plan.operators] if first else None,
            watermarks=list(of_operator),
            channels=list(plan.sources[len(plan.inputs) :]) if first else [],
            identity=cut.identity,
            nonce=self._nonce if first else b"",
            within_drain=self._firing.is_due(),  # not at its end, or ended by a failure
            emitted=self._emitted,
        )
        cut.within_drain = record.within_drain
        return CommitBatch(
            batch,
            index,
            tape.encode(cut),
            tape.encode(record),
            cut.positions,
            cut.offsets,
            [*self._context.metrics._take(), *(Measurement(TRACE, *one) for one in self._units.spans)],
        )

    def _refused(self, ordered: Mapping[str, tape.Ordered]) -> dict[str, list[int]]:
        """See ``Cut.refused``. A restart reads these records again, when the clock may be past them, or the code decodes them."""
        lows: dict[str, int] = {}
        for one in ordered.values():
            for name, (low, *_) in one.lows.items():
                lows[name] = min(low, lows.get(name, low))
        names, units = [one.name for one in self.plan.inputs], self._units
        units.refused = [one for one in units.refused if one[1] >= lows.get(names[one[0]], 1 << 62)]
        found: dict[str, list[int]] = {}
        for number, offset in units.refused:
            found.setdefault(names[number], []).append(offset)
        return found

    def committed(self) -> None:
        """Note that the last batch is durable and that ``state`` returns its rows."""
        self._identified()
        self._emitted = 0
        self._cells.committed()
        self._tape.committed()
        self.stored.written()
        self._units.spans.clear()
        self._dropping = self._moved = False
        self._noted_start = True
        self._fired = self.totals.drained
        self._context.metrics._clear()

    def defer_commit(self) -> None:
        """For a replay: a tape record is finished, and a later commit writes its changes."""
        self._identified()
        self._emitted = 0
        self._tape.committed()
        self._context.metrics._clear()


def _decoded(cut: bytes | None, plan: Plan, partition: int) -> tape.Cut | None:
    found = None if cut is None else tape.decode_cut(cut)
    if found is not None and (found.app, found.partition) != (plan.app, partition):
        raise CorruptStateError(
            f"the cut is of app {found.app!r} partition {found.partition}, "
            f"not of app {plan.app!r} partition {partition}"
        )
    return found
