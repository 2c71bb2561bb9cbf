"""The second pass: the real task, limited to the keys of one shard.

Theory. ``first_pass`` explains why the shards see the same as the whole task. This file also has to merge their results.

    state      each row belongs to one key, and so to one shard: the rows of all shards are the rows of the whole
    totals     each record and each firing is counted in one shard, so the sum is that of the whole
    outputs    each has an *order*, and the outputs of all shards sorted by it are the outputs of the whole

The order is (step, place). The place of a record's outputs is empty. A firing's place is its position in its step's drain. The
whole task always fires the lowest of the due timers, by (domain, time, place of the actor, key, name). The due timers are the
heads of the shards' queues, so the drain of the whole is the merge of their drains that always takes the lowest head. A handler
may set a timer that is lower than the one that has just fired. It is then the lowest of all and comes next. So the place of a
firing is not its own name but the highest name so far in this drain and shard: sorting by that gives the merge. Two shards
never have the same place in one step, because a place contains a key. Within a shard, outputs are already in order, so a stable
merge is enough.

The tape identifies a timer that failed in the first run by the number of timers that had fired before it. A shard cannot count
these. It finds the timer by the content of its dead letter (actor, key, name, time), within the commit that recorded it. One
timer may fire several times at one instant, so ``check`` counts afterwards, over all shards, whether it was the right firing.

The last commit may have left the drain of the very last step unfinished. A shard does not know this and finishes the drain. The
totals then differ from those of the tape, and the task cannot be split.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.context import Context
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.failure import TimerName, timer_named, timer_of
from tailrace.core.engine.firing import Firing
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.key_split.course import (
    Columns,
    Course,
    Series,
    ShardRecords,
    TimerSkip,
    gained,
    summed,
    unpack,
)
from tailrace.core.engine.key_split.first_pass import stated
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import NOBODY, ORIGIN_HEADER, Task
from tailrace.core.engine.timers import Entry, TimerQueue
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import ReplayDivergedError, UnsplittableError
from tailrace.core.records import Head, Headers, Output, RawOutput, Refused
from tailrace.core.storage import StateReader

Order: TypeAlias = tuple[int, bytes]
"""The step, and the place within it."""

_ASK: Final[dict[tuple[int, int], Headers]] = {(TIMER, -1): ()}
"""Skips that are not empty, so that ``timer_skip`` is called, which finds the skip itself."""


class Ordered(NamedTuple):
    """An output without a number yet, and its order among the outputs of all shards."""

    step: int
    place: bytes
    output: RawOutput


class ShardResult(msgspec.Struct, array_like=True):
    """The counts of a shard. ``firings`` and ``skipped`` are only kept if timers were skipped.

    ``firings`` are the orders of all its firings. ``skipped`` has pairs: the number of a timer skip on the tape, and the index
    of its firing in ``firings``.
    """

    shard: int
    totals: tape.Totals
    firings: list[tuple[int, bytes]]
    skipped: list[tuple[int, int]]


class ShardTask(Task):
    """The task of one shard: call ``take`` for its part of every chunk in order, including parts without records.

    ``state`` has the rows of ``course.base`` that belong to the shard (see ``is_of_shard``). ``take`` returns the outputs.
    ``commit_batch`` returns the rows as in any task; the driver may call it as often as it likes between two calls of ``take``.
    """

    _firing: _ShardFiring

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shard: int,
        course: Course,
        state: StateReader,
        *,
        settings: TaskSettings | None = None,
        replaying: bool = True,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(
            plan,
            partition,
            state,
            course.base,
            lineage=course.lineage,
            settings=settings,
            replaying=replaying,
            watch=watch or _Confined(),
        )
        self.addressees.sorted_out = True  # the first pass has removed them
        self.shard = shard
        self._course = course
        self._stands = -1
        self._start = msgspec.structs.replace(self.totals)
        if shard:
            self.stored.written()  # only shard 0 writes these rows of the whole
        self.pause: Callable[[], None] | None = None
        """Called in the middle of a long drain, after each ``settings.firing_budget`` firings: the driver may take outputs
        (``take_ordered``) and commit.
        """
        units = self._units
        assert isinstance(units, _ShardUnits)
        units.follow_timers(course.timer_skips)
        firing = self._firing
        self._firing = _ShardFiring(units, self._watermarks, firing.events, firing.processing)

    def take(self, series: Series, part: ShardRecords) -> list[Ordered]:
        """Run one chunk. Returns the outputs in their order.

        Raises:
            ReplayDivergedError: A handler fails that did not fail in the first run.
            UnsplittableError: The same, but the cause may be the split: timers that failed in the first run may be mixed up
                here, or this timer fired after the last commit.
            HandlerError, BadRecordError: The same, if this is not a replay and the app stops on failures.
        """
        columns = series.columns()
        self._stands = -1
        inputs = unpack("H", part.inputs)
        before, after = unpack("I", part.before), unpack("I", part.after)
        steps = [part.first + step for step in unpack("I", part.steps)]
        self._units.skips = {(skip.input, skip.number): tuple(skip.headers) for skip in part.skips}
        at = 0
        try:
            for number, group in groupby(inputs):
                start = at
                at = start + sum(1 for _ in group)
                heads = self.decode(number, part.records[start:at])
                self._inputs[number].prefetch(heads, 0)
                places = zip(steps[start:at], before[start:at], after[start:at], heads, strict=True)
                self._records(number, places, columns)
            self._catch_up(columns, len(columns[0]) - 1)
        except ReplayDivergedError as error:
            # Possibly another timer was skipped than the one that failed, or this one fired after the last commit.
            if self._firing.skipped or self._firing.step == self._course.steps:
                raise UnsplittableError(f"a shard came to another end: {error}") from error
            raise
        self.put_off()  # the tape and metrics of a shard are not used
        return self.take_ordered()

    def take_ordered(self) -> list[Ordered]:
        """The outputs since the last call. For ``pause``; ``take`` returns the remaining outputs."""
        outputs, tags = self._unit.outputs, self._firing.tags
        self._firing.tag()
        ordered = [Ordered(step, place, output) for (step, place), output in zip(tags, outputs, strict=True)]
        self.totals.outputs += len(outputs)
        outputs.clear()
        tags.clear()
        return ordered

    def result(self) -> ShardResult:
        """The counts of the shard, after the last chunk."""
        firing = self._firing
        return ShardResult(self.shard, gained(self._start, self.totals), firing.firings, firing.skipped)

    def _records(self, number: int, places: Iterable[tuple[int, int, int, Head]], columns: Columns) -> None:
        """Does the work of ``Task.run``, with watermark and clock from the series."""
        one = self._inputs[number]
        plan, routes, inbox, judged = one.plan, one.routes, one.inbox, one.judged
        cells, context, unit, totals = self._cells, self._context, self._unit, self.totals
        units, firing = self._units, self._firing
        marks = self._watermarks
        outputs, chained, tags = unit.outputs, unit.chained, firing.tags
        undo, touched, cleared = cells.undo, cells.touched, cells.cleared
        clocks = columns[2]
        says = stated(plan)
        # The code of Units.invoke is inlined for one actor, as in Task.run.
        direct = routes if one.direct and not units.skips and units.direct else None
        route, table = one.direct if one.direct and direct else (None, None)
        for step, before, after, (offset, time_ms, key, event, record) in places:
            now = clocks[before]
            if self._is_due(columns, before):
                self._catch_up(columns, before)
            firing.step, firing.place = step, b""
            if self._stands != before:
                self._stand(columns, before)
            common = None if inbox and judged else marks.common(number)
            units.apart = apart = common is None
            watermark = marks.highest(number) if common is None else common
            context.watermark, context.now = watermark, now
            if time_ms is None:
                if type(event) is Refused:
                    units.refuse(number, event, record)
                    firing.tag()
                    continue
                time_ms = now
            to = routes
            if inbox:
                to, event = one.takers(event), event.message
            context.key, context.event_time = key, time_ms
            unit.origin, unit.salt = offset, one.salt
            unit.draws, unit.random = 0, None
            if undo or touched:
                cells.begin()
            mark = len(outputs)
            image: bytes | None = b""
            totals.records += 1
            said = None if says is None else says(event, time_ms)
            try:
                if time_ms <= watermark and judged:
                    to = self._late(plan, event, to, time_ms, record)
                if to is direct and not apart and route is not None and table is not None:
                    unit.route, unit.table = route, table
                    instance = table.live.get(key)
                    if instance is None:
                        instance = table.load(key)
                    known = instance._tr_mark == cells.epoch
                    image = table.encode(instance) if known else table.touch(instance)
                    unit.instance = instance
                    route.call(instance, event, context)
                    if cells.touched_collections:
                        cells.seal_collections()
                    if cleared or not table.simple:
                        table.settle(instance, image)
                    else:
                        table.seal(instance)
                else:
                    units.record(number, offset, record, to, key, event, mark)
                if chained:
                    units.deliver_chained(key)
            except Exception as error:  # any exception of a handler fails its unit
                if not units.replaying and plan.watermark in ("punctuated", "generator"):
                    raise UnsplittableError(
                        f"a handler fails at offset {offset} of {plan.name}, whose events state the watermark: "
                        f"the first pass did not know that this one is not asked ({error!r})"
                    ) from error
                if image != b"" and table is not None:
                    touched.insert(0, (table, key, image))
                units.failed(error, mark, number, offset, record)
            if says is not None and says(event, time_ms) != said:
                raise UnsplittableError(
                    f"a handler has changed the event at offset {offset} of {plan.name}, which then states another watermark"
                )
            context.is_late, units.apart, units.late = False, False, NOBODY
            if len(outputs) > mark:
                tags += [(step, b"")] * (len(outputs) - mark)
            if self._is_due(columns, after):
                self._drain(step, columns, after, now)

    def _is_due(self, columns: Columns, entry: int) -> bool:
        """Whether any timer may be due at an entry of the series."""
        firing, (_, watermarks, clocks) = self._firing, columns
        return clocks[entry] >= firing.clock_due_ms() or any(
            column[entry] >= queue.due_ms for column, queue in zip(watermarks, firing.events, strict=False)
        )

    def _stand(self, columns: Columns, entry: int) -> None:
        """Set the watermarks of all operators to an entry of the series."""
        self._stands = entry
        self._watermarks.of_operator[:] = [column[entry] for column in columns[1]]

    def _catch_up(self, columns: Columns, last: int) -> None:
        """Fire the timers that became due at the end of steps up to entry ``last`` of the series, each at its step."""
        steps, watermarks, clocks = columns
        firing = self._firing
        while True:
            at = bisect_left(clocks, firing.clock_due_ms(), 0, last + 1)
            for column, queue in zip(watermarks, firing.events, strict=False):
                at = min(at, bisect_left(column, queue.due_ms, 0, last + 1))
            if at > last:
                return
            self._drain(steps[at], columns, at, clocks[at])

    def _drain(self, step: int, columns: Columns, entry: int, now: int) -> None:
        """Fire the due timers at the end of a step."""
        firing, context = self._firing, self._context
        context.now = now
        self._stand(columns, entry)
        firing.step, firing.place = step, b""
        while True:
            firing.budget = self.settings.firing_budget
            firing.drain()
            if not firing.draining:
                return
            if self.pause is not None:
                self.pause()


class _ShardFiring(Firing):
    """Fires the timers of a shard, and notes the order of each firing among those of all shards."""

    __slots__ = ("_top", "firings", "place", "skipped", "step", "tags", "timer_skips")

    units: _ShardUnits

    def __init__(
        self, units: Units, marks: Watermarks, events: Sequence[TimerQueue], processing: Sequence[TimerQueue]
    ) -> None:
        super().__init__(units, marks, events, processing)
        self.step = 0
        self.place = b""
        self.tags: list[Order] = []
        """The orders of the waiting outputs."""
        self.firings: list[Order] = []
        self.skipped: list[tuple[int, int]] = []

    def tag(self) -> None:
        """Note the order of the latest outputs."""
        missing = len(self.units.unit.outputs) - len(self.tags)
        if missing:
            self.tags += [(self.step, self.place)] * missing

    def _fire(self, domain: int, entry: Entry, table: Table) -> None:
        units = self.units
        self.place = max(self.place, _place(domain, entry))
        skips, fired = units.skips, units.totals.fired
        units.step = self.step
        try:
            if units.counts_timers:
                units.skips = _ASK
            super()._fire(domain, entry, table)
        finally:
            units.skips = skips
        self.tag()
        if units.counts_timers and units.totals.fired != fired:
            self.skipped += [(number, len(self.firings)) for number in units.just_skipped]
            self.firings.append((self.step, self.place))
            units.just_skipped.clear()


def _place(domain: int, entry: Entry) -> bytes:
    """Bytes that sort in the order of the drain, and after the empty place of records."""
    time_ms, actor, key, name = entry
    start = bytes((domain,)) + rows.time_bytes(time_ms) + actor.to_bytes(4, "big")
    return start + rows.escaped(key) + rows.escaped(name)


class _Confined(Watch):
    """Gives a task the units of a shard."""

    def units(
        self,
        plan: Plan,
        partition: int,
        cells: InstanceCache,
        context: Context[Any],
        marks: Watermarks,
        totals: tape.Totals,
        log: tape.Tape,
    ) -> Units:
        """See ``Watch.units``."""
        return _ShardUnits(plan, partition, cells, context, marks, totals, log)


class _ShardUnits(Units):
    """Units that find the timers to skip by the content of their dead letters."""

    __slots__ = ("counts_timers", "just_skipped", "step", "timer_skips")

    def __init__(self, *of_units: Any) -> None:
        super().__init__(*of_units)
        self.step = 0
        self.just_skipped: list[int] = []
        self.follow_timers([])

    def follow_timers(self, skips: Sequence[TimerSkip]) -> None:
        """Set the timers to skip, in this or another shard."""
        self.counts_timers = bool(skips)
        self.timer_skips: dict[TimerName, list[TimerSkip]] = {}
        for skip in skips:
            self.timer_skips.setdefault(timer_of(skip.headers), []).append(skip)

    def timer_skip(self, _fired: int, table: Table, time_ms: int, /) -> Headers | None:
        """See ``Units.timer_skip``."""
        context = self.context
        named = timer_named(table.plan.name, context.key, context.timer_name, time_ms)
        for skip in self.timer_skips.get(named, ()):
            if skip.first <= self.step <= skip.last:
                self.timer_skips[named].remove(skip)
                self.just_skipped.append(skip.number)
                return tuple(skip.headers)
        return None


# --- merging the results ---


def in_order(shards: Iterable[Iterable[Ordered]]) -> Iterator[RawOutput]:
    """The outputs of all shards, in the order of the whole. They are read lazily."""
    return map(itemgetter(2), merge(*shards, key=itemgetter(0, 1)))


def numbered(outputs: Iterable[RawOutput], plan: Plan, partition: int, course: Course) -> Iterator[Output]:
    """The outputs of the whole, numbered as its task would write them."""
    first = 0 if course.base is None else tape.decode_cut(course.base).totals.outputs
    origin = f"{plan.app}/{partition}/"
    for number, (topic, key, value, time_ms, headers) in enumerate(outputs, first):
        yield Output(topic, key, value, time_ms, (*headers, (ORIGIN_HEADER, f"{origin}{number}".encode())))


def check(course: Course, results: Sequence[ShardResult]) -> tape.Totals:
    """Check that the shards add up to the whole. Returns the sum of their totals.

    Raises:
        UnsplittableError: They do not add up. The last commit fell in the middle of a drain, or another timer was skipped than
            the one that failed, or the code has changed. A replay without a split can find out which.
    """
    counted = summed(*(result.totals for result in results), tape.Totals(for_others=course.for_others))
    if course.totals is not None and counted != course.totals:
        differing = [
            f"{name}: {getattr(course.totals, name)} on the tape, {getattr(counted, name)} in the shards"
            for name in tape.Totals.__struct_fields__
            if getattr(course.totals, name) != getattr(counted, name)
        ]
        raise UnsplittableError(f"the shards do not add up to the whole ({', '.join(differing)})")
    if course.timer_skips:
        _check_skips(course, results)
    return counted


def _check_skips(course: Course, results: Sequence[ShardResult]) -> None:
    first = 0 if course.base is None else tape.decode_cut(course.base).totals.fired
    firings = [
        (step, place, number, result.shard)
        for result in results
        for number, (step, place) in enumerate(result.firings)
    ]
    firings.sort()
    counted = {(shard, number): first + at for at, (_, _, number, shard) in enumerate(firings)}
    for result in results:
        for skip, number in result.skipped:
            if counted[result.shard, number] != skip:
                raise UnsplittableError(
                    f"firing {counted[result.shard, number]} was taken for the one that failed, number {skip}"
                )
