"""The replay of one partition: it drives the task along its tape, and compares what the task makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.replay import Replay
from tailrace.core.engine.task import CommitBatch, Task
from tailrace.core.errors import ReplayDivergedError, TailraceError
from tailrace.core.storage import Store
from tailrace.history.comparing.differences import Difference
from tailrace.history.comparing.outputs import OutputComparison
from tailrace.history.comparing.replayed_state import LiveState, check_index, compare_cuts, compare_state
from tailrace.history.provenance.judging import does, judge
from tailrace.history.reading.app_history import AppHistory, Committed
from tailrace.history.reading.beginnings import Beginning, rows_of_keys, taped_beginning
from tailrace.history.reading.driving import (
    CommitPolicy,
    Step,
    TapeSink,
    drive_along_tape,
    equal_versions,
    replay_of,
)
from tailrace.history.reading.replayable import ELSEWHERE, check_kept
from tailrace.history.replay.report import ReplayOptions, ReplayReport, ReplayStatus


class PartitionReplay(TapeSink):
    """The replay of one partition."""

    def __init__(
        self,
        history: AppHistory,
        number: int,
        committed: Committed,
        store: Store,
        options: ReplayOptions,
        report: ReplayReport,
        live: Sequence[LiveState] = (),
        outputs: OutputComparison | None = None,
        on_progress: Callable[[ReplayStatus], None] | None = None,
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
        self._differing = ""
        """What ends the replay, if that is a commit that differs."""
        self._done = self._records_before = 0

    def run(self) -> None:
        """Replay the partition, compare it, and add it to the report."""
        report, cut, number = self._report, self._cut, self._number
        report.partitions += 1
        before = report.differences.count
        if cut is None:
            self._compare_state_at(0, None)
            return
        self._live = [one for one in self._live if self._is_of_this_history(one)]
        begun = taped_beginning(self._history, number, cut)
        check_kept(self._history.log, number, begun.positions, cut.positions, "replay", ELSEWHERE)
        begun.load(self.store, rows_of_keys(self._plan, self._options.keys))
        if begun.snapshot is not None:
            report.note(f"partition {number} begins with the snapshot {cut.base} that it was started from")
            self._compare_state_at(begun.tape_number, begun.cut)
        watch = Watch(self._options.observer, self._options.keys)
        replay = self._replay(cut, begun, watch)
        start = msgspec.structs.replace(replay.task.totals)
        self._records_before = report.records - start.records
        self._drive(replay, cut)
        totals = replay.task.totals
        report.records = self._records_before + totals.records
        report.met |= watch.met
        report.commits += self._done
        report.timers += totals.fired - start.fired
        for one in () if self._options.limits.any else self._live:
            report.note(f"{one.name} of partition {number} is not compared: it stands at another commit")
        report.note(*equal_versions(replay))
        self._report_outputs()
        if self._differing and report.differences.count == before:  # no output shows it
            report.differences.add(Difference(kind="commit", partition=number, where=self._differing))

    def _replay(self, cut: tape.Cut, begun: Beginning, watch: Watch) -> Replay:
        options = self._options
        return replay_of(
            self._plan,
            self._number,
            self.store,
            begun.cut,
            self._history.source(self._number),
            lineage=cut.lineage,
            watch=None if watch.observer is None and watch.keys is None else watch,
            settings=options.settings,
            limit=options.limits.of(self._number),
            any_environment=options.any_environment,
        )

    def _drive(self, replay: Replay, cut: tape.Cut) -> None:
        """Drive the task. If the replay compares, the difference that ends it is reported."""
        tapes = self._history.tapes(self._number, cut.tape)
        try:
            if not drive_along_tape(replay, tapes, cut.tape, self):
                self._report.limit_reached = True
        except ReplayDivergedError as error:
            if not self._options.compare:
                raise
            if replay.is_at_end:
                self._differing = error.what
            else:
                found = Difference(kind="handler", partition=self._number, where=error.what)
                self._report.differences.add(found)
            self._report.note(f"partition {self._number} is not compared any further: {error.what}")
            self._live.clear()

    def _is_of_this_history(self, live: LiveState) -> bool:
        """Whether the log has a state's commit. If not, that is the difference; nothing more is compared."""
        if not self._options.compare or live.cut is None:
            return True
        found = judge(self._plan, self._history.log, self._number, tape.decode_cut(live.cut))
        is_other = does("comparison", found) == "report"
        if is_other:
            where = f"{live.name} stands after a commit that this log does not have: {found.why}"
            self._report.differences.add(Difference(kind="position", partition=self._number, where=where))
        return not is_other

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
            name = live.group or live.name
            if name not in report.compared:
                report.compared.append(name)

    def _report_outputs(self) -> None:
        """Report the outputs that differ, key by key."""
        found, outputs = self._report.differences, self._outputs
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
