"""The unit that replays one partition along its tape, and writes its part of the snapshot.

Theory. The state of the task is kept in the work folder and written at commits of the tape, by time, with the task's cut
and the length of its outputs in one batch. A later attempt continues from there: a killed attempt loses only its work
since that commit. Two attempts at once do not share a folder: an attempt that finds the folder locked uses a folder of its
own and starts from the beginning. Its result is the same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.engine import tape
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.replay import Replay, Source
from tailrace.core.engine.task import CommitBatch, Task
from tailrace.core.errors import (
    BadRecordError,
    CorruptStateError,
    ReplayDivergedError,
    StateInUseError,
    TailraceError,
)
from tailrace.core.records import InputRecord
from tailrace.history.reading.beginnings import rows_of_keys
from tailrace.history.reading.driving import (
    CommitPolicy,
    Step,
    TapeSink,
    drive_along_tape,
    other_version,
    replay_of,
)
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.failures import Failed
from tailrace.history.rebuilding.job import Unit, UnitResult
from tailrace.history.rebuilding.output_files import OutputFrames, frames, is_whole
from tailrace.history.rebuilding.output_watermarks import mark_of, marks_wanted
from tailrace.history.rebuilding.own_rows import check_own
from tailrace.history.rebuilding.own_sends import Chains, Sends, compares_sends
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.unit_files import messages_of, write_frames, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut

RowStore: TypeAlias = RocksStore | MemoryStore

_KEPT_ROW = rows.KEEP + b"rebuild"
"""One of the task's own rows, so it is not part of any snapshot."""


class _Kept(msgspec.Struct):
    """Data that is stored with the state of a task: the failures so far, and the digests of its sends."""

    failed: int = 0
    shown: list[str] = []
    more_outputs: int = 0
    missing: int = 0
    sends: Chains = msgspec.field(default_factory=Chains)


