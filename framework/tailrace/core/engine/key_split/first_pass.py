"""The first pass: runs the causes of a task without calling a handler, to split its work by key.

Theory: why a task can be split by key. A task's state has two parts. The part of a key (instances, entries,
timers) is changed only by the units of that key. The common part (positions, watermarks, clock, idle inputs)
is changed only by causes: a record moves the watermark by its event time, whatever its handlers do, and a
timer moves nothing. So the common part can be computed first, without any handler. Then each key sees exactly
what it would have seen in the whole task:

    a record        the watermarks before it (which decide whether it is late) and after it, and the clock
    a timer         its actor's watermark and the clock at the end of the first step in which they reach it

Steps are numbered over the whole task; 1 is the first step after its start. A *series* lists the steps at
whose end a watermark or the clock moved, with the new values. The values never decrease, so bisection finds
the step at which a timer is due. Step 0 is the start; its drain may be unfinished.

At the end of all input the watermark rises to the latest timer of any key: the tape has the value. The tape
names a timer that failed by the number of timers that had fired before, which no shard can count: such a task
cannot be split (UnsplittableError).

Records are assigned to shards by a hash of their key's bytes. Records without a usable key (refused, without
a key, or with a key that has no bytes) go to shard 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.input_decoder import BoundRoute
from tailrace.core.engine.key_split.chunks import Chunk, Overview, Series, ShardRecords, gained, shard_of
from tailrace.core.engine.replay import Limit, Replay, Source
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.errors import UnsplittableError
from tailrace.core.records import FOR_OTHERS, Head, InputRecord, Refused

CHUNK_STEPS: Final = 20_000
"""Approximate number of steps in a chunk."""

_KNOWN_KEYS: Final = 1_000_000

_Row = tuple[int, int, int, int, InputRecord]
"""Step, input, the series entries that are valid before and after it, record."""


class EmptyState:
    """A state without rows."""

    def get(self, _row: bytes, /) -> None:
        """Always None."""

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """None for each row."""
        return [None] * len(rows)

    def scan(self, _start: bytes, _stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """No rows."""
        del reverse
        return iter(())


class _NoHandlers(Units):
    """Units that call no handler."""

    direct = False

    def record(
        self,
        number: int,
        offset: int,
        record: InputRecord | None,
        to: Sequence[BoundRoute],
        key: Any,
        event: Any,
        mark: int,
    ) -> None:
        pass


class KeySplitPlan(Task):
    """A task that calls no handler: it gets causes and returns chunks, with the real task's cut and tape.

    ``totals`` count only values that do not depend on handlers: records, late and refused ones.
    """

    make_units = _NoHandlers

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shards: int,
        cut: bytes | None = None,
        *,
        lineage: bytes = b"",
        positions: Mapping[str, int] | None = None,
        settings: TaskSettings | None = None,
        replaying: bool = False,
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        super().__init__(
            plan,
            partition,
            EmptyState(),
            cut,
            lineage=lineage,
            positions=positions,
            settings=settings,
            replaying=replaying,
        )
        self.shards = shards
        self.step = 0
        self._chunks: list[Chunk] = []
        self._chunk_steps = chunk_steps
        self._chunk = 0
        self._first = 1
        self._known: list[dict[Any, int]] = [{} for _ in plan.inputs]
        self._series = Series([0], [[one] for one in self._watermarks.of_operator], [self.now])
        self._rows: list[list[_Row]] = [[] for _ in range(shards)]
        self._skips: list[list[tape.Skip]] = [[] for _ in range(shards)]

    def run(self, number: int, heads: Sequence[Head], start: int = 0) -> int:
        """Take all records starting with ``heads[start]``, each in a step of its own. See ``Task.run``."""
        taken = self._run(number, heads, start) if start < len(heads) else start
        self._unit.outputs.clear()  # of late and refused records: the shards emit them
        if self.step - self._first >= self._chunk_steps:
            self.close_chunk()
        return taken

    def _between(self, number: int, heads: Sequence[Head], start: int) -> Iterator[Head]:
        """The heads. After each, adds its record to its shard, with the series entries before and after."""
        skips, known, now = self._units.skips, self._known[number], self.now
        units = (tape.ALL, *{route.operator for route in self.plan.inputs[number].routes})
        unit, marks, apart, moves = (
            self._unit,
            self._watermarks,
            self._units.apart,
            self.plan.inputs[number].moves,
        )
        add: list[Callable[[_Row], None]] = [rows.append for rows in self._rows]
        at, watermark, of_operator = len(self._series.steps) - 1, unit.watermark, list(marks.of_operator)
        for head in islice(heads, start, None):
            yield head
            offset, _, key, event, record = head
            if event is FOR_OTHERS:
                continue
            assert record is not None
            self.step = step = self.step + 1
            shard = known.get(key) if type(event) is not Refused else 0
            if shard is None:
                shard = self._shard(number, key, event)
            for operator in units if skips else ():
                if (found := skips.get((number, offset, operator))) is not None:
                    self._skips[shard].append(tape.Skip(number, offset, list(found), operator))
            before = at
            if apart:
                if marks.of_operator != of_operator:
                    of_operator, at = list(marks.of_operator), at + 1
            elif unit.watermark != watermark:
                watermark, at = unit.watermark, at + 1
                for operator in moves:
                    marks.of_operator[operator] = watermark
            if at != before:
                self._note(step, now)
            add[shard]((step, number, before, at, record))

    def _note(self, step: int, clock_ms: int) -> None:
        self._series.steps.append(step)
        self._series.clocks.append(clock_ms)
        for column, mark in zip(self._series.watermarks, self._watermarks.of_operator, strict=True):
            column.append(mark)

    def finish(self, operator: int, to_ms: int | None = None) -> bool:
        """See ``Task.finish``. Raises UnsplittableError without ``to_ms``, because no timer is known here."""
        if to_ms is None and self.plan.operators[operator].actor is not None:
            raise UnsplittableError("the latest pending timer may be that of any key")
        return super().finish(operator, to_ms)

    def overview(self, base: bytes | None) -> Overview:
        """What is known of the whole task here, after a start from ``base``. Closes the last chunk."""
        self.close_chunk()
        before = 0 if base is None else tape.decode_cut(base).totals.for_others
        cut, for_others = self.commit_batch().cut, self.totals.for_others - before
        return Overview(self.shards, self.lineage, base, cut, None, self.step, for_others)

    def take_chunks(self) -> list[Chunk]:
        """The chunks finished since the last call."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def close_chunk(self) -> None:
        """Finish the current chunk. A chunk without steps is added only if it is the first."""
        if self.step < self._first and self._chunk:
            return
        dealt = [_columns(rows, skips) for rows, skips in zip(self._rows, self._skips, strict=True)]
        series = self._series
        self._chunks.append(Chunk(self._chunk, self._first, self.step, series, dealt))
        self._chunk += 1
        self._first = self.step + 1
        self._series = Series(series.steps[-1:], [one[-1:] for one in series.watermarks], series.clocks[-1:])
        self._rows = [[] for _ in range(self.shards)]
        self._skips = [[] for _ in range(self.shards)]

    def _advance(self) -> None:
        super()._advance()  # no timer is pending here, so this drains nothing
        self.step += 1
        marks = [one[-1] for one in self._series.watermarks]
        if self.now != self._series.clocks[-1] or marks != self._watermarks.of_operator:
            self._note(self.step, self.now)
        if self.step - self._first >= self._chunk_steps:
            self.close_chunk()

    def _shard(self, number: int, key: Any, event: Any) -> int:
        plan, known = self.plan.inputs[number], self._known[number]
        codec = plan.key_codec if not plan.is_inbox else event.route.target.key_codec
        try:
            shard = 0 if key is None else shard_of(codec.encode(key), self.shards)
        except Exception:  # noqa: BLE001  # a table raises the same error
            shard = 0  # such a key can have no instance: its handlers have no state, or fail
        if not plan.is_inbox:  # an inbox has keys of several actors
            if len(known) >= _KNOWN_KEYS:
                known.clear()
            known[key] = shard
        return shard


