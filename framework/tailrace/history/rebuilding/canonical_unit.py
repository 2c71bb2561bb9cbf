"""The unit that replays history without a tape, in canonical order (defined in ``core.engine.canonical``).

There is one unit for each partition. An app that sends records to itself has one unit for all partitions together, because
the recorded ones are effects of the earlier code, not of the present one (see ``core.engine.delivery``). The unit does its work
in one piece: an attempt after a kill begins from the start. Its cut counts everything as one commit, so that the cut does not
depend on the number of commits on the way, in shards too.

Watermarks that other services published are read at every hundredth offset. A task without a past derives its lineage, the
seed of its randomness, from its name: every rebuild draws the same numbers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tailrace.core import rows
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import canonical as order
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.partition_history import PartitionHistory, RecordOrigin, written_by_others
from tailrace.core.engine.redriven import redriven_ids, redriven_of
from tailrace.core.engine.replay import Source
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.records import InputRecord
from tailrace.history.reading.app_history import origin_of
from tailrace.history.reading.beginnings import Beginning, is_own, rows_of_keys
from tailrace.history.reading.driving import CommitPolicy, Sink, drive
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.reading.upstream_watermarks import Upstream
from tailrace.history.rebuilding.compacted_inputs import CompactedInputs
from tailrace.history.rebuilding.failed_before import FailedAgain, by_input, skips_of
from tailrace.history.rebuilding.failures import Failed
from tailrace.history.rebuilding.job import Job, Phases, Unit, UnitResult
from tailrace.history.rebuilding.output_files import OutputFrames, frames
from tailrace.history.rebuilding.output_watermarks import Marking, mark_of, marks_wanted
from tailrace.history.rebuilding.past import HistorySource, asked_snapshot
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.tape_unit import RowStore
from tailrace.history.rebuilding.unit_files import write_frames, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory

_COMMIT_EVERY = 100_000
"""Records and timer firings between two commits."""
_OUTPUTS_AT_ONCE = 10_000
"""Most outputs held in memory."""
_LOOK_EVERY = 100
"""Number of offsets between two reads of published watermarks."""


def run_canonical(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Replay the past of one partition, or of all partitions together."""
    folder = work.tasks / f"canonical-{unit.partition}-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as closing:
        closing.callback(shutil.rmtree, folder, ignore_errors=True)
        return _Run(unit, past, work, attempt, folder, closing).run()


class _Run:
    """The tasks of a unit, each with its sink, and their shared data."""

    def __init__(
        self,
        unit: Unit,
        past: HistorySource,
        work: WorkFolder,
        attempt: str,
        folder: Path,
        closing: ExitStack,
    ) -> None:
        self.unit, self.job, self.past, self.plan = unit, unit.job, past, past.plan
        self.attempt, self.folder, self.closing = attempt, folder, closing
        self._work, self._begun_s = work, time.perf_counter()
        self.failed, self.phases, self.memory = (
            Failed(unit.job.request.failures.on_error),
            Phases(),
            StateMemory(),
        )
        numbers = range(self.plan.partitions) if self.job.together else (unit.partition,)
        begun = {number: past.beginning(self.job, number) for number in numbers}
        self.own = own_inputs(self.plan) if self.job.together else {}
        self.sinks = [_TaskSink(self, at, *one) for at, one in enumerate(begun.items())]
        self.tasks = [one.task for one in self.sinks]
        self._taken = self._records()
        self.compacted = CompactedInputs(self.plan, past.log)
        pasts = [past_of(self.job, past, number, self.phases, self.compacted) for number in numbers]
        self._of = sum(
            end - task.positions[name]
            for task, one in zip(self.tasks, pasts, strict=True)
            for name, end in one.ends.items()
            if name not in self.own
        )
        self.order = order.Canonical(
            self.tasks,
            pasts,
            deliver=_delivered if self.job.together else None,
            finish=self.job.finish,
            limit=self.job.request.limit(unit.partition),
        )

    def run(self) -> UnitResult:
        """Run all tasks, and write them into the snapshot. The result of the first partition carries the others' results."""
        drive(self.order.go(), self.tasks, self.sinks)
        self._work.report(self.unit.name, self._of, self._of, now=True)
        written_s = time.perf_counter()
        whole, *others = [sink.result() for sink in self.sinks]
        whole.taken = self._records() - self._taken
        whole.failed_here, whole.dead_letters = self.failed.count, tuple(self.failed.shown)
        whole.note_idle(self.order)
        whole.phases, whole.gaps = self.phases, self.compacted.gaps
        whole.phases.handle = written_s - self._begun_s - self.phases.read
        whole.phases.write = time.perf_counter() - written_s
        whole.others = tuple(others)
        return whole

    def report(self) -> None:
        """Report the progress of all tasks."""
        self._work.report(self.unit.name, self._records() - self._taken, self._of)

    def _records(self) -> int:
        return sum(task.totals.records for task in self.tasks)


