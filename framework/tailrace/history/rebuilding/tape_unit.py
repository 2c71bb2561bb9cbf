"""The unit that takes one partition along its tape, as it ran, and writes its part of the snapshot.

Theory. The state of the task is kept in the work folder and written at commits of the tape: every half second, or, where
writing takes longer than a twentieth of that, so seldom that it is a twentieth of the time; with the
task's cut and the length of its outputs, in one batch. Whoever finds it goes on from there: a killed attempt has lost what it did since that
commit, and nothing else. Two attempts at once do not share a folder: who finds it held takes one of its own, begins anew,
and is as right as the other.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Replay, Source
from tailrace.core.engine.task import Task, TaskSettings
from tailrace.core.errors import BadRecordError, ReplayDivergedError, StateInUseError
from tailrace.core.records import InputRecord
from tailrace.history.app_history import stretch
from tailrace.history.named_keys import named_keys
from tailrace.history.rebuilding.failures import Failed, RebuildWatch
from tailrace.history.rebuilding.job import Job, Unit, UnitResult
from tailrace.history.rebuilding.origins import load, origin_of_task
from tailrace.history.rebuilding.output_files import (
    Marked,
    OutputFrames,
    frames,
    is_whole,
    outputs_folder,
    write_outputs,
)
from tailrace.history.rebuilding.output_watermarks import encode_marks, mark_of, marks_wanted
from tailrace.history.rebuilding.own_rows import OTHER_CODE, RETRIED, check_own
from tailrace.history.rebuilding.own_sends import Chains, Sends, compares_sends
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.retrying import Retrying, RetryProgress, RetryWatch
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.processes.environment import timezones_version
from tailrace.state import MemoryStore, RocksStore, StateIdentity, StateMemory
from tailrace.state.snapshots import write_task
from tailrace.state.store_cut import FORMAT, StoreCut, decode_store_cut

RowStore: TypeAlias = RocksStore | MemoryStore

_KEPT_EVERY_S = 0.5
_KEPT_IN_S = _KEPT_EVERY_S / 20
"""Where writing takes longer than this, it is done less often. Of keys that come again and again, less is then written."""
_KEPT_ROW = rows.KEEP + b"rebuild"
"""One of the task's own rows, so it goes into no snapshot."""
_KEPT_AT_MOST = 200_000
"""Instances and collections touched; what is not kept yet is in memory."""


class _Kept(msgspec.Struct):
    """What is kept with the state of a task, besides the state: what has failed so far, and what was run again."""

    failed: int = 0
    shown: list[str] = []
    progress: RetryProgress = msgspec.field(default_factory=RetryProgress)
    more_outputs: int = 0
    sends: Chains = msgspec.field(default_factory=Chains)


