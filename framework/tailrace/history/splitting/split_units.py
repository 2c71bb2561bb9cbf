"""The units that take one partition through its past in parts, by key. The theory of it is in ``core.engine.key_split``.

    first   reads the partition once, calls no handler, and deals its records to shards: a file of blocks for each
    shard   runs the handlers of one shard's keys: a file of rows, ascending, and one of outputs, in their order
    merge   merges both, holds the sums against the tape, and writes the partition's part of the snapshot

What cannot be split is found by the first pass or by the sums. The result says so (``made["unsplit"]``), and the driver has
the partition replayed as a whole. So it does where something fails that did not fail then: the whole names it, or not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.key_split.course import Chunk, Course, Series, ShardRecords, is_of_shard
from tailrace.core.engine.key_split.first_pass import FirstPass, KeySplitPlan
from tailrace.core.engine.key_split.shard import Ordered, ShardResult, ShardTask, check, in_order, numbered
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.errors import BadRecordError, ReplayDivergedError, UnsplittableError
from tailrace.core.records import InputRecord
from tailrace.history.rebuilding.canonical_unit import begun_task, one_commit, past_of
from tailrace.history.rebuilding.job import Unit, UnitKind, UnitResult
from tailrace.history.rebuilding.origins import TaskOrigin, load, origin_of_task
from tailrace.history.rebuilding.output_files import Frame, outputs_folder, write_outputs
from tailrace.history.rebuilding.output_watermarks import Mark, encode_marks, mark_of, marks_wanted
from tailrace.history.rebuilding.own_rows import check_own
from tailrace.history.rebuilding.own_sends import Sends, compares_sends
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.retrying import Retrying, RetryProgress, RetryWatch, fill
from tailrace.history.rebuilding.tape_unit import Counted, messages_of
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.history.splitting.blocks import BlockReader, BlockWriter
from tailrace.processes.environment import timezones_version
from tailrace.state import MemoryStore, RocksStore, StateIdentity
from tailrace.state.snapshots import write_task

_AT_ONCE = 10_000
_KEPT_AT_MOST = 200_000
UNSPLIT = "unsplit"
NOT_IN_PARTS = (UnsplittableError, ReplayDivergedError, BadRecordError)
"""What differs, or cannot be handled any more, is looked for in one piece: that can tell which event it is."""

_Block: TypeAlias = tuple[Series, ShardRecords]
_Rows: TypeAlias = list[tuple[bytes, bytes]]


class _Part:
    """What the three kinds of units share."""

    def __init__(self, unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> None:
        self.unit, self.job, self.past, self.work = unit, unit.job, past, work
        self.plan, self.number, self.attempt = past.plan, unit.partition, attempt
        self.target = unit.job.targets[unit.partition].cut
        self.result = UnitResult(unit=unit.name, attempt=attempt, partition=unit.partition)
        variant = self.job.request.execution.variant
        self.settings = TaskSettings(
            cache_bytes=variant.cache_bytes,
            timers_in_memory=variant.timers_in_memory,
            timezones=timezones_version(),
            reload=variant.reload,
        )

    def path(self, what: str, shard: int) -> Path:
        """A file that is this attempt's own."""
        return self.work.blocks / f"{self.number}-{shard}-{what}-{self.attempt}"

    def origin(self) -> TaskOrigin | None:
        """What the task starts from."""
        if self.job.order == "canonical":
            return begun_task(self.job, self.past, self.number).origin
        return origin_of_task(self.job, self.past, self.number)

    def done(self, kind: UnitKind, shard: int = 0) -> UnitResult:
        """The result of an earlier unit of the same partition."""
        name = Unit(job=self.job, kind=kind, partition=self.number, shard=shard).name
        found = self.work.result(name)
        if found is None:
            raise ReplayDivergedError(f"the unit {name} has not been run", hint="Run the rebuild again.")
        return found


# --- the first pass ---