class TaskRun(TapeSink):
    """One attempt at the task of a partition."""

    def __init__(self, unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> None:
        self._unit = unit
        self._job = job = unit.job
        self._past = past
        self._plan = past.plan
        self._work = work
        self._number = unit.partition
        self._target = next(one for one in job.targets if one.partition == unit.partition)
        self._own: Path | None = None
        self._failed = Failed(job.request.failures.on_error)
        self._lenient = job.lenient
        self._sends = Sends(self._plan) if compares_sends(job, self._plan) else None
        self._more_outputs = 0
        """Number of outputs so far, less those of the first run up to the same commit."""
        keys = job.request.keys
        self._keys = named_keys(self._plan, keys).keys if keys else None
        self._result = UnitResult(unit=unit.name, attempt=attempt, partition=unit.partition)
        self.settles = self._keys is None
        self._outputs: OutputFrames | None = None
        self._replay: Replay | None = None
        self._missing = 0
        """Number of records that earlier attempts had to leave out."""
        self._of = 0
        self._folder, self._store = self._open()
        super().__init__(self._store, CommitPolicy.by_time())

    def run(self) -> UnitResult:
        """Run the task to its end.

        Raises:
            TailraceError: See ``Replay.take`` and ``Failed``.
        """
        begun_s = time.perf_counter()
        try:
            self._go()
            if self._sends is not None:
                self._sends.fill(self._result, self._job, self._past, self._number)
            phases = self._result.phases
            phases.handle = time.perf_counter() - begun_s - phases.read - phases.write
            begun_s = time.perf_counter()
            self._write()
            phases.write += time.perf_counter() - begun_s
        finally:
            if self._outputs is not None:
                self._outputs.close()
            self._store.close()
            if self._own is not None:
                shutil.rmtree(self._own, ignore_errors=True)
        return self._result

    # --- the position of the task

    def _open(self) -> tuple[Path, RowStore]:
        """The folder of the task and its store: those of an earlier attempt, if they can be continued."""
        folder, request = self._work.tasks / str(self._number), self._job.request
        if request.execution.store == "memory":
            folder = self._own = self._work.tasks / f"{self._number}-{self._result.attempt}"
            folder.mkdir(parents=True)
            return folder, MemoryStore()
        identity, memory = StateIdentity(self._plan.app, self._number), StateMemory()
        try:
            store = RocksStore(folder / "state", identity, memory)
        except StateInUseError:
            folder = self._own = self._work.tasks / f"{self._number}-{self._result.attempt}"
            return folder, RocksStore(folder / "state", identity, memory)
        except CorruptStateError:  # a power cut has damaged what an earlier attempt left
            shutil.rmtree(folder)
            return folder, RocksStore(folder / "state", identity, memory)
        stands = _stands(store)
        if stands is None or not is_whole(folder / "outputs", stands.changelog_position):
            store.close()
            shutil.rmtree(folder)
            store = RocksStore(folder / "state", identity, memory)
        return folder, store

    def _begin(self) -> StoreCut:
        """The cut to continue from: that of the store, or of the task's beginning."""
        stands = _stands(self._store)
        if stands is not None and stands.core is not None:
            self._recall(self._store.get(_KEPT_ROW))
            return stands
        begun = self._past.beginning(self._job, self._number)
        return begun.load(self._store, rows_of_keys(self._plan, self._keys))

    # --- along the tape

    def _go(self) -> None:
        job, target, result = self._job, self._target, self._result
        if target.cut is None:
            return
        stands = self._begin()
        if job.request.to.outputs != "none":
            self._outputs = OutputFrames(self._folder / "outputs", stands.changelog_position)
        end = tape.decode_cut(target.cut)
        self._of = end.totals.records
        request = job.request
        self._replay = replay_of(
            self._plan,
            self._number,
            self._store,
            stands.core,
            self._source(),
            lineage=end.lineage,
            watch=Watch(None, self._keys, self._failed),
            settings=task_settings(),
            limit=request.limit(self._number),
            lenient=self._lenient,
            any_environment=request.failures.any_environment,
            after_deleted=request.source.after_deleted,
        )
        self._replay.missing = self._missing
        task = self._replay.task
        first = task.totals.records
        whole = drive_along_tape(self._replay, self._past.tapes(self._number, end.tape), end.tape, self)
        self._work.report(self._unit.name, task.totals.records, self._of, now=True)
        result.taken = task.totals.records - first
        if missing := self._replay.missing:
            result.notes += (
                f"partition {self._number} is without {counted(missing, 'record')} that the log no longer has",
            )
        result.cut = _core(self._store)
        result.totals = task.totals
        result.failed_here, result.dead_letters = self._failed.count, tuple(self._failed.shown)
        if whole and not self._lenient and self._keys is None and result.cut != target.cut:
            raise ReplayDivergedError(
                f"the rebuilt cut of app {self._plan.app!r} partition {self._number} is not that of the changelog",
                hint="The code differs from the one that ran, or it depends on something that is not on the tape.",
            )
        if whole and self._keys is None and not self._lenient:
            result.changelog_position = target.changelog_position  # cleared by ``check_own`` if rows differ

    def _source(self) -> Source:
        """A timed source of past records. With ``after_deleted`` it skips the records that the log has deleted."""
        read = self._result.phases.reading(self._past.source(self._number))
        if not self._job.request.source.after_deleted:
            return read
        log, starts = self._past.log, dict[str, int]()

        def left(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            if name not in starts:
                starts[name] = log.start_offset(name, self._number)
            start = max(start, starts[name])
            return read(name, start, stop) if start < stop else ()

        return left

    # --- outputs and state of the task

    def other_code(self, version: str, /) -> None:
        """See ``TapeSink.other_code``. That code may have had other results, so differences are accepted from now on."""
        said = other_version(version, self._plan.version)
        self._result.notes += (said,) if said not in self._result.notes else ()
        assert self._replay is not None
        self._lenient = self._replay.lenient = True

    def failed(self, task: Task, step: Step, error: TailraceError, /) -> None:
        """See ``TapeSink.failed``."""
        if isinstance(error, ReplayDivergedError):
            self._name_refused(task, step, error)

    def take(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.take``."""
        record, before, whole, _ = step
        if whole:
            if self._job.request.failures.on_error == "stop":
                self._name_refused(task, step, None)
            new = task.totals.refused - max(before.refused, record.totals.refused)
            for one in self._failed.records[:new] if new > 0 else ():
                self._failed.note(one)
        self._failed.records.clear()
        begun_s = time.perf_counter()
        if self._outputs is None and self._sends is None:
            task.discard_outputs()
        else:
            mark = mark_of(task, record) if marks_wanted(self._job) else None
            # The task's counts are those of the first run; the outputs written here are numbered by their own count.
            first = task.totals.outputs = before.outputs + self._more_outputs
            emitted = task.take_outputs()
            if self._sends is not None:
                self._sends.take(emitted)
            if self._outputs is not None:
                self._outputs.append(first, emitted, mark)
            if whole and self._keys is None:
                self._more_outputs += before.outputs + len(emitted) - record.totals.outputs
        self._result.phases.write += time.perf_counter() - begun_s

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        begun_s = time.perf_counter()
        super().commit(task)
        self._result.phases.write += time.perf_counter() - begun_s

    def write(self, batch: CommitBatch, /) -> None:
        """See ``Sink.write``. A later attempt continues after this commit."""
        length = 0 if self._outputs is None else self._outputs.length
        rows_kept = batch.rows | batch.index_rows | {_KEPT_ROW: self._remembered()}
        self._store.write(rows_kept, StoreCut(FORMAT, length, 0, batch.cut).encode())

    def step_done(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.step_done``."""
        self._result.commits += 1
        self._work.report(self._unit.name, task.totals.records, self._of)
        if not step.whole:
            self._result.notes += (f"partition {self._number} ends within commit {step.record.number}",)

    def _remembered(self) -> bytes:
        """The data, besides the state, that a later attempt needs to continue the task."""
        sends = Chains() if self._sends is None else self._sends.chains
        missing = 0 if self._replay is None else self._replay.missing
        kept = _Kept(self._failed.count, self._failed.shown, self._more_outputs, missing, sends)
        return msgspec.msgpack.encode(kept)

    def _recall(self, data: bytes | None) -> None:
        kept = _Kept() if data is None else msgspec.msgpack.decode(data, type=_Kept)
        self._failed.count, self._failed.shown = kept.failed, kept.shown
        self._more_outputs, self._missing = kept.more_outputs, kept.missing
        if self._sends is not None:
            self._sends.chains = kept.sends

    def _name_refused(self, task: Task, step: Step, cause: Exception | None) -> None:
        """Raise an error that names a record that no longer decodes: different totals are only its consequence."""
        record, before = step.record, step.before.refused
        then, now = record.totals.refused - before, task.totals.refused - before
        if now <= then or not self._failed.records:
            return
        first = self._failed.records[0]
        places = ", ".join(f"{one.topic} {one.offset}" for one in self._failed.records[:5])
        raise BadRecordError(
            f"{first.what.rstrip('.')}; it was handled when it ran first"
            if then == 0
            else f"{now} records are refused in commit {record.number}, and {then} were when it ran first ({places})",
            reason=first.reason,
            topic=first.topic,
            partition=first.partition,
            offset=first.offset,
            hint=first.hint,
        ) from cause

    # --- into the snapshot

    def _write(self) -> None:
        result, job, store = self._result, self._job, self._store
        if result.cut is None:
            return
        result.schema = store.get(rows.SCHEMA_ROW) or b""
        write_rows(job, result, store.rows(), messages_of(job, self._past, self._number, result))
        check_own(result, self._past, lambda: (one for one in store.rows() if one[0][:1] == rows.STATE))
        if self._outputs is not None:
            self._outputs.close()
            write_frames(job, result, frames(self._folder / "outputs"))


def _stands(store: RowStore) -> StoreCut | None:
    """The cut of a store that an earlier attempt has left. None: it holds only a part of a base, and cannot be used."""
    if store.cut is None:
        return StoreCut(FORMAT, 0, 0, None)
    cut = decode_store_cut(store.cut)
    return None if cut.changelog_position < 0 else cut


def _core(store: RowStore) -> bytes | None:
    return None if store.cut is None else decode_store_cut(store.cut).core
