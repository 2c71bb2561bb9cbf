"""The unit that replays history without a tape, in canonical order (defined in ``core.engine.canonical``).

There is one unit for each partition. An app that sends records to itself has one unit for all partitions
together, because the recorded ones are effects of the earlier code, not of the present one (see
``core.engine.delivery``). The unit does its work in one piece: an attempt after a kill begins from the start.
Its cut counts everything as one commit, so that the cut does not depend on the number of commits on the way.

A task without a past derives its lineage, the seed of its randomness, from its name: every rebuild draws the same
numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.input_lane import PartitionHistory
from tailrace.core.engine.intake import refill
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.beginnings import Beginning, rows_of_keys
from tailrace.history.reading.driving import CommitPolicy, Sink, drive
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.canonical_history import history_of
from tailrace.history.rebuilding.failures import Failed
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import Frame, write_outputs
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.results import TaskResult, UnitResult
from tailrace.history.rebuilding.task_folder import TaskFolder, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import StateMemory

_COMMIT_EVERY = 100_000
"""Records and timer firings between two commits."""
_REPORT_EVERY = 1_000
"""Turns of a task between two reports of progress."""
_OUTPUTS_AT_ONCE = 10_000
"""Most outputs held in memory."""


def run_canonical(
    unit: Unit, past: HistorySource, work: WorkFolder, attempt: str, watch: Watch | None = None
) -> UnitResult:
    """Replay the past of one partition, or of all partitions together; of the keys of a watch with its observer."""
    with ExitStack() as closing:
        return CanonicalRun(unit, past, work, attempt, closing, watch or Watch()).run()


class CanonicalRun:
    """The tasks of a unit, each with its sink, and their shared data."""

    def __init__(
        self,
        unit: Unit,
        past: HistorySource,
        work: WorkFolder,
        attempt: str,
        closing: ExitStack,
        watch: Watch,
    ) -> None:
        self.watch = watch
        self.unit, self.job, self.past, self.plan = unit, unit.job, past, past.plan
        self.settings, self.delivers = task_settings(), unit.job.delivers_sends and unit.kind != "round"
        self.attempt, self.work, self.closing = attempt, work, closing
        self._begun_s = time.perf_counter()
        self.failed, self.memory = Failed(self.job.request.failures.on_error), StateMemory()
        self.result = UnitResult(unit=unit.name, attempt=attempt)
        numbers = range(self.plan.partitions) if self.delivers else (unit.partition,)
        begun = {number: past.beginning(self.job, number) for number in numbers}
        self.own = own_inputs(self.plan) if self.job.delivers_sends else {}
        self.prepare(begun)
        self.sinks = [_TaskSink(self, at, *one) for at, one in enumerate(begun.items())]
        self.tasks = [one.task for one in self.sinks]
        self._records_before = self._records()
        pasts = [self.history(number) for number in numbers]
        outside = [{name: end for name, end in one.ends.items() if name not in self.own} for one in pasts]
        self._outside = [*outside[0]]
        self._begun_at = self._offsets()
        self._of = sum(sum(ends.values()) for ends in outside) - self._begun_at
        self.order = Canonical(
            self.tasks,
            pasts,
            deliver=_delivered if self.delivers else None,
            finish=self.job.finish,
            limit=self.job.request.limit(unit.partition),
            offsets=[self.job.request.until.of(number).offsets for number in numbers],
        )

    def run(self) -> UnitResult:
        """Run all tasks, and write them into the snapshot."""
        result = self.result
        drive(self.order.go(), self.tasks, self.sinks)
        self.work.report(self.unit.name, self._of, self._of, now=True)
        written_s = time.perf_counter()
        self.write(result)
        result.new_failures = self.failed.result()
        if any(task.totals.late for task in self.tasks):
            result.idle = tuple(self.order.became_idle)
        work = result.work
        work.replayed = self._records() - self._records_before
        work.phases.handle = written_s - self._begun_s - work.phases.read
        work.phases.write = time.perf_counter() - written_s
        return result

    def prepare(self, begun: dict[int, Beginning]) -> None:
        """Called before the tasks are made. A round changes the plan here."""

    def history(self, number: int) -> PartitionHistory:
        """What the task of a partition reads."""
        at = number if self.delivers else 0
        task, base = self.tasks[at], self.sinks[at].begun.cut
        return history_of(self.job, self.past, number, task, base, self.result.work.phases)

    def sent(self, task: Task, outputs: Sequence[Output]) -> None:
        """Called with all outputs."""

    def write(self, result: UnitResult) -> None:
        """Write what the tasks have come to."""
        result.tasks = tuple(sink.result() for sink in self.sinks)

    def report(self) -> None:
        """Report the progress of all tasks, by the offsets that they have passed in inputs from outside."""
        self.work.report(self.unit.name, self._offsets() - self._begun_at, self._of)

    def _offsets(self) -> int:
        return sum(task.positions[name] for task in self.tasks for name in self._outside)

    def _records(self) -> int:
        return sum(task.totals.records for task in self.tasks)


class _TaskSink(Sink):
    """Takes the rows and the outputs of one partition's task, and makes its result."""

    def __init__(self, run: CanonicalRun, at: int, number: int, begun: Beginning) -> None:
        self._run, self._at, self._number, self.begun = run, at, number, begun
        self.folder = run.closing.enter_context(
            TaskFolder(run.job, number, run.work.tasks, run.attempt, run.memory)
        )
        super().__init__(self.folder.store, CommitPolicy(entries=None, moved=_COMMIT_EVERY))
        self._turns = 0
        keys = run.job.request.keys
        self._keys = named_keys(run.plan, keys).keys if keys else run.watch.keys
        self.task = self._task()

    def _task(self) -> Task:
        job, plan, begun, number = self._run.job, self._run.plan, self.begun, self._number
        request, failed = job.request, self._run.failed
        # An app that sends to itself runs all keys, since any of them may send to those that are wanted.
        keys = None if job.delivers_sends else self._keys
        begun.load(self.store, rows_of_keys(plan, keys))
        watch = Watch(
            self._run.watch.observer, keys, None if request.failures.on_error == "stop" else failed.decide
        )
        task = Task(
            plan,
            number,
            self.store,
            begun.cut,
            lineage=begun.lineage,
            positions=begun.positions,
            settings=self._run.settings,
            watch=watch,
        )
        refill(task, self._run.past.source(number))
        task.event_clock_ms = job.clock_ms
        return task

    def on_turn(self, task: Task, /) -> None:
        """See ``Sink.on_turn``."""
        self._turns += 1
        if not self._turns % _REPORT_EVERY:
            self._run.report()
        if self._run.order.waiting(self._at) >= _OUTPUTS_AT_ONCE:
            self._emit(task)

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        self._emit(task)
        super().commit(task)
        self._run.report()

    def _emit(self, task: Task) -> None:
        outputs = self._run.order.outputs(self._at)
        self._run.sent(task, outputs)
        if self.folder.outputs is not None and outputs:
            self.folder.outputs.write(Frame(task.totals.outputs - len(outputs), outputs))

    def result(self) -> TaskResult:
        """Write the rows and outputs of the task, and return its result."""
        run, store, number = self._run, self.folder.store, self._number
        assert store.cut is not None
        wanted = rows_of_keys(run.plan, self._keys)
        found = store.rows() if self._keys is None else (one for one in store.rows() if wanted(one[0]))
        state = write_rows(run.job, number, run.attempt, found, store.get(rows.SCHEMA_ROW) or b"")
        outputs = self.folder.finished_outputs()
        return TaskResult(
            partition=number,
            cut=one_commit(store.cut, self.begun.cut),
            totals=self.task.totals,
            state=state,
            outputs=None if outputs is None else write_outputs(run.job, number, run.attempt, outputs),
        )


def one_commit(cut: bytes, base: bytes | None) -> bytes:
    """The cut with everything counted as one commit: the number of commits must not affect the result.

    It is no commit of the service. Its identity chains to that of ``base``, and its nonce is the content of
    the cut, so equal rebuilds give equal bytes.
    """
    decoded = tape.decode_cut(cut)
    start = None if base is None else tape.decode_cut(base)
    number, before = (0, b"") if start is None else (start.tape, start.identity)
    decoded.tape, decoded.identity = number + 1, b""
    decoded.identity = tape.identity_of(before, tape.encode(decoded), number)
    return tape.encode(decoded)


def _delivered(_name: str, _partition: int, _record: InputRecord) -> None:
    """Do nothing: delivered records are not kept."""