def run_first(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Read a partition and deal its records to shards."""
    part = _Part(unit, past, work, attempt)
    taped = part.job.order == "tape"
    if taped and part.target is None:
        return part.result
    begun_s = time.perf_counter()
    try:
        _first(part) if taped else _first_untaped(part)
    except NOT_IN_PARTS as error:
        part.result.made = {UNSPLIT: error.what}
    phases = part.result.phases
    phases.shuffle = time.perf_counter() - begun_s - phases.read
    return part.result


def _first(part: _Part) -> None:
    assert part.target is not None
    result, request = part.result, part.job.request
    end, origin = tape.decode_cut(part.target), part.origin()
    cut = None if origin is None else origin.cut
    begin = 0 if cut is None else tape.decode_cut(cut).tape
    first = FirstPass(
        part.plan,
        part.number,
        part.job.split,
        _timed(part),
        cut,
        lineage=end.lineage,
        settings=part.settings,
        limit=request.limit(part.number),
        any_environment=request.failures.any_environment,
    )
    more = True
    marks: list[Mark] = []
    before = 0 if cut is None else tape.decode_cut(cut).totals.outputs
    other: str | None = None
    with _Dealt(part) as dealt:
        for record in part.past.tapes(part.number, end.tape):
            if record.base is not None:
                other = None  # whoever ran what came before it, nothing of that is left
            if record.version is not None and record.version != part.plan.version:
                other = record.version
            if other is not None and record.number >= begin:
                raise UnsplittableError(f"some of it was run by version {other!r}")
            if record.number < begin:
                if record.inputs is not None:
                    first.follow_on(record)
                continue
            chunks, more = first.take(record)
            dealt.write(chunks)
            result.commits += 1
            if marks_wanted(part.job):
                marks.append(mark_of(first.task, record, rows=record.totals.outputs - before))
            part.work.report(part.unit.name, first.task.totals.records, end.totals.records)
            if not more:
                result.notes += (f"partition {part.number} ends within commit {record.number}",)
                break
        if more and first.task.tape_number != end.tape:
            raise ReplayDivergedError(
                f"the tape of app {part.plan.app!r} partition {part.number} ends at record {first.task.tape_number}, "
                f"its last commit was number {end.tape - 1}",
                hint="A part of the tape is missing: a rebuild along the tape needs all of it.",
            )
        chunks, course = first.finish()
        dealt.write(chunks)
    part.work.report(part.unit.name, first.task.totals.records, end.totals.records, now=True)
    result.made = dealt.made(course, whole=more)
    result.marks = encode_marks(marks)


def _first_untaped(part: _Part) -> None:
    """The same in canonical order."""
    job, number = part.job, part.number
    begun = begun_task(job, part.past, number)
    cut = None if begun.origin is None else begun.origin.cut
    task = KeySplitPlan(
        part.plan,
        number,
        job.split,
        cut,
        lineage=begun.lineage,
        positions=begun.positions,
        settings=part.settings,
    )
    taken = past_of(job, part.past, number, part.result.phases)
    of = sum(end - task.positions[name] for name, end in taken.ends.items())
    with _Dealt(part) as dealt:
        for _ in Canonical([task], [taken], limit=job.request.limit(number)).go():
            dealt.write(task.take_chunks())
            part.work.report(part.unit.name, task.totals.records, of)
        course = task.course(cut)
        dealt.write(task.take_chunks())
    part.work.report(part.unit.name, of, of, now=True)
    part.result.made = dealt.made(course, whole=True)


class _Dealt:
    """The files of a first pass: one for each shard."""

    def __init__(self, part: _Part) -> None:
        shards = range(part.job.split)
        self._files = [part.path("records", shard) for shard in shards]
        self._counts = [0 for _ in shards]
        self._open = ExitStack()
        self._writers = [self._open.enter_context(BlockWriter(file)) for file in self._files]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.__exit__(*raised)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Give each shard its part of chunks."""
        for one in chunks:
            for shard, (writer, dealt) in enumerate(zip(self._writers, one.shards, strict=True)):
                writer.write((one.series, dealt))
                self._counts[shard] += len(dealt.records)

    def made(self, course: Course, *, whole: bool) -> dict[str, Any]:
        """What the shards have to know."""
        return {
            "files": [file.name for file in self._files],
            "records": self._counts,
            "course": msgspec.msgpack.encode(course),
            "whole": whole,
        }


def _timed(part: _Part) -> Callable[[str, int, int], Sequence[InputRecord]]:
    read, phases = part.past.source(part.number), part.result.phases

    def timed(name: str, start: int, stop: int) -> Sequence[InputRecord]:
        begun_s = time.perf_counter()
        found = read(name, start, stop)
        phases.read += time.perf_counter() - begun_s
        return found

    return timed


# --- a shard ---


def run_shard(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Run the handlers of the keys of one shard."""
    part = _Part(unit, past, work, attempt)
    made = part.done("first").made
    if "course" not in made:
        return part.result
    folder = part.work.tasks / f"{part.number}-{unit.shard}-{attempt}"
    store: RocksStore | MemoryStore = MemoryStore()
    if part.job.request.execution.store == "rocks":
        store = RocksStore(folder, StateIdentity(part.plan.app, part.number))
    try:
        _shard(part, store, made)
    except NOT_IN_PARTS as error:
        part.result.made = {UNSPLIT: error.what}
    finally:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)
    return part.result


def _shard(part: _Part, store: RocksStore | MemoryStore, made: dict[str, Any]) -> None:
    shard, job, result = part.unit.shard, part.job, part.result
    begun_s = time.perf_counter()
    course = msgspec.msgpack.decode(made["course"], type=Course)
    origin = part.origin()
    if origin is not None:
        load(origin, part.number, store, lambda row: is_of_shard(row, shard, course.shards))
    replaying = job.order == "tape"
    retrying, watch = Retrying(job.letters_of(part.number)), None
    if job.letters:
        retrying.begin_with(origin, part.number)
        watch = RetryWatch(retrying=retrying, as_declared=True, sharded=True)
    task = ShardTask(
        part.plan, part.number, shard, course, store, settings=part.settings, replaying=replaying, watch=watch
    )
    wanted = None if job.request.to.outputs != "none" else _compared(part)
    phases, of = result.phases, made["records"][shard]
    files = (part.path("rows", shard), part.path("outputs", shard))
    with BlockWriter(files[0]) as kept, BlockWriter(files[1]) as outputs:

        def commit() -> None:
            if emitted := _wanted(task.take_ordered(), wanted):
                outputs.write(emitted)
            batch = task.commit_batch()
            store.write(batch.rows | batch.index_rows, batch.cut)
            task.committed()

        task.pause = commit
        blocks = iter(BlockReader[_Block](part.work.blocks / made["files"][shard], _Block))
        while True:
            read_s = time.perf_counter()
            block = next(blocks, None)
            phases.shuffle += time.perf_counter() - read_s
            if block is None:
                break
            if emitted := _wanted(task.take(*block), wanted):
                outputs.write(emitted)
            if task.dirty_count >= _KEPT_AT_MOST:
                commit()
            result.taken += len(block[1].records)
            part.work.report(part.unit.name, result.taken, of)
        commit()
        handled_s = time.perf_counter()
        phases.handle = handled_s - begun_s - phases.shuffle
        state = ((row, value) for row, value in store.rows() if row[:1] == rows.STATE)
        while batch := list(islice(state, _AT_ONCE)):
            kept.write(batch)
        phases.shuffle += time.perf_counter() - handled_s
    result.schema = store.get(rows.SCHEMA_ROW) or b""
    counted = task.result()
    result.totals = counted.totals
    result.made = {
        "files": [file.name for file in files],
        "counted": msgspec.msgpack.encode(counted),
        "retried": msgspec.msgpack.encode(retrying.progress),
    }
    part.work.report(part.unit.name, of, of, now=True)


def _compared(part: _Part) -> frozenset[str]:
    """The topics whose outputs have to be compared with what is recorded."""
    return Sends(part.plan).topics if compares_sends(part.job, part.plan) else frozenset()


def _wanted(emitted: list[Ordered], topics: frozenset[str] | None) -> list[Ordered]:
    """Those of the outputs that go to these topics; all of them for None."""
    return emitted if topics is None else [one for one in emitted if one.output[0] in topics]


# --- together ---


def run_merge(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Put the shards of a partition together."""
    part = _Part(unit, past, work, attempt)
    made = part.done("first").made
    if "course" not in made:
        part.result.made = made
        if part.target is None and compares_sends(part.job, part.plan):
            Sends(part.plan).fill(part.result, part.job, past, part.number)
        return part.result
    shards = [part.done("shard", shard) for shard in range(part.job.split)]
    unsplit = next((one.made[UNSPLIT] for one in shards if UNSPLIT in one.made), None)
    try:
        if unsplit is not None:
            raise UnsplittableError(unsplit)
        _merge(part, shards, msgspec.msgpack.decode(made["course"], type=Course), whole=made["whole"])
    except NOT_IN_PARTS as error:
        part.result = UnitResult(unit=unit.name, attempt=attempt, partition=unit.partition)
        part.result.made = {UNSPLIT: error.what}
    return part.result


def _merge(part: _Part, shards: Sequence[UnitResult], course: Course, *, whole: bool) -> None:
    begun_s = time.perf_counter()
    job, result, number = part.job, part.result, part.number
    counts = [msgspec.msgpack.decode(one.made["counted"], type=ShardResult) for one in shards]
    cut = course.cut_with(check(course, counts))
    if job.order == "canonical":
        cut, whole = one_commit(cut, course.base), False
    elif whole and not job.request.limited and cut != part.target:
        raise UnsplittableError("the shards do not come to the cut of the service")
    fill(result, (msgspec.msgpack.decode(one.made["retried"], type=RetryProgress) for one in shards))
    result.cut, result.schema = cut, shards[0].schema
    result.totals = tape.decode_cut(cut).totals
    if whole:
        result.changelog_position = job.targets[number].changelog_position

    def state() -> Iterator[tuple[bytes, bytes]]:
        return merge(*(_flat(part, one.made["files"][0], _Rows) for one in shards), key=itemgetter(0))

    counted = Counted(state(), named=bool(job.request.keys))
    messages = messages_of(job, part.past, number, cut)
    result.files = write_task(job.folder, number, part.attempt, iter(counted), messages=messages)
    result.rows, result.keys, result.found = counted.rows, counted.keys, counted.found
    check_own(result, part.past, state)
    sends = Sends(part.plan) if _compared(part) else None
    emitted = in_order(_flat(part, one.made["files"][1], list[Ordered]) for one in shards)
    outputs = numbered(emitted, part.plan, number, course)
    if job.request.to.outputs != "none":
        first = 0 if course.base is None else tape.decode_cut(course.base).totals.outputs
        result.marks = part.done("first").marks
        frames = _framed(outputs if sends is None else sends.noted(outputs), first)
        result.outputs = (write_outputs(outputs_folder(job), number, part.attempt, frames),)
    elif sends is not None:
        sends.take(outputs)
    if sends is not None:
        sends.fill(result, job, part.past, number)
    result.phases.write = time.perf_counter() - begun_s


def _flat(part: _Part, name: str, type: Any) -> Iterator[Any]:
    return chain.from_iterable(BlockReader[list[Any]](part.work.blocks / name, type))


def _framed(outputs: Iterator[Any], first: int) -> Iterator[Frame]:
    while batch := list(islice(outputs, _AT_ONCE)):
        yield Frame(first, batch)
        first += len(batch)
