"""The units that replay one partition in parts, by key. The theory is in ``core.engine.key_split``.

    first   reads the partition once, calls no handler, and deals its records to shards: a file for each
    shard   runs the handlers of one shard's keys: a file of rows, ascending, and one of outputs, in order
    merge   merges both, compares the sums with the tape, and writes the partition's part of the snapshot

The first pass or the sums detect a partition that cannot be split. The result names the reason (``unsplit``),
and the driver has the partition replayed as a whole. It does the same if an event fails that did not fail in
the first run: the replay of the whole then names the event, or succeeds.

If the operators are ordered, the first unit only looks at the tape, and each shard reads the whole partition (see
``splitting.ordered``).
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Self, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.key_split.chunks import Overview, Series, ShardRecords, is_of_shard
from tailrace.core.engine.key_split.first_pass import FirstPass, KeySplitPlan
from tailrace.core.engine.key_split.shard import Ordered, ShardTask, check, in_order, numbered
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import UnsplittableError
from tailrace.core.storage import Store
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.reading.driving import CommitPolicy, Sink, Step, TapeSink, drive, drive_along_tape
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.canonical_history import history_of
from tailrace.history.rebuilding.canonical_unit import idle_inputs, one_commit
from tailrace.history.rebuilding.failed_before import skips_of
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import Frame
from tailrace.history.rebuilding.output_watermarks import Mark, encode_marks, mark_of, marks_wanted
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.recorded_rows import compare_rows
from tailrace.history.rebuilding.recorded_sends import Sends, compares_sends
from tailrace.history.rebuilding.results import OutputFiles, RowComparison, TaskResult, UnitResult
from tailrace.history.rebuilding.splitting import part as parts
from tailrace.history.rebuilding.splitting.ordered import look_at_tape, run_ordered
from tailrace.history.rebuilding.splitting.part import (
    NOT_IN_PARTS,
    OTHER_CODE,
    Dealing,
    Emitted,
    Part,
    ShardFiles,
)
from tailrace.history.rebuilding.unit_files import write_frames, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import MemoryStore, RocksStore, StateIdentity

_Block: TypeAlias = tuple[Series, ShardRecords]
_Rows: TypeAlias = list[tuple[bytes, bytes]]


# --- the first pass ---


def run_first(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Read a partition and deal its records to shards."""
    part = Part(unit, past, work, attempt)
    taped = part.job.order == "tape"
    if any(one.broadcast for one in part.plan.inputs):
        part.result.unsplit = "all of its keys look up the tables of broadcast topics"
        return part.result
    if taped and part.target is None:
        return part.result
    begun_s = time.perf_counter()
    try:
        part.result.made = msgspec.msgpack.encode(_first(part) if taped else _first_untaped(part))
    except NOT_IN_PARTS as error:
        part.result.unsplit = error.what
    phases = part.result.work.phases
    phases.shuffle = time.perf_counter() - begun_s - phases.read
    return part.result


def _first(part: Part) -> Dealing:
    assert part.target is not None
    request = part.job.request
    end, begun = tape.decode_cut(part.target), part.beginning()
    if any(one.ordered for one in part.plan.operators):
        return look_at_tape(part, end, begun)
    first = FirstPass(
        part.plan,
        part.number,
        part.job.split,
        part.result.work.phases.reading(part.past.source(part.number)),
        begun.cut,
        lineage=end.lineage,
        settings=part.settings,
        limit=request.limit(part.number),
        any_environment=request.failures.any_environment,
    )
    with _Dealt(part, first.task, end.totals.records) as dealt:
        whole = drive_along_tape(first, part.past.tapes(part.number, end.tape), end.tape, dealt)
        return dealt.made(first.overview(dealt.store.cut), whole=whole)


def _first_untaped(part: Part) -> Dealing:
    """The first pass in canonical order."""
    job, number = part.job, part.number
    begun = part.beginning()
    task = KeySplitPlan(
        part.plan,
        number,
        job.split,
        begun.cut,
        lineage=begun.lineage,
        positions=begun.positions,
        settings=part.settings,
    )
    task.event_clock_ms = job.clock_ms
    task.follow(skips_of(part.plan, number, job.letters_of(number)), FOREVER)
    taken = history_of(job, part.past, number, part.result.work.phases)
    of = sum(end - task.positions[name] for name, end in taken.ends.items())
    with _Dealt(part, task, of) as dealt:
        order = Canonical([task], [taken], limit=job.request.limit(number))
        drive(order.go(), [task], [dealt])
        part.result.idle = idle_inputs(order)
        return dealt.made(task.overview(begun.cut), whole=True)