def _columns(rows: list[_Row], skips: list[tape.Skip]) -> ShardRecords:
    steps, inputs, before, after, records = (
        map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(5))
    )
    return ShardRecords(steps, inputs, before, after, records, skips)


class FirstPass(Replay):
    """The first pass along a tape: call ``take`` for each record in turn, then ``overview``.

    It starts at ``cut``, or without state. It makes the checks of a replay that do not depend on handlers.
    """

    task: KeySplitPlan

    def __init__(
        self,
        plan: Plan,
        partition: int,
        shards: int,
        source: Source,
        cut: bytes | None = None,
        *,
        lineage: bytes = b"",
        settings: TaskSettings | None = None,
        limit: Limit | None = None,
        any_environment: bool = False,
        chunk_steps: int = CHUNK_STEPS,
    ) -> None:
        task = KeySplitPlan(
            plan,
            partition,
            shards,
            cut,
            lineage=lineage,
            settings=settings,
            replaying=True,
            chunk_steps=chunk_steps,
        )
        super().__init__(task, source, limit=limit, some_keys=True, any_environment=any_environment)
        self._base = cut
        self._start = msgspec.structs.replace(task.totals)
        self._known_totals = True

    def take(self, record: tape.TapeRecord) -> bool:
        """See ``Replay.take``. Also raises UnsplittableError."""
        if any(skip.input == TIMER for skip in record.skips):
            raise UnsplittableError(f"a timer failed in commit {record.number}")
        whole = super().take(record)
        if whole:
            self.settle()
        elif record.holds:
            raise UnsplittableError(f"a limit lies within commit {record.number}, which fell into a drain")
        else:
            self._known_totals = False
        return whole

    def overview(self, cut: bytes | None) -> Overview:
        """What is known of the whole task now, with the last commit's ``cut``. Closes the last chunk."""
        overview = self.task.overview(self._base)
        if cut is not None:
            overview.cut = cut
        if self._known_totals:
            overview.totals = gained(self._start, self.task.totals)
        return overview