class _TaskSink(Sink):
    """Takes the rows and the outputs, with their marks, of one partition's task, and makes its result."""

    def __init__(self, run: _Run, at: int, number: int, begun: Beginning) -> None:
        self._run, self._at, self._number, self._begun = run, at, number, begun
        self._letters = run.job.letters_of(number)
        self._again = FailedAgain(run.plan, self._letters)
        self._store: RowStore = MemoryStore()
        if run.job.request.execution.store == "rocks":
            identity = StateIdentity(run.plan.app, number)
            self._store = RocksStore(run.folder / str(number), identity, run.memory)
            run.closing.callback(self._store.close)
        super().__init__(self._store, CommitPolicy(entries=None, moved=_COMMIT_EVERY))
        self.task = self._task()
        self._frames: OutputFrames | None = None
        if run.job.request.to.outputs != "none":
            self._frames = OutputFrames(run.folder / f"outputs-{number}")
            run.closing.callback(self._frames.close)
        self._marking = Marking(self.task) if marks_wanted(run.job) else None

    def _task(self) -> Task:
        job, plan, begun, number = self._run.job, self._run.plan, self._begun, self._number
        request, failed = job.request, self._run.failed
        keys = named_keys(plan, request.keys).keys if request.keys else None
        begun.load(self._store, rows_of_keys(plan, keys))
        watch = Watch(None, keys, None if request.failures.on_error == "stop" else failed)
        task = Task(
            plan,
            number,
            self._store,
            begun.cut,
            lineage=begun.lineage,
            positions=begun.positions,
            settings=task_settings(),
            watch=watch,
        )
        task.follow(skips_of(plan, number, self._letters), FOREVER)
        return task

    def on_turn(self, task: Task, /) -> None:
        """See ``Sink.on_turn``."""
        if self._marking is not None and self._marking.is_due():
            self._emit(task, marked=True)
        elif self._run.order.waiting(self._at) >= _OUTPUTS_AT_ONCE:
            self._emit(task)

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        self._emit(task)
        super().commit(task)
        self._run.report()

    def _emit(self, task: Task, *, marked: bool = False) -> None:
        outputs = self._run.order.outputs(self._at)
        self._again.look(outputs)
        if self._frames is not None:
            first = task.totals.outputs - len(outputs)
            self._frames.append(first, outputs, mark_of(task) if marked else None)

    def result(self) -> UnitResult:
        """Write the rows and outputs of the task, and return its result."""
        run, store, number = self._run, self._store, self._number
        job = run.job
        result = UnitResult(unit=run.unit.name, attempt=run.attempt, partition=number)
        assert store.cut is not None
        result.cut = one_commit(store.cut, self._begun.cut)
        result.totals = self.task.totals
        result.handled = self._handled(store.cut)
        result.schema = store.get(rows.SCHEMA_ROW) or b""
        write_rows(job, result, store.rows())
        if self._frames is not None:
            if self._marking is not None:
                self._emit(self.task, marked=True)
            self._frames.close()
            write_frames(job, result, frames(run.folder / f"outputs-{number}"))
        return result

    def _handled(self, cut: bytes) -> dict[str, list[int]]:
        """The failed records that are handled in the state of the task, by input."""
        if self._run.job.request.keys:
            return by_input(self._begun.handled)
        base = self._begun.decoded
        before = {} if base is None else base.positions
        return by_input(self._begun.handled | self._again.handled(before, tape.decode_cut(cut).positions))