class TaskRun:
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
        self._failed = Failed()
        self._retrying = (
            Retrying(job.letters_of(unit.partition)) if job.request.failures.retry_failed else None
        )
        self._lenient = job.lenient
        self._other_code = False
        self._sends = Sends(self._plan) if compares_sends(job, self._plan) else None
        self._more_outputs = 0
        """How many more outputs there are than the first run had by then."""
        self._kept_s = time.perf_counter()
        self._keep_after_s = _KEPT_EVERY_S
        keys = job.request.keys
        self._keys = named_keys(self._plan, keys).keys if keys else None
        self._result = UnitResult(unit=unit.name, attempt=attempt, partition=unit.partition)
        self._outputs: OutputFrames | None = None

    def run(self) -> UnitResult:
        """Run it to its end.

        Raises:
            TailraceError: What stands in its way; see ``Replay.take`` and ``RebuildWatch``.
        """
        begun_s = time.perf_counter()
        folder, store = self._open()
        try:
            self._go(folder, store)
            if self._sends is not None:
                self._sends.fill(self._result, self._job, self._past, self._number)
            phases = self._result.phases
            phases.handle = time.perf_counter() - begun_s - phases.read - phases.write
            begun_s = time.perf_counter()
            self._write(folder, store)
            phases.write += time.perf_counter() - begun_s
        finally:
            if self._outputs is not None:
                self._outputs.close()
            store.close()
            if self._own is not None:
                shutil.rmtree(self._own, ignore_errors=True)
        return self._result

    # --- where it stands

    def _open(self) -> tuple[Path, RowStore]:
        """The folder of the task and its store: what an earlier attempt has left, if it may be gone on with."""
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
        stands = _stands(store)
        if stands is None or not is_whole(folder / "outputs", stands.changelog_position):
            store.close()
            shutil.rmtree(folder)
            store = RocksStore(folder / "state", identity, memory)
        return folder, store

    def _begin(self, store: RowStore) -> StoreCut:
        """The cut to go on from: that of the store, or of what the task starts from."""
        stands = _stands(store)
        if stands is not None and stands.core is not None:
            self._recall(store.get(_KEPT_ROW))
            return stands
        origin = origin_of_task(self._job, self._past, self._number)
        if self._retrying is not None:
            self._retrying.begin_with(origin, self._number)
        return StoreCut(FORMAT, 0, 0, None) if origin is None else load(origin, self._number, store)

    # --- along the tape

    def _go(self, folder: Path, store: RowStore) -> None:
        job, target, result = self._job, self._target, self._result
        if target.cut is None:
            return
        stands = self._begin(store)
        if job.request.to.outputs != "none":
            self._outputs = OutputFrames(folder / "outputs", stands.changelog_position)
        end = tape.decode_cut(target.cut)
        task = self._task(store, stands.core, end.lineage)
        replay = Replay(
            task,
            self._source(),
            limit=job.request.limit(self._number),
            some_keys=self._keys is not None,
            lenient=self._lenient,
            any_environment=job.request.failures.any_environment,
        )
        first, of = task.totals.records, end.totals.records
        begun_at = task.tape_number
        whole = True
        for record in self._tapes(replay, begun_at, end.tape):
            whole = self._commit(replay, store, record, last=record.number + 1 == end.tape)
            result.commits += 1
            self._work.report(self._unit.name, task.totals.records, of)
            if not whole:
                result.notes += (f"partition {self._number} ends within commit {record.number}",)
                break
        if whole and task.tape_number != end.tape:
            raise ReplayDivergedError(
                f"the tape of app {self._plan.app!r} partition {self._number} ends at record {task.tape_number}, "
                f"its last commit was number {end.tape - 1}",
                hint="A part of the tape is missing: a rebuild along the tape needs all of it. "
                "Without it, rebuild with --order canonical.",
            )
        self._work.report(self._unit.name, task.totals.records, of, now=True)
        result.taken = task.totals.records - first
        result.cut = _core(store)
        result.totals = task.totals
        result.failed_here, result.dead_letters = self._failed.count, tuple(self._failed.shown)
        if self._retrying is not None:
            self._retrying.fill(result)
        if whole and not self._lenient and self._keys is None and result.cut != target.cut:
            raise ReplayDivergedError(
                f"the rebuilt cut of app {self._plan.app!r} partition {self._number} is not that of the changelog",
                hint="The code differs from the one that ran, or it depends on something that is not on the tape.",
            )
        if whole and self._keys is None and (not self._lenient or self._retries_alone(target.cut)):
            result.changelog_position = target.changelog_position  # if these are its rows: see ``check_own``

    def _retries_alone(self, cut: bytes) -> bool:
        """Whether nothing but what was run again can make a difference to the service's rows."""
        request = self._job.request
        lenient = request.failures.lenient or request.source.after_deleted or self._other_code
        return self._retrying is not None and not (lenient or self._failed.count) and self._result.cut == cut

    def _task(self, store: RowStore, cut: bytes | None, lineage: bytes) -> Task:
        request = self._job.request
        variant = request.execution.variant
        settings = TaskSettings(
            cache_bytes=variant.cache_bytes,
            timers_in_memory=variant.timers_in_memory,
            timezones=timezones_version(),
            reload=variant.reload,
        )
        watch = RebuildWatch(None, self._keys, request.failures.on_error, self._failed)
        if self._retrying is not None:
            watch = RetryWatch(None, self._keys, request.failures.on_error, self._failed, self._retrying)
        return Task(
            self._plan,
            self._number,
            store,
            cut,
            lineage=lineage,
            settings=settings,
            replaying=True,
            watch=watch,
        )

    def _tapes(self, replay: Replay, begin: int, stop: int) -> Iterator[tape.TapeRecord]:
        """The tape from ``begin`` on; what its first records say of inputs and versions holds for the later ones."""
        phases, tapes = self._result.phases, self._past.tapes(self._number, stop)
        before = self._result.notes, self._lenient, replay.lenient, self._other_code
        while True:
            begun_s = time.perf_counter()
            record = next(tapes, None)
            phases.read += time.perf_counter() - begun_s
            if record is None:
                return
            if record.base is not None:  # whoever ran what came before it, nothing of that is left
                self._result.notes, self._lenient, replay.lenient, self._other_code = before
            if record.version is not None and record.version != self._plan.version:
                said = f"some of it was run by version {record.version!r}; this is {self._plan.version!r}"
                self._result.notes += (said,) if said not in self._result.notes else ()
                # Other code may do other things: what it did then is no measure any more.
                self._lenient = replay.lenient = self._other_code = True
            if record.number >= begin:
                yield record
            elif record.inputs is not None:
                replay.follow_on(record)

    def _source(self) -> Source:
        """The records of the past, timed; where it may, it steps over what the log has deleted."""
        read, phases = self._past.source(self._number), self._result.phases
        log, number = self._past.log, self._number
        starts: dict[str, int] = {}

        def timed(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            begun_s = time.perf_counter()
            if self._job.request.source.after_deleted:
                if name not in starts:
                    starts[name] = log.start_offset(name, number)
                start = max(start, starts[name])
            found = read(name, start, stop) if start < stop else ()
            phases.read += time.perf_counter() - begun_s
            return found

        return timed

    def _commit(self, replay: Replay, store: RowStore, record: tape.TapeRecord, *, last: bool) -> bool:
        """One commit of the tape; into the store now and then, and the last. Whether it was taken in full."""
        task, phases = replay.task, self._result.phases
        refused, first = task.totals.refused, task.totals.outputs
        self._failed.refused.clear()
        try:
            whole = replay.take(record)
        except ReplayDivergedError as error:
            self._name_refused(refused, record, task, error)
            raise
        if whole and self._job.request.failures.on_error == "stop":
            self._name_refused(refused, record, task, None)
        new = task.totals.refused - max(refused, record.totals.refused) if whole else 0
        for one in self._failed.refused[:new] if new > 0 else ():
            self._failed.note(str(one).partition(one.hint)[0].strip())
        begun_s = time.perf_counter()
        if self._outputs is None and self._sends is None:
            task.discard_outputs()
        else:
            mark = mark_of(task, record) if marks_wanted(self._job) else None
            # The task counts as the first run did; what is written here is numbered by how much there is of it.
            task.totals.outputs = first + self._more_outputs
            emitted = task.take_outputs()
            if self._sends is not None:
                self._sends.take(emitted)
            if self._outputs is not None:
                self._outputs.append(first + self._more_outputs, emitted, mark)
            if whole and self._keys is None:
                self._more_outputs += first + len(emitted) - record.totals.outputs
        if whole and self._keys is None:
            replay.settle()
        if (
            whole
            and not last
            and begun_s - self._kept_s < self._keep_after_s
            and task.dirty_count < _KEPT_AT_MOST
        ):
            task.put_off()
        else:
            self._keep(task, store)
        phases.write += time.perf_counter() - begun_s
        return whole

    def _keep(self, task: Task, store: RowStore) -> None:
        """Write what has changed: from here on nothing before this has to be done again."""
        begun_s = time.perf_counter()
        batch = task.commit_batch()
        length = 0 if self._outputs is None else self._outputs.length
        rows_kept = batch.rows | batch.index_rows | {_KEPT_ROW: self._remembered()}
        store.write(rows_kept, StoreCut(FORMAT, length, 0, batch.cut).encode())
        task.committed()
        self._kept_s = time.perf_counter()
        self._keep_after_s = _KEPT_EVERY_S * max(1.0, (self._kept_s - begun_s) / _KEPT_IN_S)

    def _remembered(self) -> bytes:
        """What has to be known, besides the state, by who goes on with the task."""
        progress = RetryProgress() if self._retrying is None else self._retrying.progress
        sends = Chains() if self._sends is None else self._sends.chains
        kept = _Kept(self._failed.count, self._failed.shown, progress, self._more_outputs, sends)
        return msgspec.msgpack.encode(kept)

    def _recall(self, data: bytes | None) -> None:
        kept = _Kept() if data is None else msgspec.msgpack.decode(data, type=_Kept)
        self._failed.count, self._failed.shown = kept.failed, kept.shown
        self._more_outputs = kept.more_outputs
        if self._sends is not None:
            self._sends.chains = kept.sends
        if self._retrying is not None:
            self._retrying.progress = kept.progress

    def _name_refused(
        self, before: int, record: tape.TapeRecord, task: Task, cause: Exception | None
    ) -> None:
        """Where a record no longer decodes, its offset is what has to be known; that totals differ only follows."""
        then, now = record.totals.refused - before, task.totals.refused - before
        if now <= then or not self._failed.refused:
            return
        first = self._failed.refused[0]
        places = ", ".join(f"{one.topic} {one.offset}" for one in self._failed.refused[:5])
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

    def _write(self, folder: Path, store: RowStore) -> None:
        result, job = self._result, self._job
        if result.cut is None:
            return
        counted = Counted(store.rows(), named=bool(job.request.keys))
        result.schema = store.get(rows.SCHEMA_ROW) or b""
        result.files = write_task(
            job.folder,
            self._number,
            result.attempt,
            iter(counted),
            messages=messages_of(job, self._past, self._number, result.cut),
        )
        result.rows, result.keys, result.found = counted.rows, counted.keys, counted.found
        retried = self._retrying is not None and self._retrying.progress.counts.run
        why = RETRIED if retried else OTHER_CODE
        check_own(result, self._past, lambda: (one for one in store.rows() if one[0][:1] == rows.STATE), why)
        if self._outputs is not None:
            self._outputs.close()
            made = Marked(frames(folder / "outputs"))
            result.outputs = (write_outputs(outputs_folder(job), self._number, result.attempt, made),)
            result.marks = encode_marks(made.marks)


def messages_of(job: Job, past: HistorySource, number: int, cut: bytes) -> Iterator[InputRecord]:
    """What had been sent to a task by the commit that a rebuild ends at, and it had not read at its own cut."""
    inbox = past.plan.inbox_topic
    if inbox is None or job.request.limited or job.request.keys:
        return
    start = tape.decode_cut(cut).positions.get(inbox, 0)
    stop = max(job.ends[inbox][number], start) if inbox in job.ends else start
    yield from stretch(past.source(number), inbox, start, stop)


class Counted:
    """Rows on their way, counted: how many, and of how many keys of actors; ``found``: which, if ``named``."""

    def __init__(self, source: Iterator[tuple[bytes, bytes]], *, named: bool = False) -> None:
        self._source, self._named = source, named
        self.rows = self.keys = 0
        self.found: list[bytes] = []

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        prefix, keys, count, state = b"\0", 0, 0, rows.STATE[0]
        for pair in self._source:
            row = pair[0]
            if row[0] == state:
                count += 1
                if not row.startswith(prefix):
                    prefix = rows.key_prefix(row)
                    keys += 1
                    if self._named:
                        self.found.append(rows.read_state_row(row).key)
            yield pair
        self.rows, self.keys = count, keys


def _stands(store: RowStore) -> StoreCut | None:
    """Where a store stands that an earlier attempt has left. None: it holds a part of a base, of no use."""
    if store.cut is None:
        return StoreCut(FORMAT, 0, 0, None)
    cut = decode_store_cut(store.cut)
    return None if cut.changelog_position < 0 else cut


def _core(store: RowStore) -> bytes | None:
    return None if store.cut is None else decode_store_cut(store.cut).core
