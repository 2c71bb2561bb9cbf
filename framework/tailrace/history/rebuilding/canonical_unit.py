"""The unit that takes history without a tape, in canonical order: see ``core.engine.canonical`` for what that is.

One unit for each partition; or, for an app that sends something to itself, one for all partitions together: what was recorded
of that is an effect of the code of then, and this is the code of now (see ``core.engine.delivery``). It is done in one piece: where it is killed it begins anew. Its cut says that all was one commit, so that it is the same
however often there was one on the way, in shards too.

Watermarks that other services published are looked for at every hundredth offset. A task without a past has its lineage, the
seed of its randomness, from its name: every rebuild draws the same.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import canonical as order
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Whose, nobodys
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.redriven import redriven_ids
from tailrace.core.engine.replay import Source
from tailrace.core.engine.settings import TaskSettings
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord
from tailrace.core.storage import Store
from tailrace.history.app_history import origin_of
from tailrace.history.beginnings import is_own
from tailrace.history.named_keys import named_keys
from tailrace.history.rebuilding.failures import Failed, RebuildWatch
from tailrace.history.rebuilding.job import Job, Phases, Unit, UnitResult
from tailrace.history.rebuilding.origins import TaskOrigin, load
from tailrace.history.rebuilding.output_files import (
    Marked,
    OutputFrames,
    frames,
    outputs_folder,
    write_outputs,
)
from tailrace.history.rebuilding.output_watermarks import Marking, encode_marks, mark_of, marks_wanted
from tailrace.history.rebuilding.own_letters import OwnLetters
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.retrying import Retrying, RetryWatch
from tailrace.history.rebuilding.tape_unit import Counted, RowStore
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.history.upstream_watermarks import Upstream
from tailrace.processes.environment import timezones_version
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory
from tailrace.state.snapshots import Snapshots, write_task

_COMMIT_EVERY = 100_000
"""Records, firings and outputs."""
_LOOK_EVERY = 100
"""Offsets between two looks for published watermarks."""


def run_canonical(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Take one partition, or all of them together, through their past."""
    folder = work.tasks / f"canonical-{unit.partition}-{attempt}"
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        run = _Run(unit, past, work, attempt, folder, closing)
        run.go()
        return run.results()