class _Dealt(TapeSink):
    """Takes the results of a first pass: a file of records for each shard, and marks."""

    def __init__(self, part: Part, task: KeySplitPlan, of: int) -> None:
        super().__init__(MemoryStore(), CommitPolicy(entries=None))
        self.marks: list[Mark] = []
        self._part, self._task, self._of = part, task, of
        self._outputs_before = task.totals.outputs
        self._marked = marks_wanted(part.job)
        shards = range(part.job.split)
        self._files = [part.path("records", shard) for shard in shards]
        self._counts = [0 for _ in shards]
        self._open = ExitStack()
        self._writers = [self._open.enter_context(BlockWriter(file)) for file in self._files]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def other_code(self, version: str, /) -> None:
        """See ``TapeSink.other_code``."""
        raise UnsplittableError(OTHER_CODE.format(version))

    def take(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.take``. The number of outputs comes from the tape, since no handler runs."""
        self._deal()
        if self._marked:
            rows = step.record.totals.outputs - self._outputs_before
            self.marks.append(mark_of(task, step.record, rows=rows))

    def step_done(self, _task: Task, step: Step, /) -> None:
        """See ``TapeSink.step_done``."""
        result, number = self._part.result, self._part.number
        result.work.commits += 1
        self._report()
        if not step.whole:
            result.notes.append(f"partition {number} ends within commit {step.record.number}")

    def on_turn(self, _task: Task, /) -> None:
        """See ``Sink.on_turn``."""
        self._deal()
        self._report()

    def _deal(self) -> None:
        for one in self._task.take_chunks():
            for shard, (writer, dealt) in enumerate(zip(self._writers, one.shards, strict=True)):
                writer.write((one.series, dealt))
                self._counts[shard] += len(dealt.records)

    def _report(self) -> None:
        self._part.work.report(self._part.unit.name, self._task.totals.records, self._of)

    def made(self, overview: Overview, *, whole: bool) -> Dealing:
        """The data for the shards. ``overview`` must have closed the last chunk."""
        self._deal()
        self._part.work.report(self._part.unit.name, self._of, self._of, now=True)
        files = [file.name for file in self._files]
        return Dealing(files, self._counts, overview, whole, encode_marks(self.marks))


# --- a shard ---


def run_shard(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Run the handlers of the keys of one shard."""
    part = Part(unit, past, work, attempt)
    made = part.done("first").made
    if not made:
        return part.result
    folder = part.work.tasks / f"{part.number}-{unit.shard}-{attempt}"
    store: RocksStore | MemoryStore = MemoryStore()
    if part.job.request.execution.store == "rocks":
        store = RocksStore(folder, StateIdentity(part.plan.app, part.number))
    try:
        made = msgspec.msgpack.encode(_shard(part, store, msgspec.msgpack.decode(made, type=Dealing)))
        part.result.made = made
    except NOT_IN_PARTS as error:
        part.result.unsplit = error.what
    finally:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)
    return part.result


def _shard(part: Part, store: RocksStore | MemoryStore, dealing: Dealing) -> ShardFiles:
    shard, overview, phases = part.unit.shard, dealing.overview, part.result.work.phases
    begun_s = time.perf_counter()
    begun, of = part.beginning(), dealing.records[shard]
    begun.load(store, lambda row: is_of_shard(row, shard, overview.shards))
    files = (part.path("rows", shard), part.path("outputs", shard))
    with BlockWriter(files[0]) as kept, BlockWriter(files[1]) as outputs:
        run = _run_dealt if dealing.files else run_ordered
        task = run(part, store, dealing, begun, Emitted(part, outputs))
        handled_s = time.perf_counter()
        phases.handle = handled_s - begun_s - phases.shuffle - phases.read
        state = ((row, value) for row, value in store.rows() if row[:1] == rows.STATE)
        while batch := list(islice(state, parts.AT_ONCE)):
            kept.write(batch)
        phases.shuffle += time.perf_counter() - handled_s
    counts = task.result()
    part.result.work.replayed = counts.records
    part.work.report(part.unit.name, of, of, now=True)
    return ShardFiles(files[0].name, files[1].name, store.get(rows.SCHEMA_ROW) or b"", counts)


