"""Replay of an app: its state is rebuilt from the log along the tape, and compared with the result of the first run.

The replay compares, byte by byte:

    state       every row, with the rows of the folded changelog, and with a state folder if one is given
    the cut     positions, watermarks, idle inputs, counts
    outputs     topic, key, value, timestamp and headers of each, by the number that its task gave it

Partitions are replayed one after the other. The replay writes only to its own store. The service may be running meanwhile:
a partition is replayed up to its last commit at the moment when its replay begins.

A replay stops at the first difference, unless it compares: then it continues, so that it can report differences key by
key. Only a handler that fails, and did not fail before, ends the replay of its partition.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.observer import Observer, Watch
from tailrace.core.engine.replay import Limits, Replay
from tailrace.core.engine.task import CommitBatch, Task, TaskSettings
from tailrace.core.errors import BadRecordError, HandlerError, ReplayDivergedError, TailraceError
from tailrace.core.storage import Store
from tailrace.history.comparing.differences import Difference, Differences
from tailrace.history.comparing.outputs import OutputComparison
from tailrace.history.comparing.replayed_state import LiveState, check_index, compare_cuts, compare_state
from tailrace.history.reading.app_history import AppHistory, Committed
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.beginnings import rows_of_keys, taped_beginning
from tailrace.history.reading.commit_identity import standing
from tailrace.history.reading.driving import (
    CommitPolicy,
    Step,
    TapeSink,
    drive_along_tape,
    other_version,
    replay_of,
)
from tailrace.history.reading.end_offsets import (
    behind_last_commit,
    check_after_beginning,
    check_end_offsets,
    check_forwarded,
)
from tailrace.history.reading.replayable import ELSEWHERE, check_kept, until_when
from tailrace.history.reading.same_topics import check_history, check_same_topics, note_of_topics
from tailrace.log.interface import OneCommitLog
from tailrace.state import MemoryStore

LiveStates: TypeAlias = Callable[[int], Sequence[LiveState]]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of a replay."""

    partitions: Collection[int] | None = None
    """Partitions to replay; None: all."""
    keys: Collection[Any] | None = None
    """Keys to replay; None: all. Outputs of some keys are not compared, as outputs are numbered over all keys."""
    limits: Limits = field(default_factory=Limits)
    compare: bool = False
    """Compare state and outputs with those of the first run. State is compared only if the replay reaches the last commit."""
    any_environment: bool = False
    observer: Observer | None = None
    settings: TaskSettings = field(default_factory=TaskSettings)


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay: counts of what it has replayed, and the differences that it found."""

    partitions: int = 0
    commits: int = 0
    records: int = 0
    timers: int = 0
    """Timers fired and entries expired."""
    outputs: int = 0
    rows: int = 0
    """Rows of state compared."""
    for_others: int = 0
    """Records that were redriven for other apps, and skipped, as in the first run."""
    met: set[Any] = field(default_factory=set[Any])
    """If only some keys were replayed: the keys that had a record or a timer."""
    limit_reached: bool = False
    """A partition has stopped at its limit."""
    seconds: float = 0.0
    differences: Differences = field(default_factory=Differences)
    compared: list[str] = field(default_factory=list[str])
    """The states and outputs that the replay was compared with."""
    notes: list[str] = field(default_factory=list[str])
    """Remarks that help to understand the result."""

    def note(self, said: str) -> None:
        """Add a note, once."""
        if said not in self.notes:
            self.notes.append(said)


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """The progress of a replay."""

    partition: int
    commit: int
    commits: int
    """Number of commits of this partition."""
    records: int
    """Number of records of all partitions so far."""


def replay(
    plan: Plan,
    log: OneCommitLog,
    options: ReplayOptions | None = None,
    *,
    open_store: Callable[[int], Store] | None = None,
    live: LiveStates | None = None,
    on_progress: Callable[[ReplayStatus], None] | None = None,
) -> ReplayReport:
    """Replay an app. ``open_store`` opens an empty store for a partition, which is closed at its end (default: in memory).

    ``live`` returns states to compare a partition with, besides the changelog's; ``on_progress`` is called at every commit.

    Raises:
        ReplayDivergedError: A result differs, and the replay does not compare.
        EnvironmentMismatchError: Python, msgspec or tzdata are not those of the first run.
        InputsChangedError: The app has other inputs, or another number of partitions, than in the first run.
        OffsetGoneError: The log has lost records that the replay needs.
        LogUnavailableError: The log may have compacted the changelog while it was read to be compared.
        UnknownTopicError: The app has never run on this log.
        UsageError: The log does not have an offset of the limits.
        TopicReplacedError: An input or the tape was deleted and created again.
    """
    options = options or ReplayOptions()
    history = AppHistory(plan, log)
    topics = topics_of(plan, log)
    noted = note_of_topics(log, topics)
    check_history(plan.app, log, plan.inputs)
    check_end_offsets(plan, log, options.limits.offsets)
    report = ReplayReport()
    numbers = range(plan.partitions) if options.partitions is None else sorted(options.partitions)
    if options.limits.any:
        _check_limits(history, options.limits, numbers)
    begun_s = time.perf_counter()
    with seldom_collected():
        comparisons: dict[int, OutputComparison] = {}
        if options.compare and options.keys is None:
            # Read the cuts first: all outputs that belong to them are then in the log.
            cuts = {number: history.committed(number).cut for number in numbers}
            outputs_of, whole = history.emitted(numbers)
            for number, emitted in outputs_of.items():
                stop = _outputs_at(cuts[number])
                comparisons[number] = OutputComparison(plan, number, emitted, stop, whole=whole)
        for number in numbers:
            if options.compare and not options.limits.any:
                with log.compaction_paused([plan.changelog_topic]):
                    committed = history.committed(number, with_rows=True)
            else:
                committed = history.committed(number)
            store = MemoryStore() if open_store is None else open_store(number)
            try:
                states = live(number) if live is not None and options.compare else ()
                outputs = comparisons.get(number)
                _PartitionReplay(
                    history, number, committed, store, options, report, states, outputs, on_progress
                ).run()
            finally:
                store.close()
    check_same_topics(log, noted, topics)
    if options.compare:
        _say_what_was_compared(options, report)
    for note in until_when(plan, log):
        report.note(note)
    report.seconds = time.perf_counter() - begun_s
    return report


def _check_limits(history: AppHistory, limits: Limits, numbers: Collection[int]) -> None:
    """Refuse limits that the replay of these partitions could not keep, before it begins."""
    plan = history.plan
    found = {number: history.committed(number).cut for number in range(plan.partitions)}
    cuts = {number: tape.decode_cut(cut) for number, cut in found.items() if cut is not None}
    check_forwarded(plan, limits, cuts)
    for number in cuts.keys() & {*numbers}:
        if cuts[number].base:
            begun = taped_beginning(history, number, cuts[number])
            check_after_beginning(plan, limits, number, begun.snapshot, begun.decoded)


def _outputs_at(cut: bytes | None) -> int:
    return 0 if cut is None else tape.decode_cut(cut).totals.outputs


def _say_what_was_compared(options: ReplayOptions, report: ReplayReport) -> None:
    if options.limits.any:
        report.note("state is not compared: what it was where the replay stopped is not kept")
    if options.keys is not None:
        report.note("outputs are not compared: only those of all keys together are numbered")
    else:
        report.compared.append("outputs")


class _PartitionReplay(TapeSink):
    """The replay of one partition."""

    def __init__(
        self,
        history: AppHistory,
        number: int,
        committed: Committed,
        store: Store,
        options: ReplayOptions,
        report: ReplayReport,
        live: Sequence[LiveState],
        outputs: OutputComparison | None,
        on_progress: Callable[[ReplayStatus], None] | None,
    ) -> None:
        self._history = history
        self._plan = history.plan
        self._number = number
        self._options = options
        self._report = report
        self._cut = None if committed.cut is None else tape.decode_cut(committed.cut)
        self._live = list(live)
        if committed.rows is not None:
            self._live.append(LiveState("the changelog", committed.rows, committed.cut, indexed=False))
        super().__init__(store, CommitPolicy(at=frozenset(map(_tape_of, self._live))))
        self._outputs, self._on_progress = outputs, on_progress
        self._step: Step | None = None
        self._done = self._records_before = 0

    def run(self) -> None:
        """Replay the partition, compare it, and add it to the report."""
        report, cut, number = self._report, self._cut, self._number
        report.partitions += 1
        if cut is None:
            self._compare_state_at(0, None)
            return
        options, history = self._options, self._history
        for note in behind_last_commit(self._plan, options.limits, number, cut):
            report.note(note)
        watch = None
        if options.observer is not None or options.keys is not None:
            watch = Watch(options.observer, options.keys)
        self._live = [one for one in self._live if self._is_of_this_history(one)]
        begun = taped_beginning(history, number, cut)
        check_kept(history.log, number, begun.positions, cut.positions, "replay", ELSEWHERE)
        begun.load(self.store, rows_of_keys(self._plan, options.keys))
        if begun.snapshot is not None:
            report.note(f"partition {number} begins with the snapshot {cut.base} that it was started from")
            self._compare_state_at(begun.tape_number, begun.cut)
        replay = replay_of(
            self._plan,
            number,
            self.store,
            begun.cut,
            history.source(number),
            lineage=cut.lineage,
            watch=watch,
            settings=options.settings,
            limit=options.limits.of(number),
            lenient=options.compare,
            any_environment=options.any_environment,
        )
        task = replay.task
        start = msgspec.structs.replace(task.totals)
        self._records_before = report.records - start.records
        try:
            if not drive_along_tape(replay, history.tapes(number, cut.tape), cut.tape, self):
                report.limit_reached = True
        except (ReplayDivergedError, HandlerError, BadRecordError) as error:
            if not options.compare:
                raise
            where = str(error)
            report.differences.add(Difference(kind="handler", partition=number, where=where))
            report.note(f"the state of partition {number} is not compared: its replay ended before its end")
            self._live.clear()
        report.records = self._records_before + task.totals.records
        report.met |= set[Any]() if watch is None else watch.met
        report.for_others += task.totals.for_others - start.for_others
        report.commits += self._done
        report.timers += task.totals.fired - start.fired
        for one in () if options.limits.any else self._live:
            report.note(f"{one.name} of partition {number} is not compared: it stands at another commit")
        self._tell(replay)

    def _is_of_this_history(self, live: LiveState) -> bool:
        """Whether the log has the commit of a state. If not, that is the difference, and the state is not compared further."""
        if not self._options.compare or live.cut is None:
            return True
        found = standing(self._plan, self._history.log, self._number, tape.decode_cut(live.cut))
        if found.in_log is False:
            where = f"{live.name} stands after a commit that this log does not have: {found.why}"
            self._report.differences.add(Difference(kind="position", partition=self._number, where=where))
        return found.in_log is not False

    # --- outputs and state of the task

    def other_code(self, version: str, /) -> None:
        """See ``TapeSink.other_code``."""
        self._report.note(other_version(version, self._plan.version))

    def failed(self, task: Task, step: Step, _error: TailraceError, /) -> None:
        """See ``TapeSink.failed``. The outputs emitted until then can be compared."""
        self.take(task, step)

    def take(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.take``."""
        self._step, first = step, step.before.outputs
        if self._outputs is None:
            self._report.outputs += task.discard_outputs()
            return
        made = task.take_outputs()
        self._report.outputs += len(made)
        stop = step.record.totals.outputs if step.whole else first + len(made)
        self._outputs.take(first, stop, made)

    def write(self, batch: CommitBatch, /) -> None:
        """Write the state, and compare it."""
        step = self._step
        assert step is not None
        super().write(batch)
        if step.whole:
            self._compare_state_at(step.record.number + 1, batch.cut)

    def step_done(self, task: Task, step: Step, /) -> None:
        """See ``TapeSink.step_done``."""
        if not step.whole:
            return
        self._done += 1
        self._report.records = self._records_before + task.totals.records
        if self._on_progress is not None and self._cut is not None:
            status = ReplayStatus(self._number, self._done, self._cut.tape, self._report.records)
            self._on_progress(status)

    def _compare_state_at(self, number: int, cut: bytes | None) -> None:
        """Compare with the states that are at this commit: a state folder may be behind the changelog."""
        options, report = self._options, self._report
        if not options.compare:
            return
        for live in list(self._live):
            if _tape_of(live) != number:
                continue
            self._live.remove(live)
            found = report.differences
            count = compare_state(self._plan, self._number, live, self.store, options.keys, found)
            if not live.indexed:
                report.rows += count
            if options.keys is None:
                compare_cuts(self._plan, self._number, live, cut, found)
                if live.indexed:
                    check_index(self._plan, self._number, live, found)
            if live.store.get(rows.SCHEMA_ROW) != self.store.get(rows.SCHEMA_ROW):
                report.note(
                    "the declarations have changed since the first commit, and the stored schema with them"
                )
            if (held_against := live.group or live.name) not in report.compared:
                report.compared.append(held_against)

    def _tell(self, replay: Replay) -> None:
        """Report the differences in commits and outputs."""
        found, outputs = self._report.differences, self._outputs
        if replay.difference is not None:
            where = replay.difference.what
            found.add(Difference(kind="commit", partition=self._number, where=where))
        if outputs is None:
            return
        wanted = outputs.wanted()
        live = self._history.outputs({self._number: wanted}) if wanted else {}
        outputs.report(live.get(self._number, {}), found)
        if outputs.gone:
            self._report.note(f"{outputs.gone:,} outputs were not compared: the log has deleted them")


def _tape_of(live: LiveState) -> int:
    """The number of the tape record that follows a state."""
    return 0 if live.cut is None else tape.decode_cut(live.cut).tape


@contextmanager
def seldom_collected() -> Generator[None]:
    """Make Python's garbage collection less frequent: many small objects are created at once, and they stay."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 100_000) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
