"""The second pass: the real task, limited to the keys of one shard.

Theory. ``first_pass`` explains why the shards see the same as the whole task. This file merges their results.

    state      each row belongs to one key, and so to one shard: all shards' rows are the rows of the whole
    totals     each record and each firing is counted in one shard, so the sum is that of the whole
    outputs    each has an *order*, and the outputs of all shards sorted by it are the outputs of the whole

The order is (step, place). The place of a record's outputs is empty. A firing's place is its position in its
step's drain. The whole task always fires the lowest of the due timers, by (domain, time, place of the actor,
key, name). The due timers are the heads of the shards' queues, so the drain of the whole is the merge of
their drains that always takes the lowest head. A handler may set a timer that is lower than the one that has
just fired. It is then the lowest of all and comes next. So the place of a firing is not its own name but the
highest name so far in this drain and shard: sorting by that gives the merge. Two shards never have the same
place in one step, because a place contains a key. Within a shard, outputs are already in order, so a stable
merge is enough.

The last commit may have left the drain of the very last step unfinished. A shard does not know this and
finishes the drain. The totals then differ from those of the tape, and the task cannot be split.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.firing import Due, Firing
from tailrace.core.engine.input_decoder import NEVER
from tailrace.core.engine.key_split.chunks import Overview, Series, ShardRecords, gained, summed
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import ORIGIN_HEADER, Task
from tailrace.core.engine.timers import FOREVER, Entry, TimerQueue
from tailrace.core.engine.units import Units
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import ReplayDivergedError, UnsplittableError
from tailrace.core.records import Head, Output, RawOutput
from tailrace.core.storage import StateReader

Order: TypeAlias = tuple[int, bytes]
"""The step, and the place within it."""


class Ordered(NamedTuple):
    """An output without a number yet, and its order among the outputs of all shards."""

    step: int
    place: bytes
    output: RawOutput


class InOrder(Firing):
    """Notes the order of each output among those of all shards."""

    def __init__(
        self, units: Units, marks: Watermarks, events: Sequence[TimerQueue], processing: Sequence[TimerQueue]
    ) -> None:
        super().__init__(units, marks, events, processing)
        self.step = 0
        self.place = b""
        self.tags: list[Order] = []
        """The orders of the waiting outputs."""

    def drain(self) -> None:
        """See ``Firing.drain``. A record's outputs come before those of the timers due after it."""
        self.tag()
        super().drain()

    def tag(self) -> None:
        """Note the order of the latest outputs."""
        missing = len(self.units.unit.outputs) - len(self.tags)
        if missing:
            self.tags += [(self.step, self.place)] * missing

    def take_ordered(self) -> list[Ordered]:
        """The outputs since the last call, in their order."""
        outputs, tags = self.units.unit.outputs, self.tags
        self.tag()
        ordered = [Ordered(step, place, output) for (step, place), output in zip(tags, outputs, strict=True)]
        self.units.totals.outputs += len(outputs)
        outputs.clear()
        tags.clear()
        return ordered


class _ShardFiring(InOrder):
    """Fires the timers of a shard."""

    def fire(self, domain: int, entry: Entry, table: Table) -> None:
        self.place = max(self.place, place_of(domain, entry))
        super().fire(domain, entry, table)
        self.tag()


def place_of(domain: int, entry: Entry) -> bytes:
    """Bytes that sort in the order of the drain, and after the empty place of records."""
    time_ms, actor, key, name = entry
    start = bytes((domain,)) + rows.time_bytes(time_ms) + actor.to_bytes(4, "big")
    return start + rows.escaped(key) + rows.escaped(name)


class _SeriesWatermarks(Watermarks):
    """Watermarks that only the series moves."""

    def shared_watermark(self, number: int) -> tuple[int, int] | None:
        """Only a single operator has a common watermark here: several may part within a run."""
        concerned = self.concerned(number)
        return (self.of_operator[concerned[0]], NO_WATERMARK) if len(concerned) == 1 else None


class _Places(NamedTuple):
    """The place of each record of a run in the whole task: step, and series entries before and after it."""

    series: Series
    steps: list[int]
    before: list[int]
    after: list[int]


