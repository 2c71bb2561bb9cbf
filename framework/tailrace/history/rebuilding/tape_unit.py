"""The unit that runs one partition along its tape, and writes its part of the snapshot.

Whatever the code, its results are those of the service, or the unit fails: each commit is compared with the tape (see
``core.engine.replay``), and at the service's last commit also the cut and all rows with the changelog. Of some keys, the rows are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import CommitBatch, Task
from tailrace.core.errors import ReplayDivergedError
from tailrace.history.comparing.replayed_state import without_added
from tailrace.history.reading.beginnings import rows_of_keys
from tailrace.history.reading.driving import Step, TapeSink, drive_along_tape, equal_versions, replay_of
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import Frame, write_outputs
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.recorded_rows import compare_rows
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.results import RowComparison, TaskResult, UnitResult
from tailrace.history.rebuilding.task_folder import TaskFolder, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import StateMemory


def run_task(
    unit: Unit, past: HistorySource, work: WorkFolder, attempt: str, watch: Watch | None = None
) -> UnitResult:
    """Run a task to its end, of the keys of a watch with its observer.
    Raises ReplayDivergedError: its results are not those of the service; and what ``Replay.take`` raises.
    """
    result = UnitResult(unit=unit.name, attempt=attempt)
    if unit.job.targets[unit.partition].cut is None:
        result.tasks = (TaskResult(partition=unit.partition),)
        return result
    with TaskFolder(unit.job, unit.partition, work.tasks, attempt, StateMemory()) as folder:
        _TaskRun(unit, past, work, result, folder, watch or Watch()).run()
    return result


class _TaskRun(TapeSink):
    """One attempt at the task of a partition."""

    def __init__(
        self,
        unit: Unit,
        past: HistorySource,
        work: WorkFolder,
        result: UnitResult,
        folder: TaskFolder,
        watch: Watch,
    ) -> None:
        self._unit, self._job, self._number = unit, unit.job, unit.partition
        self._past, self._plan, self._work = past, past.plan, work
        self._result, self._folder = result, folder
        self._target = self._job.targets[self._number]
        keys = self._job.request.keys
        self._keys = named_keys(self._plan, keys).keys if keys else watch.keys
        self._is_observed = watch.observer is not None
        assert self._target.cut is not None
        self._end = tape.decode_cut(self._target.cut)
        super().__init__(folder.store)
        self._replay = self._begun(watch)

    def _begun(self, watch: Watch) -> Replay:
        """The task, with the rows of its keys at its beginning."""
        request, past = self._job.request, self._past
        past.beginning(self._job, self._number).load(self._folder.store, rows_of_keys(self._plan, self._keys))
        return replay_of(
            self._plan,
            self._number,
            self._folder.store,
            self._folder.cut,
            self._result.work.phases.reading(past.source(self._number)),
            lineage=self._end.lineage,
            watch=Watch(watch.observer, self._keys),
            settings=task_settings(),
            limit=request.limit(self._number),
            any_environment=request.failures.any_environment,
        )

    def run(self) -> None:
        """Replay the task, and write it into the snapshot."""
        begun_s = time.perf_counter()
        task, work = self._replay.task, self._result.work
        first = task.totals.records
        tapes = self._past.tapes(self._number, self._end.tape)
        whole = drive_along_tape(self._replay, tapes, self._end.tape, self)
        self._work.report(self._unit.name, task.totals.records, self._end.totals.records, now=True)
        self._result.notes += equal_versions(self._replay)
        work.replayed = task.totals.records - first
        work.phases.handle = time.perf_counter() - begun_s - work.phases.read - work.phases.write
        begun_s = time.perf_counter()
        self._result.tasks = (self._written(whole=whole),)
        work.phases.write += time.perf_counter() - begun_s

    # --- outputs and state of the task

    def take(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.take``."""
        begun_s = time.perf_counter()
        if self._folder.outputs is None:
            task.discard_outputs()
        elif emitted := task.take_outputs():
            self._folder.outputs.write(Frame(step.before.outputs, emitted))
        self._result.work.phases.write += time.perf_counter() - begun_s

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        begun_s = time.perf_counter()
        super().commit(task)
        self._result.work.phases.write += time.perf_counter() - begun_s

    def write(self, batch: CommitBatch, /) -> None:
        """See ``Sink.write``."""
        self._folder.write(batch)

    def step_done(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.step_done``."""
        self._result.work.commits += 1
        self._work.report(self._unit.name, task.totals.records, self._end.totals.records)
        if not step.whole:
            self._result.notes.append(f"partition {self._number} ends within commit {step.record.number}")

    # --- into the snapshot

    def _written(self, *, whole: bool) -> TaskResult:
        """Write the rows and the outputs. At the service's last commit, compare with what it has stored."""
        job, number, attempt, store = self._job, self._number, self._result.attempt, self._folder.store
        cut, schema = self._folder.cut, store.get(rows.SCHEMA_ROW) or b""
        is_service = whole and self._keys is None
        is_same = cut == self._target.cut
        if is_service and not is_same and not self._has_added():
            raise ReplayDivergedError(
                f"the rebuilt cut of app {self._plan.app!r} partition {number} is not that of the changelog"
            )
        state = write_rows(job, number, attempt, store.rows(), schema, self._past)
        position, compared = self._target.changelog_position, RowComparison()
        if whole and position is not None and not self._is_observed:
            wanted = rows_of_keys(self._plan, self._keys)
            compared = compare_rows(self._past, number, position, state, self._rows, wanted)
        outputs = self._folder.finished_outputs()
        return TaskResult(
            partition=number,
            cut=cut,
            changelog_position=position if is_service and is_same and not compared.note else None,
            totals=self._replay.task.totals,
            state=state,
            rows=compared,
            outputs=() if outputs is None else (write_outputs(job, number, attempt, outputs),),
        )

    def _has_added(self) -> bool:
        """Whether the cut is that of the service but for inputs that were added since."""
        assert self._folder.cut is not None
        return without_added(tape.decode_cut(self._folder.cut), self._end.positions) == self._end

    def _rows(self) -> Iterator[tuple[bytes, bytes]]:
        return (one for one in self._folder.store.rows() if one[0][:1] == rows.STATE)
