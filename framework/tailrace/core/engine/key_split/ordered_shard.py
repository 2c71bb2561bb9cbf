"""A shard of a task whose operators are all ordered: one pass along its history, limited to the keys of the shard.

Theory. What an ordered operator does for a key follows from the events of the key, the places of those that are late, and
the clock. No handler of another key is needed to know these: a late event has its place by the times of the records
before it in its input. So each shard takes every record of the partition, and calls the handlers of its own keys only::

    a record of another shard    moves the watermark by its event time. It does not wait
    an own record                waits for its turn, as in the whole
    any other cause              is that of the whole

A *stretch* is several runs of records, without another cause between them, of inputs that are neither idle nor behind an
operator in which their events wait. Each of these events waits, and none is handled on arrival. The clock stands still,
and what is handled is handled in the order of event time. So a stretch is taken input by input. Other records (of an
input that comes back from idleness, or that nobody waits for) are taken one by one.

This needs an app that sends nothing to itself, as that would be read among other records. It also needs actors without
timers of processing time, as such a timer may be due at the end of the very step that sets it.

The outputs of all shards are sorted by (step, place), as in ``shard``. A run is one step: its outputs have the order
of its drain, if all operators have the same watermark. Otherwise the whole handles some events of one operator
before earlier ones of another, and the order is only the same for each operator (see ``have_one_watermark``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.input_decoder import BoundInput
from tailrace.core.engine.key_split.chunks import gained, shard_of
from tailrace.core.engine.key_split.shard import InOrder, Ordered, place_of
from tailrace.core.engine.ordering import Sweep
from tailrace.core.engine.replay import Replay, Source
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import Entry
from tailrace.core.engine.units import TIMER
from tailrace.core.errors import UnsplittableError
from tailrace.core.records import FOR_OTHERS, Head, Headers, InputRecord, Refused
from tailrace.core.storage import StateReader

Skips: TypeAlias = dict[tuple[int, int, int], Headers]
"""By input, offset and operator: the headers of the dead letter."""
_STRETCH: Final = -1
"""Takes the place of the kind of a cause: several runs."""
_ELSEWHERE: Final = object()
"""Takes the place of an event of another shard."""


def whole_because(plan: Plan) -> str:
    """Why the tasks of an app with an ordered actor cannot be split, as text. Empty if they can be."""
    if not all(one.ordered for one in plan.operators):
        return "some of its actors handle events in the order of event time, others on arrival"
    if own_inputs(plan):
        return "an ordered actor reads what the app sends to itself"
    if any(one.processing_timers for one in plan.actors):
        return "an ordered actor has timers of processing time"
    return ""


def have_one_watermark(plan: Plan) -> bool:
    """Whether all operators follow the same sources."""
    return len({one.sources for one in plan.operators}) <= 1


def failed_units(plan: Plan, records: Iterable[tape.TapeRecord]) -> Skips:
    """The units that failed in the first run, by its tape. Raises UnsplittableError if a shard cannot know them."""
    inputs, operators = list(plan.sources), [one.name for one in plan.operators]
    found: Skips = {}
    for record in records:
        if record.inputs is not None and (
            [*record.inputs, *record.channels] != inputs or (record.operators or operators) != operators
        ):
            raise UnsplittableError(f"the app had other inputs or operators at commit {record.number}")
        for skip in record.skips:
            if skip.input == TIMER:
                raise UnsplittableError(f"a timer failed in commit {record.number}")
            found[skip.input, skip.number, skip.operator] = tuple(skip.headers)
    return found


class _ShardSweep(InOrder, Sweep):
    """The sweep of a shard."""

    def __init__(self, *of_sweep: Any) -> None:
        super().__init__(*of_sweep)
        self.record = b""
        """The offset of the record whose step it is, if records are taken one by one."""

    def begin(self, record: bytes = b"") -> None:
        """Begin the step of a record, or of another cause."""
        self.record = self.place = record

    def go_to(self, domain: int, time_ms: int, rest: bytes) -> None:
        """Note the place of what follows in the drain."""
        self.place = max(self.place, self.record + bytes((1, domain)) + rows.time_bytes(time_ms) + rest)

    def fire(self, domain: int, entry: Entry, table: Table) -> None:
        self.go_to(domain, entry[0], b"\1" + place_of(domain, entry))
        super().fire(domain, entry, table)
        self.tag()


class OrderedShardTask(Task):
    """The task of one shard. ``state`` has the rows at ``cut`` that belong to it (see ``is_of_shard``)."""

    make_sweep = _ShardSweep
    _sweep: _ShardSweep

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shard: int,
        shards: int,
        state: StateReader,
        cut: bytes | None = None,
        *,
        lineage: bytes,
        skips: Skips,
        settings: TaskSettings | None = None,
    ) -> None:
        super().__init__(plan, partition, state, cut, lineage=lineage, settings=settings, replaying=True)
        self.shard, self.shards = shard, shards
        self._units.follow(skips)
        for one in self._inputs:
            one.turns = False  # the sweep notes the place of each output
        self._known: list[dict[Any, bool]] = [{} for _ in plan.inputs]
        self._start = msgspec.structs.replace(self.totals)
        self._elsewhere = tape.Totals()
        """What ``totals`` counts of other shards."""
        if shard:
            self.stored.written()  # only shard 0 writes these rows of the whole

    def decode(self, number: int, records: Sequence[InputRecord]) -> list[Head]:
        """See ``OrderedTask.decode``. Of an event of another shard, only the time is left."""
        heads, known = super().decode(number, records), self._known[number]
        for key in {head[2] for head in heads}.difference(known):
            known[key] = self._is_mine(number, key)
        return [
            head if known[head[2]] or head[3] is FOR_OTHERS else (head[0], head[1], None, _ELSEWHERE, None)
            for head in heads
        ]

    def _is_mine(self, number: int, key: Any) -> bool:
        try:
            encoded = None if key is None else self.plan.inputs[number].key_codec.encode(key)
        except Exception:  # noqa: BLE001  # such a key can have no instance: its handlers fail
            encoded = None
        return self.shard == (0 if encoded is None else shard_of(encoded, self.shards))

    def follow(self, skips: Skips, stop_after: int, *, by_name: bool = False) -> None:
        """Nothing: a shard drains to the end of each step, so it needs the skips of later commits, too."""

    def begin_step(self) -> None:
        """What follows is another step."""
        self._sweep.step += 1
        self._sweep.begin()

    # --- records

    def run(self, number: int, heads: Sequence[Head], start: int = 0) -> int:
        """See ``Task.run``. Raises UnsplittableError at a refused record, whose dead letter has no place in a drain."""
        self._not_draining()
        if any(type(head[3]) is Refused for head in heads):
            raise UnsplittableError(f"a record of {self.plan.inputs[number].name!r} is refused")
        self._firing.budget = self.settings.firing_budget
        if start == 0:
            self.begin_step()
            self._inputs[number].prefetch(heads, 0)
            if self.all_wait(number):
                self._let_wait(self._inputs[number], heads)
                self._firing.drain()
                return len(heads)
        at = start
        while at < len(heads) and not self._firing.draining:
            self._take_alone(self._inputs[number], heads[at])
            at += 1
        return at

    def all_wait(self, number: int) -> bool:
        """Whether all events of an input wait now: it is neither idle, nor behind one of the operators."""
        one, marks = self._inputs[number], self._watermarks
        own_ms = marks.of_source[number]
        return (
            bool(one.waits)
            and not marks.idle[number]
            and all(route.operator in one.waits for route, _ in one.routes)
            and all(own_ms >= marks.ready[operator] for operator in one.waits)
        )

    def _let_wait(self, one: BoundInput, heads: Sequence[Head]) -> None:
        number, marks, lag, elsewhere = one.plan.index, self._watermarks, one.lag, 0
        own_ms, highest_ms, mine = marks.of_source[number], NO_WATERMARK, None
        for head in heads:
            time_ms = head[1]
            if time_ms is None:
                self._units.unhandled(number, head[3], head[4])
                continue
            if head[3] is _ELSEWHERE:
                elsewhere += 1
                highest_ms = max(highest_ms, time_ms if time_ms > own_ms else own_ms + 1)
            else:
                marks.of_source[number] = own_ms
                self._arrive(one, head, time_ms)
                self.totals.records += 1
                mine = head
            own_ms = max(own_ms, time_ms - lag)
        marks.of_source[number] = own_ms
        self._pass(one, heads[-1], elsewhere, highest_ms)
        if mine is not None:
            self._bound_memory(mine)

    def _take_alone(self, one: BoundInput, head: Head) -> None:
        number, time_ms, of_source = one.plan.index, head[1], self._watermarks.of_source
        self._sweep.begin(head[0].to_bytes(8, "big"))
        if head[3] is not _ELSEWHERE:
            super().run(number, [head])
            return
        self._watermarks.idle[number] = False
        place_ms = NO_WATERMARK
        if time_ms is not None:
            place_ms = max(time_ms, of_source[number] + 1)
            of_source[number] = max(of_source[number], time_ms - one.lag)
        self._pass(one, head, 1, place_ms)
        self._firing.drain()

    def _pass(self, one: BoundInput, last: Head, elsewhere: int, highest_ms: int) -> None:
        """Move past heads. Events of other shards wait up to ``highest_ms``: if all inputs are idle, event time rises to
        the last one that waits in any shard.
        """
        highest = self._sweep.highest_elsewhere
        for operator in one.waits:
            highest[operator] = max(highest[operator], highest_ms)
        self.totals.records += elsewhere
        self._elsewhere.records += elsewhere
        self.skip_to(one.plan.index, last[0] + 1)
        self._watermarks.advance(one.plan.moves)

    def _in_its_turn(self, one: BoundInput, head: Head, operator: int, place_ms: int) -> None:
        if head[3] is _ELSEWHERE:  # it waited at the beginning
            self._elsewhere.ordered += 1
            return
        sweep = self._sweep
        place = sweep.operators.index(operator), one.plan.rank, head[0]
        sweep.go_to(rows.EVENT_TIME, place_ms, b"\0" + b"".join(part.to_bytes(8, "big") for part in place))
        super()._in_its_turn(one, head, operator, place_ms)
        sweep.tag()

    # --- results

    def take_ordered(self) -> list[Ordered]:
        """The outputs since the last call."""
        return self._sweep.take_ordered()

    def discard_outputs(self) -> int:
        """See ``TaskState.discard_outputs``."""
        self._sweep.tags.clear()
        return super().discard_outputs()

    def result(self) -> tape.Totals:
        """The counts of the shard."""
        found = gained(self._elsewhere, gained(self._start, self.totals))
        return msgspec.structs.replace(found, for_others=0)


class OrderedShardReplay(Replay):
    """The task of a shard along the tape of the whole."""

    task: OrderedShardTask

    def __init__(self, task: OrderedShardTask, source: Source, *, any_environment: bool = False) -> None:
        super().__init__(task, source, some_keys=True, any_environment=any_environment)

    def _take(self, causes: list[Sequence[int]]) -> bool:
        return super()._take(list(_grouped(causes)))

    def _cause(self, cause: Sequence[Any], *, last: bool) -> bool:
        if cause[0] != _STRETCH:
            self.task.begin_step()
            return super()._cause(cause, last=last)
        counts, runs = dict[int, int](), list[Sequence[int]](cause[1])
        if all(self.task.all_wait(self._number(then)) for _, then, _ in runs):
            for _, then, count in runs:
                counts[then] = counts.get(then, 0) + count
            runs = [(tape.RUN, then, count) for then, count in counts.items()]
        for run in runs:
            super()._cause(run, last=last)
        return True


def _grouped(causes: list[Sequence[int]]) -> Iterator[Any]:
    """The causes, with runs that follow one another as one."""
    for is_run, group in groupby(causes, lambda cause: cause[0] == tape.RUN):
        some = tuple(group)
        yield from ((_STRETCH, some),) if is_run else some