def past_of(
    job: Job, past: HistorySource, number: int, phases: Phases, compacted: CompactedInputs
) -> PartitionHistory:
    """The history that the task of a partition has to read. The time of reading is added to ``phases``, and gaps to
    ``compacted``.
    """
    plan = past.plan
    ends = {one.name: job.ends[one.name][number] for one in plan.inputs if one.name in job.ends}
    own = own_inputs(plan) if job.together else {}
    published = dict(_published(past, number, {name: end for name, end in ends.items() if name not in own}))
    ends |= {name: 0 for name in own if name not in ends}
    read, record_origin = compacted.counting(past.source(number)), written_by_others
    if own:
        read, record_origin = _own_source(job, past, number, read)
    return PartitionHistory(phases.reading(read), ends, published, record_origin)


def _own_source(
    job: Job, past: HistorySource, number: int, read: Source
) -> tuple[Source, Callable[[str, InputRecord], RecordOrigin]]:
    """The records of a partition, and a function for the origin of a record in the app's own inputs.

    If the rebuild continues from a snapshot, records that were in flight to a task then count as written by others, because
    no task sends them again. Without one, a topic that no other app writes is not read. A redriven record counts only if its
    original is before the snapshot or in another partition: otherwise the original is sent, or read, in this rebuild.
    """
    plan = past.plan
    app, inputs = plan.app.encode(), own_inputs(plan)
    internal = {name for name, one in inputs.items() if is_own(name, plan.app) or one.is_inbox}
    begins: Mapping[str, int] = {}
    kept: dict[str, int] = {}
    sent: dict[int, int] = {}
    if (asked := asked_snapshot(job)) is not None:
        kept = {name: of[number] for name, of in asked.manifest.ends.items() if name in inputs}
        cuts = {one.partition: tape.decode_cut(one.cut) for one in asked.manifest.tasks if one.cut}
        begins = cuts[number].positions if number in cuts else {}
        sent = {
            one.partition: cuts[one.partition].totals.outputs if one.cut else 0
            for one in asked.manifest.tasks
            if one.waiting is not None  # see ``in_flight``: not all records below the ends were sent by then
        }

    def known(name: str, start: int, stop: int) -> Sequence[InputRecord]:
        if asked is None and name in internal:
            return ()
        return read(name, start, stop) if start < stop else ()

    def record_origin(name: str, record: InputRecord) -> RecordOrigin:
        sender, in_flight = origin_of(record, app), record.offset < kept.get(name, 0)
        if redriven_ids(record.headers, plan.dead_letters_topic):
            original = redriven_of(record.headers)[-1].origin
            if original is not None and original[0] == number and original[1] >= begins.get(name, 0):
                return "sent"
            return "others" if in_flight else "redriven"
        if in_flight:
            later = sender is not None and sender[0] in sent and sender[1] >= sent[sender[0]]
            return "sent" if later else "others"
        return "others" if sender is None else "sent"

    return known, record_origin


def _published(
    past: HistorySource, number: int, ends: dict[str, int]
) -> Iterator[tuple[str, list[tuple[int, int | None]]]]:
    """By source, the published watermarks of its writers, by position; None: the writers hold no reader back."""
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
    """The cut with everything counted as one commit: the number of commits must not affect the result.

    It is no commit of the service. Its identity chains to that of ``base``, and its nonce is the content of the cut, so equal
    rebuilds give equal bytes.
    """
    decoded = tape.decode_cut(cut)
    start = None if base is None else tape.decode_cut(base)
    number, before = (0, b"") if start is None else (start.tape, start.identity)
    decoded.tape, decoded.identity = number + 1, b""
    decoded.identity = tape.identity_of(before, tape.encode(decoded), number)
    return tape.encode(decoded)


def _delivered(_name: str, _partition: int, _record: InputRecord) -> None:
    """Do nothing: delivered records are not kept."""