class _Run:
    def __init__(
        self,
        unit: Unit,
        past: HistorySource,
        work: WorkFolder,
        attempt: str,
        folder: Path,
        closing: ExitStack,
    ) -> None:
        self._unit, self._job, self._past, self._plan = unit, unit.job, past, past.plan
        self._work, self._attempt, self._folder = work, attempt, folder
        self._together = unit.job.together
        self._numbers = range(self._plan.partitions) if self._together else (unit.partition,)
        self._failed = Failed()
        self._begun = [begun_task(self._job, past, number) for number in self._numbers]
        self._retrying = [Retrying(self._job.letters_of(number)) for number in self._numbers]
        self._own = own_inputs(self._plan) if self._together else {}
        self._own_letters = OwnLetters(self._own, self._plan.dead_letters_topic, self._base_positions())
        self._phases = Phases()
        self._begun_s = time.perf_counter()
        self._memory = StateMemory()
        self._stores = [self._store(number, closing) for number in self._numbers]
        self._tasks = [self._task(at, number) for at, number in enumerate(self._numbers)]
        self._frames: list[OutputFrames] = []
        if self._job.request.to.outputs != "none":
            for number in self._numbers:
                one = OutputFrames(folder / f"outputs-{number}")
                closing.callback(one.close)
                self._frames.append(one)
        self._taken = self._records()

    def _store(self, number: int, closing: ExitStack) -> RowStore:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._job.request.execution.store == "memory":
            return MemoryStore()
        store = RocksStore(self._folder / str(number), StateIdentity(self._plan.app, number), self._memory)
        closing.callback(store.close)
        return store

    def _task(self, at: int, number: int) -> Task:
        job, plan, begun = self._job, self._plan, self._begun[at]
        request = job.request
        if begun.origin is not None:
            load(begun.origin, number, self._stores[at])
        keys = named_keys(plan, request.keys).keys if request.keys else None
        watch = None
        if keys is not None or request.failures.on_error != "stop":
            watch = RebuildWatch(None, keys, request.failures.on_error, self._failed)
        if job.letters:
            self._retrying[at].begin_with(begun.origin, number)
            watch = RetryWatch(
                None,
                keys,
                request.failures.on_error,
                self._failed,
                self._retrying[at],
                as_declared=watch is None,
                own=self._own_letters if self._together else None,
            )
        settings = TaskSettings(
            cache_bytes=request.execution.variant.cache_bytes,
            timers_in_memory=request.execution.variant.timers_in_memory,
            timezones=timezones_version(),
            reload=request.execution.variant.reload,
        )
        return Task(
            plan,
            number,
            self._stores[at],
            None if begun.origin is None else begun.origin.cut,
            lineage=begun.lineage,
            positions=begun.positions,
            settings=settings,
            watch=watch,
        )

    def _base_positions(self) -> dict[tuple[str, int], int]:
        """Where the base stands in the app's own inputs, by partition."""
        found: dict[tuple[str, int], int] = {}
        for number, begun in zip(self._numbers, self._begun, strict=True):
            if begun.origin is not None:
                positions = tape.decode_cut(begun.origin.cut).positions
                found |= {(name, number): positions.get(name, 0) for name in self._own}
        return found

    # --- on the way

    def go(self) -> None:
        """Take everything."""
        job = self._job
        pasts = [past_of(job, self._past, number, self._phases) for number in self._numbers]
        of = sum(
            end - task.positions[name]
            for task, past in zip(self._tasks, pasts, strict=True)
            for name, end in past.ends.items()
            if name not in self._own
        )
        limit = job.request.limit(self._unit.partition)
        run = order.Canonical(
            self._tasks,
            pasts,
            deliver=_delivered if self._together else None,
            finish=job.finish,
            limit=limit,
        )
        moved = [_moved(task) for task in self._tasks]
        markings = [Marking(task) for task in self._tasks] if marks_wanted(job) else []
        for task in run.go():
            at = self._tasks.index(task)
            if markings and markings[at].is_due():
                self._emit(run, at, marked=True)
            if _moved(task) - moved[at] >= _COMMIT_EVERY:
                self._commit(run, at)
                moved[at] = _moved(task)
                self._work.report(self._unit.name, self._records() - self._taken, of)
        for at in range(len(self._tasks)):
            self._emit(run, at, marked=bool(markings))
            self._commit(run, at)
        self._work.report(self._unit.name, of, of, now=True)

    def _commit(self, run: order.Canonical, at: int) -> None:
        self._emit(run, at)
        task = self._tasks[at]
        batch = task.commit_batch()
        store: Store = self._stores[at]
        store.write(batch.rows | batch.index_rows, batch.cut)
        task.committed()

    def _emit(self, run: order.Canonical, at: int, *, marked: bool = False) -> None:
        task, outputs = self._tasks[at], run.outputs(at)
        if self._frames:
            first = task.totals.outputs - len(outputs)
            self._frames[at].append(first, outputs, mark_of(task) if marked else None)

    def _records(self) -> int:
        return sum(task.totals.records for task in self._tasks)

    # --- at the end

    def results(self) -> UnitResult:
        """Write what there is into the snapshot; the result of the last partition carries those of the others."""
        written_s = time.perf_counter()
        found = [self._result(at, number) for at, number in enumerate(self._numbers)]
        whole = found[0]
        whole.taken = self._records() - self._taken
        whole.failed_here, whole.dead_letters = self._failed.count, tuple(self._failed.shown)
        whole.phases = self._phases
        whole.phases.handle = written_s - self._begun_s - self._phases.read
        whole.phases.write = time.perf_counter() - written_s
        whole.others = tuple(found[1:])
        return whole

    def _result(self, at: int, number: int) -> UnitResult:
        job, store, task, origin = self._job, self._stores[at], self._tasks[at], self._begun[at].origin
        result = UnitResult(unit=self._unit.name, attempt=self._attempt, partition=number)
        assert store.cut is not None
        result.cut = one_commit(store.cut, None if origin is None else origin.cut)
        result.totals = task.totals
        self._retrying[at].progress.handled |= self._own_letters.settled(job.letters_of(number), number)
        self._retrying[at].fill(result)
        result.schema = store.get(rows.SCHEMA_ROW) or b""
        counted = Counted(store.rows(), named=bool(job.request.keys))
        result.files = write_task(job.folder, number, self._attempt, iter(counted))
        result.rows, result.keys, result.found = counted.rows, counted.keys, counted.found
        if self._frames:
            self._frames[at].close()
            made = Marked(frames(self._folder / f"outputs-{number}"))
            result.outputs = (write_outputs(outputs_folder(job), number, self._attempt, made),)
            result.marks = encode_marks(made.marks)
        return result


class Begun(NamedTuple):
    """Where a task begins: with a snapshot, or at positions of its inputs and with a lineage."""

    origin: TaskOrigin | None
    lineage: bytes
    positions: dict[str, int]