class ShardTask(Task):
    """The task of one shard: call ``take`` for its part of every chunk, in order, even if it is empty.

    ``state`` has the rows of ``overview.base`` that belong to the shard (see ``is_of_shard``). ``take``
    returns the outputs. ``commit_batch`` returns the rows as in any task; the driver may call it as often as
    it likes between two calls of ``take``.
    """

    make_watermarks = _SeriesWatermarks
    make_firing = _ShardFiring
    _firing: _ShardFiring

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shard: int,
        overview: Overview,
        state: StateReader,
        *,
        settings: TaskSettings | None = None,
        replaying: bool = True,
    ) -> None:
        super().__init__(
            plan,
            partition,
            state,
            overview.base,
            lineage=overview.lineage,
            settings=settings,
            replaying=replaying,
        )
        self.addressees.sorted_out = True  # the first pass has removed them
        self._overview = overview
        self._stands = -1
        self._start = msgspec.structs.replace(self.totals)
        if shard:
            self.stored.written()  # only shard 0 writes these rows of the whole
        self.pause: Callable[[], None] | None = None
        """Called in the middle of a long drain, after each ``settings.firing_budget`` firings: the driver may
        take outputs (``take_ordered``) and commit.
        """
        # The first pass has moved the watermarks, and timers fire between the records: see _between.
        for one in self._inputs:
            one.lag = NEVER
        self._due = [(Due(()), Due(()))] * len(plan.inputs)
        self._places = _Places(Series([], [], []), [], [], [])

    def take(self, series: Series, part: ShardRecords) -> list[Ordered]:
        """Run one chunk. Returns the outputs in their order.

        Raises:
            ReplayDivergedError: A handler fails that did not fail in the first run.
            UnsplittableError: The same for a timer that may have fired after the last commit.
            HandlerError, BadRecordError: The same, if this is not a replay and the app stops on failures.
        """
        self._stands = -1
        steps, before, after = part.steps, part.before, part.after
        self.follow(
            {(skip.input, skip.number, skip.operator): tuple(skip.headers) for skip in part.skips}, FOREVER
        )
        first = 0
        try:
            for number, group in groupby(part.inputs):
                last = first + sum(1 for _ in group)
                heads = self.decode(number, part.records[first:last])
                self._inputs[number].prefetch(heads, 0)
                self._places = _Places(series, steps[first:last], before[first:last], after[first:last])
                at = 0
                while at < len(heads):
                    at = self._run(number, heads, at)
                    self._finish_drain()
                first = last
            while not self._catch_up(series, len(series.steps) - 1):
                self._finish_drain()
        except ReplayDivergedError as error:
            if self._firing.step == self._overview.steps:
                raise UnsplittableError(f"a shard came to another end: {error}") from error
            raise
        self.defer_commit()  # the tape and metrics of a shard are not used
        return self.take_ordered()

    def take_ordered(self) -> list[Ordered]:
        """The outputs since the last call. For ``pause``; ``take`` returns the remaining outputs."""
        return self._firing.take_ordered()

    def result(self) -> tape.Totals:
        """The counts of the shard, after the last chunk."""
        return gained(self._start, self.totals)

    def _between(self, number: int, heads: Sequence[Head], start: int) -> Iterator[Head]:
        """The heads. Before and after each, the task stands where the whole task did, and fires due timers.

        It ends early if a drain is left unfinished.
        """
        series, steps, before, after = self._places
        firing, marks, unit, context = self._firing, self._watermarks, self._unit, self._context
        undo, watermark, stood = self._cells.undo, NO_WATERMARK, -1
        for at in range(start, len(heads)):
            head, entry = heads[at], before[at]
            if entry != self._stands:
                if not self._catch_up(series, entry):
                    return
                self._stand(series, entry)
            if stood != entry:
                stood, watermark = entry, marks.highest(number)
            context.watermark = unit.watermark = watermark
            firing.step, firing.place = steps[at], b""
            yield head
            firing.tag()
            if after[at] != entry:
                self._stand(series, after[at])
            elif not undo:
                continue  # no watermark has moved, and no timer can have been set
            if self._is_due() and not self._drain():
                return

    def _is_due(self) -> bool:
        firing, of_operator = self._firing, self._watermarks.of_operator
        return self.now >= firing.clock_due_ms() or any(
            mark >= queue.due_ms for mark, queue in zip(of_operator, firing.events, strict=False)
        )

    def _stand(self, series: Series, entry: int) -> None:
        """Set the clock and the watermarks of all operators to an entry of the series."""
        self._stands = entry
        self._context.now = series.clocks[entry]
        self._watermarks.of_operator[:] = [column[entry] for column in series.watermarks]

    def _catch_up(self, series: Series, last: int) -> bool:
        """Fire timers due up to entry ``last``, each at its step. False: call it again after the drain."""
        firing = self._firing
        while True:
            at = bisect_left(series.clocks, firing.clock_due_ms(), 0, last + 1)
            for column, queue in zip(series.watermarks, firing.events, strict=False):
                at = min(at, bisect_left(column, queue.due_ms, 0, last + 1))
            if at > last:
                return True
            self._stand(series, at)
            firing.step, firing.place = series.steps[at], b""
            if not self._drain():
                return False

    def _drain(self) -> bool:
        """Fire the timers that are due now, and return to the current unit. Returns whether all have fired."""
        unit = self._unit
        salt, route, table = unit.salt, unit.route, unit.table
        finished = self.drain()
        unit.salt, unit.route, unit.table = salt, route, table
        return finished

    def _finish_drain(self) -> None:
        while self._firing.draining:
            if self.pause is not None:
                self.pause()
            self.drain()


# --- merging the results ---


def in_order(shards: Iterable[Iterable[Ordered]]) -> Iterator[RawOutput]:
    """The outputs of all shards, in the order of the whole. They are read lazily."""
    return map(itemgetter(2), merge(*shards, key=itemgetter(0, 1)))


def numbered(
    outputs: Iterable[RawOutput], plan: Plan, partition: int, overview: Overview
) -> Iterator[Output]:
    """The outputs of the whole, numbered as its task would write them."""
    first = 0 if overview.base is None else tape.decode_cut(overview.base).totals.outputs
    origin = f"{plan.app}/{partition}/"
    for number, (topic, key, value, time_ms, headers) in enumerate(outputs, first):
        yield Output(topic, key, value, time_ms, (*headers, (ORIGIN_HEADER, f"{origin}{number}".encode())))


def check(overview: Overview, results: Sequence[tape.Totals]) -> tape.Totals:
    """Check that the totals of the shards add up to the whole. Returns their sum.

    Raises:
        UnsplittableError: They do not add up. The last commit fell in the middle of a drain, or the code has
            changed. A replay without a split can find out which.
    """
    counted = summed(*results, tape.Totals(for_others=overview.for_others))
    if overview.totals is not None and counted != overview.totals:
        differing = [
            f"{name}: {getattr(overview.totals, name)} on the tape, {getattr(counted, name)} in the shards"
            for name in tape.Totals.__struct_fields__
            if getattr(overview.totals, name) != getattr(counted, name)
        ]
        raise UnsplittableError(f"the shards do not add up to the whole ({', '.join(differing)})")
    return counted
