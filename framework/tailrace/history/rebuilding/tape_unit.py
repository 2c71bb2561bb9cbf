"""The unit that replays one partition along its tape, and writes its part of the snapshot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.engine import tape
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.replay import Replay, Source
from tailrace.core.engine.task import CommitBatch, Task
from tailrace.core.errors import BadRecordError, ReplayDivergedError, TailraceError
from tailrace.core.records import InputRecord
from tailrace.history.reading.beginnings import rows_of_keys
from tailrace.history.reading.driving import Step, TapeSink, other_version, replay_of
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.failures import STOP_HINT, Failed
from tailrace.history.rebuilding.following import Follower, Followers
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import Frame, write_outputs
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.recorded_rows import compare_rows
from tailrace.history.rebuilding.recorded_sends import Sends, compares_sends, whole
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.results import RowComparison, StateFiles, TaskResult, UnitResult
from tailrace.history.rebuilding.task_folder import TaskFolder, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import StateMemory


def run_task(
    unit: Unit,
    past: HistorySource,
    work: WorkFolder,
    attempt: str,
    watch: Watch | None = None,
    followers: Followers | None = None,
) -> UnitResult:
    """Run a task to its end, of the keys of a watch with its observer; ``followers``: it is kept there for the next round.
    Raises TailraceError: see ``Replay.take`` and ``Failed``.
    """
    result = UnitResult(unit=unit.name, attempt=attempt)
    if unit.job.targets[unit.partition].cut is None:
        result.tasks = (TaskResult(partition=unit.partition),)
        return result
    follower = None if followers is None else followers.taken(unit.job, unit.partition)
    kept = None
    if followers is not None:
        kept = follower.store if follower else followers.store(unit.job, unit.partition, attempt)
    with ExitStack() as failing:
        if kept is not None:
            failing.callback(kept.close)
        with TaskFolder(unit.job, unit.partition, work.tasks, attempt, StateMemory(), kept) as folder:
            run = _TaskRun(unit, past, work, result, folder, watch or Watch(), follower)
            run.run()
        failing.pop_all()
    if followers is not None:
        followers.keep(unit.job, unit.partition, run.follower)
    return result


def run_sends(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> UnitResult:
    """Run a task over its whole history, to compare what it sends to its app. Raises what ``run_task`` raises."""
    job, result = whole(unit.job), UnitResult(unit=unit.name, attempt=attempt)
    if job.targets[unit.partition].cut is None:
        return result
    with TaskFolder(job, unit.partition, work.tasks, attempt, StateMemory()) as folder:
        _SendsRun(replace(unit, job=job), past, work, result, folder, Watch()).run()
    return UnitResult(unit=unit.name, attempt=attempt, tasks=result.tasks)


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
        follower: Follower | None = None,
    ) -> None:
        self._unit, self._job, self._number = unit, unit.job, unit.partition
        self._past, self._plan, self._work = past, past.plan, work
        self._result, self._folder = result, folder
        self._target = self._job.targets[self._number]
        on_error = self._job.request.failures.on_error
        self._failed = Failed(on_error) if follower is None else follower.failed
        self._incremental = self._job.request.to.incremental
        keys = self._job.request.keys
        self._keys = named_keys(self._plan, keys).keys if keys else watch.keys
        self._observer = watch.observer
        self.settles = self._keys is None
        compares = self._keys is None and compares_sends(self._job, self._plan)
        self._sends = Sends(self._job, past, self._number) if compares else None
        self._more_outputs = 0
        """Number of outputs so far, less those of the first run up to the same commit."""
        assert self._target.cut is not None
        self._end = tape.decode_cut(self._target.cut)
        self.follower = self._begun() if follower is None else follower
        self._replay = self.follower.replay
        super().__init__(folder.store)

    def _begun(self) -> Follower:
        """The task, with the rows of its keys at its beginning."""
        begun = self._past.beginning(self._job, self._number)
        begun.load(self._folder.store, rows_of_keys(self._plan, self._keys))
        follower = Follower(self._folder.store, self._failed, self._source(), self._replay_of)
        if self._incremental and begun.snapshot is not None and begun.snapshot.manifest.id != self._job.base:
            follower.note(row for row, _ in self._folder.store.rows())
        return follower

    def _replay_of(self, source: Source) -> Replay:
        request = self._job.request
        return replay_of(
            self._plan,
            self._number,
            self._folder.store,
            self._folder.cut,
            source,
            lineage=self._end.lineage,
            watch=Watch(self._observer, self._keys, self._failed.decide),
            settings=task_settings(),
            limit=request.limit(self._number),
            lenient=self._job.lenient,
            any_environment=request.failures.any_environment,
            after_deleted=request.source.after_deleted,
        )

    def _source(self) -> Source:
        """A timed source of past records. ``after_deleted``: skip the records that the log has deleted."""
        read = self._result.work.phases.reading(self._past.source(self._number))
        if not self._job.request.source.after_deleted:
            return read
        log, starts = self._past.log, dict[str, int]()

        def remaining(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            if name not in starts:
                starts[name] = log.start_offset(name, self._number)
            start = max(start, starts[name])
            return read(name, start, stop) if start < stop else ()

        return remaining

    def run(self) -> None:
        """Replay the task, and write it into the snapshot."""
        begun_s = time.perf_counter()
        task, work = self._replay.task, self._result.work
        first = task.totals.records
        whole = self.follower.advance(self._past, self._end.tape, self, self._source())
        self._work.report(self._unit.name, task.totals.records, self._end.totals.records, now=True)
        work.replayed = task.totals.records - first
        if missing := self._replay.missing:
            self._result.notes.append(
                f"partition {self._number} is without {counted(missing, 'record')} that the log no longer has"
            )
        self._result.new_failures = self._failed.result()
        if self._sends is not None:
            self._sends.end()
        work.phases.handle = time.perf_counter() - begun_s - work.phases.read - work.phases.write
        begun_s = time.perf_counter()
        self._result.tasks = (self._written(whole=whole),)
        work.phases.write += time.perf_counter() - begun_s

    # --- outputs and state of the task

    def other_code(self, version: str, /) -> None:
        """See ``TapeSink.other_code``. Its results may differ, so accept differences from now on."""
        note = other_version(version, self._plan.version)
        if note not in self._result.notes:
            self._result.notes.append(note)
        self._replay.lenient = True

    def failed(self, task: Task, step: Step, error: TailraceError, /) -> None:
        """See ``TapeSink.failed``."""
        if isinstance(error, ReplayDivergedError):
            self._name_refused(task, step, error)

    def take(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.take``."""
        if step.whole:
            self._note_refused(task, step)
        self._failed.records.clear()
        begun_s = time.perf_counter()
        if self._folder.outputs is None and self._sends is None:
            task.discard_outputs()
        else:
            self._take_outputs(task, step)
        self._result.work.phases.write += time.perf_counter() - begun_s

    def _take_outputs(self, task: Task, step: Step) -> None:
        """Take the outputs, numbered by their own count: the task's counts are those of the first run."""
        record, before = step.record, step.before.outputs
        first = task.totals.outputs = before + self._more_outputs
        emitted = task.take_outputs()
        if self._sends is not None:
            self._sends.take(emitted, record.totals.outputs if step.whole else None)
        if self._folder.outputs is not None and emitted:
            self._folder.outputs.write(Frame(first, emitted))
        if step.whole and self._keys is None:
            self._more_outputs += before + len(emitted) - record.totals.outputs

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        begun_s = time.perf_counter()
        super().commit(task)
        self._result.work.phases.write += time.perf_counter() - begun_s

    def write(self, batch: CommitBatch, /) -> None:
        """See ``Sink.write``."""
        self._folder.write(batch)
        if self._incremental:
            self.follower.note(batch.rows)

    def step_done(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.step_done``."""
        self._result.work.commits += 1
        self._work.report(self._unit.name, task.totals.records, self._end.totals.records)
        if not step.whole:
            self._result.notes.append(f"partition {self._number} ends within commit {step.record.number}")

    # --- records that no longer decode

    def _note_refused(self, task: Task, step: Step) -> None:
        """Count the records of a commit that the first run did not refuse, or stop at them."""
        if self._job.request.failures.on_error == "stop":
            self._name_refused(task, step, None)
        new = task.totals.refused - max(step.before.refused, step.record.totals.refused)
        for one in self._failed.records[:new] if new > 0 else ():
            self._failed.note(one)

    def _name_refused(self, task: Task, step: Step, cause: BaseException | None) -> None:
        """Raise an error that names a record that no longer decodes: it makes the totals differ."""
        record, before = step.record, step.before.refused
        then, now = record.totals.refused - before, task.totals.refused - before
        if now <= then or not self._failed.records:
            return
        first = self._failed.records[0]
        places = ", ".join(f"{one.topic} {one.offset}" for one in self._failed.records[:5])
        raise BadRecordError(
            f"{first.what.rstrip('.')}; it was handled when it ran first"
            if then == 0
            else f"{now} records are refused in commit {record.number}, and {then} were when it ran first "
            f"({places})",
            reason=first.reason,
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
            hint=STOP_HINT,
        ) from cause

    # --- into the snapshot

    def _written(self, *, whole: bool) -> TaskResult:
        """Write the rows and the outputs. If the task is the service's at its last commit, compare both."""
        job, number, attempt, store = self._job, self._number, self._result.attempt, self._folder.store
        cut, schema = self._folder.cut, store.get(rows.SCHEMA_ROW) or b""
        of_service = whole and not self._replay.lenient and self._keys is None
        if of_service and cut != self._target.cut:
            raise ReplayDivergedError(
                f"the rebuilt cut of app {self._plan.app!r} partition {number} is not that of the changelog",
                hint="The code differs from the one that ran, or it depends on something that is not on the "
                "tape.",
            )
        if self._incremental:
            changed = [*self.follower.taken()]
            gone = [row for row, value in changed if value is None]
            present = ((row, value) for row, value in changed if value is not None)
            state = write_rows(job, number, attempt, present, schema, self._past, gone)
            return self._result_of(cut, None, state, RowComparison())
        state = write_rows(job, number, attempt, store.rows(), schema, self._past)
        position, compared = self._target.changelog_position if of_service else None, RowComparison()
        if position is not None:
            compared = compare_rows(
                self._past,
                number,
                position,
                state,
                lambda: (one for one in store.rows() if one[0][:1] == rows.STATE),
            )
        return self._result_of(cut, None if compared.different else position, state, compared)

    def _result_of(
        self, cut: bytes | None, position: int | None, state: StateFiles, compared: RowComparison
    ) -> TaskResult:
        job, number, attempt = self._job, self._number, self._result.attempt
        outputs = self._folder.finished_outputs()
        return TaskResult(
            partition=number,
            cut=cut,
            changelog_position=position,
            totals=self._replay.task.totals,
            state=state,
            rows=compared,
            outputs=() if outputs is None else (write_outputs(job, number, attempt, outputs),),
        )


class _SendsRun(_TaskRun):
    """Only compares what the task sends."""

    def _written(self, *, whole: bool) -> TaskResult:  # noqa: ARG002  # nothing is written
        return TaskResult(partition=self._number)