def begun_task(job: Job, past: HistorySource, number: int) -> Begun:
    """Where the task of a partition begins; deleted records are stepped over, where that was not refused."""
    request, target = job.request, job.targets[number].cut
    origin = None
    if job.base is not None and request.source.base is not None:
        cut = Snapshots(request.source.base, job.app).open(job.base).manifest.task(number).cut
        origin = TaskOrigin(request.source.base, job.app, job.base, cut) if cut else None
    lineage = tape.decode_cut(target).lineage if target is not None else lineage_of(job.app, number)
    known = [one.name for one in past.plan.inputs if one.name in job.ends]
    return Begun(origin, lineage, {name: past.log.start_offset(name, number) for name in known})


def past_of(job: Job, past: HistorySource, number: int, phases: Phases) -> order.PartitionHistory:
    """What the task of a partition has to read; the time it takes goes into ``phases``."""
    plan = past.plan
    ends = {one.name: job.ends[one.name][number] for one in plan.inputs if one.name in job.ends}
    own = own_inputs(plan) if job.together else {}
    published = dict(_published(past, number, {name: end for name, end in ends.items() if name not in own}))
    ends |= {name: 0 for name in own if name not in ends}
    read, whose = _own_source(job, past, number) if own else (past.source(number), nobodys)

    def timed(name: str, start: int, stop: int) -> Sequence[InputRecord]:
        begun_s = time.perf_counter()
        found = read(name, start, stop)
        phases.read += time.perf_counter() - begun_s
        return found

    return order.PartitionHistory(timed, ends, published, whose)


def _own_source(
    job: Job, past: HistorySource, number: int
) -> tuple[Source, Callable[[str, InputRecord], Whose]]:
    """The records of a partition, and whose those of the app's own inputs are.

    Where the rebuild continues from a snapshot, what was under way to a task then counts as written by others: nobody sends
    that again. A topic that nobody else writes is read no further than that, if nothing of it was redriven.
    """
    plan, read = past.plan, past.source(number)
    app, inputs = plan.app.encode(), own_inputs(plan)
    failed = {topic for letters in job.letters for topic, _, _ in letters.contents}
    internal = {name for name, one in inputs.items() if is_own(name, plan.app) or one.is_inbox} - failed
    kept: dict[str, int] = {}
    if job.base is not None and job.request.source.base is not None:
        ends = Snapshots(job.request.source.base, job.app).open(job.base).manifest.ends
        kept = {name: of[number] for name, of in ends.items() if name in inputs}

    def known(name: str, start: int, stop: int) -> Sequence[InputRecord]:
        if name in internal:
            stop = min(stop, kept.get(name, 0))
        return read(name, start, stop) if start < stop else ()

    def whose(name: str, record: InputRecord) -> Whose:
        if record.offset < kept.get(name, 0):
            return "others"
        if redriven_ids(record.headers, plan.dead_letters_topic):
            return "redriven"
        return "others" if origin_of(record, app) is None else "sent"

    return known, whose


def _published(
    past: HistorySource, number: int, ends: dict[str, int]
) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
    """By source, the watermarks that its writers have published, by position; None where they hold nobody back."""
    log, plan = past.log, past.plan
    reader = log.reader({})
    try:
        upstream = Upstream(plan, number, log, reader)
        for index, sources in upstream.inputs.items():
            name = plan.inputs[index].name
            if name not in ends:
                continue
            found: dict[int, list[tuple[int, int | None]]] = {source: [] for source in sources}
            before: dict[int, int | str] = {}
            at = log.start_offset(name, number)
            reader.seek(name, number, at)
            while True:
                for source, mark in upstream.news(index).items():
                    if mark != before.get(source, NO_WATERMARK):
                        before[source] = mark
                        found[source] += _said(at, mark, upstream.last_ms(source))
                if at >= ends[name]:
                    break
                stop = min((at // _LOOK_EVERY + 1) * _LOOK_EVERY, ends[name])
                while at < stop:
                    after = reader.fetch(name, number, stop - at).next_offset
                    if after == at:
                        break
                    at = after
                if at < stop:
                    break
            for source, marks in found.items():
                yield plan.sources[source], marks
    finally:
        reader.close()


def _said(at: int, mark: int | str, last_ms: int) -> list[tuple[int, int | None]]:
    if isinstance(mark, int):
        return [(at, mark)]
    return [(at, last_ms), (at, None)]


def one_commit(cut: bytes, base: bytes | None) -> bytes:
    """The cut as if all had been one commit: how often there was one is nobody's business."""
    decoded = tape.decode_cut(cut)
    decoded.tape = 1 + (0 if base is None else tape.decode_cut(base).tape)
    return tape.encode(decoded)


def lineage_of(app: str, partition: int) -> bytes:
    """The seed of a task that has no past."""
    return hashlib.sha256(f"tailrace:{app}/{partition}".encode()).digest()[:16]


def _delivered(_name: str, _partition: int, _record: InputRecord) -> None:
    """What was delivered is not kept."""


def _moved(task: Task) -> int:
    totals = task.totals
    return totals.records + totals.fired + totals.outputs