def _run_dealt(part: Part, store: Store, dealing: Dealing, _begun: Beginning, emitted: Emitted) -> ShardTask:
    """Run the records that were dealt to a shard."""
    shard, job, phases = part.unit.shard, part.job, part.result.work.phases
    replaying, of, read = job.order == "tape", dealing.records[shard], 0
    task = ShardTask(
        part.plan, part.number, shard, dealing.overview, store, settings=part.settings, replaying=replaying
    )
    task.event_clock_ms = job.clock_ms
    sink = _ShardSink(store, emitted)
    task.pause = partial(sink.commit, task)
    blocks = iter(BlockReader[_Block](part.work.blocks / dealing.files[shard], _Block))

    def through() -> Iterator[Task]:
        nonlocal read
        while True:
            read_s = time.perf_counter()
            block = next(blocks, None)
            phases.shuffle += time.perf_counter() - read_s
            if block is None:
                return
            emitted.write(task.take(*block))
            read += len(block[1].records)
            part.work.report(part.unit.name, read, of)
            yield task

    drive(through(), [task], [sink])
    return task


class _ShardSink(Sink):
    """Takes a shard's rows and outputs."""

    def __init__(self, store: Store, emitted: Emitted) -> None:
        super().__init__(store, CommitPolicy(moved=None))
        self._emitted = emitted

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        assert isinstance(task, ShardTask)
        self._emitted.write(task.take_ordered())
        super().commit(task)


# --- the merge ---


def run_merge(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Merge the shards of a partition."""
    part = Part(unit, past, work, attempt)
    first = part.done("first")
    if not first.made:
        part.result.unsplit = first.unsplit
        if not first.unsplit:
            part.result.tasks = (TaskResult(partition=part.number),)
        return part.result
    shards = [part.done("shard", shard) for shard in range(part.job.split)]
    part.result.unsplit = next((one.unsplit for one in shards if one.unsplit), "")
    if part.result.unsplit:
        return part.result
    found = [msgspec.msgpack.decode(one.made, type=ShardFiles) for one in shards]
    begun_s = time.perf_counter()
    try:
        part.result.tasks = (_merged(part, found, msgspec.msgpack.decode(first.made, type=Dealing)),)
    except NOT_IN_PARTS as error:
        part.result.unsplit = error.what
    part.result.work.phases.write = time.perf_counter() - begun_s
    return part.result


def _merged(part: Part, shards: Sequence[ShardFiles], dealing: Dealing) -> TaskResult:
    job, number, attempt, overview, whole = (
        part.job,
        part.number,
        part.attempt,
        dealing.overview,
        dealing.whole,
    )
    cut = overview.cut_with(check(overview, [one.counted for one in shards]))
    if job.order == "canonical":
        cut, whole = one_commit(cut, overview.base), False
    elif whole and not job.request.limited and cut != part.target:
        raise UnsplittableError("the shards do not come to the cut of the service")

    def state() -> Iterator[tuple[bytes, bytes]]:
        last = b""
        for pair in merge(*(_flat(part, one.rows, _Rows) for one in shards), key=itemgetter(0)):
            if pair[0] == last:
                raise UnsplittableError(
                    f"two shards have the row {last!r}: the records of one key went to both"
                )
            last = pair[0]
            yield pair

    written = write_rows(job, number, attempt, state(), shards[0].schema, part.past)
    position = job.targets[number].changelog_position if whole else None
    compared = (
        RowComparison() if position is None else compare_rows(part.past, number, position, written, state)
    )
    outputs = _merge_outputs(part, shards, dealing)
    return TaskResult(
        partition=number,
        cut=cut,
        changelog_position=None if compared.different else position,
        totals=tape.decode_cut(cut).totals,
        state=written,
        rows=compared,
        outputs=outputs,
        handled=part.again.handled(part.beginning(), cut) if job.order == "canonical" else {},
    )


def _merge_outputs(part: Part, shards: Sequence[ShardFiles], dealing: Dealing) -> OutputFiles:
    """Merge the outputs of the shards, compare what the app sends to itself, and write them if they are requested."""
    job, number, overview = part.job, part.number, dealing.overview
    sends = Sends(job, part.past, number) if compares_sends(job, part.plan) else None
    emitted = in_order(_flat(part, one.outputs, list[Ordered]) for one in shards)
    outputs, written = part.look(numbered(emitted, part.plan, number, overview), sends), OutputFiles()
    if job.request.to.outputs != "none":
        begins = 0 if overview.base is None else tape.decode_cut(overview.base).totals.outputs
        written = write_frames(job, number, part.attempt, _framed(outputs, begins))
        written = msgspec.structs.replace(written, marks=dealing.marks)
    else:
        deque(outputs, 0)
    if sends is not None:
        sends.end()
    return written


def _flat(part: Part, name: str, type: Any) -> Iterator[Any]:
    return chain.from_iterable(BlockReader[list[Any]](part.work.blocks / name, type))


def _framed(outputs: Iterator[Any], first: int) -> Iterator[Frame]:
    while batch := list(islice(outputs, parts.AT_ONCE)):
        yield Frame(first, batch)
        first += len(batch)
