"""The work of a partition between two commits: it brings causes to the task, and outputs to the log.

Theory. A cause must be complete before the next one: a step that ran out of its budget of timers is *drained* first, in
later slices if necessary, with commits in between. So a slice begins by finishing the work of the last one, and an
interrupted run of records waits in ``_left`` until then.

Durations (idle, commit interval) are measured in *elapsed* time, by a monotonic clock: see ``clocks``.

An input is idle while each fetch finds no record after its position. The time between two fetches needs no check: a record
that came then would still be there. An input that follows its writers is idle when they publish it, never by itself: records
may be on their way although there are none yet. Publications count at the end of the input: a reader that is behind gets
at each position the publications of that position.

An input that is ahead of the others of an ordered operator is not read further while much waits: its events could only
wait, too. It does not become idle by that. A run that ends with its input does not wait for inputs that it has read.

An input that was idle before a start counts again after the start: more records may have come while the task was down. A worker
commits, and so publishes, this before it takes a record: readers that follow this task must not run ahead of the records that it
still has to read.

The end of input goes through the phases of ``progress``. When it begins, every source counts again, and none becomes idle until the
run is over. Each cause of a phase comes when the task has nothing else to do, and depends on the task's state alone. So a
task that is restored in a phase does what is missing of all phases up to it, and a message that sets a timer of an actor whose
turn is over has that timer fired, too. An input that has ended stays ended: another record is an error, unless the operator of the
service lets the input continue (``after_end``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import NamedTuple

from tailrace.core import rows
from tailrace.core.declare.plan import InputPlan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.merge import TOLERANCE_MS, Merge
from tailrace.core.engine.task import CommitBatch, Task, TaskSettings
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import InputEndedError, LogUnavailableError
from tailrace.core.records import Head, InputRecord, Output, RecordMark
from tailrace.history.provenance.topics import CutHeaders
from tailrace.history.reading.upstream_watermarks import Upstream
from tailrace.log.interface import Log, Reader, Writer
from tailrace.log.routing import keep_partitions
from tailrace.runtime.clocks import READ_EVERY_MS, check_start
from tailrace.runtime.commit_notes import CommitMeasures, PassedOffsets, PublishedWatermarks
from tailrace.state.contents import StoreContents


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """How a partition goes about its work. None of it changes a result, but for the order among inputs.

    A commit falls ``commit_interval_ms`` after the one before, or earlier: with ``commit_entries`` instances and
    collections changed, or ``commit_records`` records taken and written.
    """

    commit_interval_ms: int = 1_000
    commit_entries: int = 200_000
    commit_records: int = 500_000
    merge_tolerance_ms: int = TOLERANCE_MS
    deletions_kept_ms: int = 86_400_000
    """How long compaction keeps deletions in the changelog (Kafka: ``delete.retention.ms``). Half of it is trusted."""
    restore_patience_s: float = 60.0
    """For how long the changelog may give nothing while it is being restored from."""
    restore_batch: int = 20_000
    """How many records of the changelog are applied to the store at once."""
    after_deleted: bool = False
    """Continue without records of the inputs that the log deleted before they were read, and behind the lost end of an input."""
    real_clock: bool = False
    """The clock is that of the machine, not of a simulation: its readings are checked (see ``clocks``)."""
    accept_clock: bool = False
    """Continue with a clock that is more than a day from the last reading."""
    bounded: bool = False
    """The run ends with its input: it does not read the clock if it has nothing to do."""
    after_end: bool = False
    """Continue an app whose inputs had ended for good."""
    drop: frozenset[str] = frozenset()
    """Orphans (``Task.orphans``) whose state goes with the first commit."""
    task: TaskSettings = field(default_factory=TaskSettings)


class _Run(NamedTuple):
    number: int
    heads: Sequence[Head]
    start: int


class _Input:
    """Since when an input has had nothing to read, in elapsed time."""

    __slots__ = ("asked", "falls_idle", "first", "idle_since_ms", "is_idle", "last", "plan")

    def __init__(self, plan: InputPlan) -> None:
        self.plan = plan
        self.falls_idle = bool(plan.moves) and plan.watermark != "upstream"
        """Whether it becomes idle without records: not if its writers publish that, or nothing needs it."""
        self.asked = False
        """Whether this slice has found nothing to read."""
        self.idle_since_ms: int | None = None
        """Since when there is no record after its position."""
        self.is_idle = False
        """Whether the task was informed that it is idle."""
        self.first: InputRecord | None = None
        self.last: InputRecord | None = None
        """The first and the last record taken since the last commit."""


class Slices:
    """The task of a partition with all that feeds it, from a restore on. Dropped as a whole when something fails."""

    def __init__(
        self,
        task: Task,
        log: Log,
        reader: Reader,
        writer: Writer,
        settings: PartitionSettings,
        now_ms: int,
        elapsed_ms: int,
        published: Mapping[str, int | None],
        cut_headers: CutHeaders,
        passed: Mapping[str, int],
        contents: StoreContents,
    ) -> None:
        """``published``: what it has published last, by topic and channel."""
        self.task = task
        self.writer = writer
        self.now_ms = now_ms
        """The last reading of the clock."""
        self.trouble: LogUnavailableError | None = None
        """Why the last slice could not read an input."""
        self._log = log
        self._topics_match = keep_partitions(task.plan.outputs, task.plan.partitions, log.partitions)
        """Whether an output with the key of its instance stays in the task's partition."""
        self._reader = reader
        self._settings = settings
        self._cut_headers = cut_headers
        self.passed = PassedOffsets(passed, is_noted=cut_headers.has_notes and any(task.positions.values()))
        self._marks = cut_headers.read
        self.contents = contents
        self._merge = Merge(task.plan.inputs, settings.merge_tolerance_ms)
        self._left: _Run | None = None
        self.elapsed_ms = self._committed_at = elapsed_ms
        self._moved = 0
        self._drained = self._end_due = self._end_begun = False
        self._measures = CommitMeasures(task.totals, task.plan)
        self._phase = 0
        """That of the end of input; see ``progress``."""
        self._clocked = self._followed = False
        self._unchecked = settings.real_clock and not settings.accept_clock
        self._inputs = [_Input(one) for one in task.plan.inputs]
        self._upstream = Upstream(task.plan, log)
        self.published = PublishedWatermarks(task, published)
        if settings.after_end:
            task.reopen()
        task.wake_all()
        for name, offset in task.positions.items():
            reader.seek(name, task.partition, self.passed.begin(name, offset))

    def end_input(self, phase: int) -> None:
        """End the inputs as far as this phase does: in the next slices, when all that is there has been taken."""
        self._phase = phase
        self._end_due = True

    def slice(self, now_ms: int, elapsed_ms: int, most: int) -> bool:
        """Bring up to ``most`` records to the task, and what else there is; whether there was anything."""
        self.now_ms, self.elapsed_ms = now_ms, elapsed_ms
        self.trouble = None
        task = self.task
        if self._settings.real_clock:
            task.event_clock_ms = now_ms
        worked = task.draining
        if worked:
            task.drain()
            self._drained = True
        if not task.draining and (now_ms >= task.clock_due_ms or self._reading_is_due()):
            worked = True
            self._take_clock()
        self._clocked = self._followed = False
        for one in self._inputs:
            one.asked = False
        taken = 0
        while taken < most and not task.draining:
            self._read(most)
            count = self._take(most - taken)
            if not count:
                break
            taken += count
        worked = self._fall_idle() or worked or self._followed or taken > 0
        if worked:
            self._end_due = self._phase > 0
        elif self._end_due and self.trouble is None:
            worked = self._end_due = self._end_further()
        self._send()
        return worked or task.draining

    @property
    def dirty(self) -> bool:
        """Whether there is something to commit. The end of a drain is, though it is no cause."""
        since_ms = self.elapsed_ms - self._committed_at
        return self.task.dirty or self._drained or self.published.owed or self.passed.are_due(since_ms)

    def commit_is_due(self) -> bool:
        """Whether there is something to commit, and it is time or there is much of it."""
        settings, task = self._settings, self.task
        return self.dirty and (
            self.elapsed_ms - self._committed_at >= settings.commit_interval_ms
            or self._moved >= settings.commit_records
            or task.dirty_count >= settings.commit_entries
            or task.is_tape_full
        )

    def stage(self) -> CommitBatch:
        """Append all that belongs to a commit to the open transaction."""
        self._send()
        task, now_ms = self.task, self.now_ms
        batch = task.commit_batch()
        taken = [(one.plan.name, one.first, one.last) for one in self._inputs]
        batch.measurements.extend(self._measures.of_commit(taken, now_ms))
        changelog, partition = task.plan.changelog_topic, task.partition
        changes = zip(repeat(changelog), batch.rows, batch.rows.values(), repeat(now_ms), repeat(()))
        # The cut comes last: a reader that has read it has read the whole commit.
        noted = self.passed.commit(batch.positions, is_noted=self._cut_headers.has_notes)
        read = {one.plan.name: RecordMark.of(one.last) for one in self._inputs if one.last is not None}
        self._marks = {**self._cut_headers.read, **read}
        headers = self._cut_headers.of(noted, self._marks, self.contents.changed(batch.rows))
        cut = Output(changelog, rows.CUT_ROW, batch.cut, now_ms, headers)
        self.writer.append(changes, partition)  # without the cut, as headers cost a column of records more
        self.writer.append((cut, Output(task.plan.tape_topic, None, batch.tape, now_ms)), partition)
        return batch

    def committed(self, published: Mapping[str, int | None]) -> None:
        """The staged batch is durable, and the store has it; these watermarks were published with it."""
        self.task.committed()
        self.published.committed(published)
        self.contents.committed()
        self._cut_headers.read = self._marks
        for one in self._inputs:
            one.first = one.last = None
        self._measures.committed()
        self._committed_at = self.elapsed_ms
        self._moved = 0
        self._drained = False

    def rest_ms(self, now_ms: int, elapsed_ms: int) -> int | None:
        """For how long nothing becomes due by itself; None if nothing will."""
        task, settings = self.task, self._settings
        if task.draining or self._left is not None or self._end_due:
            return 0
        due = [task.clock_due_ms - now_ms] if task.clock_due_ms < FOREVER else []
        if self.dirty:
            due.append(self._committed_at + settings.commit_interval_ms - elapsed_ms)
        due += [
            one.idle_since_ms + one.plan.idle_after_ms - elapsed_ms
            for one in self._inputs
            if one.idle_since_ms is not None and self._may_fall_idle(one)
        ]
        return max(0, min(due)) if due else None

    # --- the parts of a slice

    def _read(self, most: int) -> None:
        """Fetch for every input that has nothing buffered, at most once in vain per slice."""
        merge, task = self._merge, self.task
        left = -1 if self._left is None else self._left.number
        for number, one in enumerate(self._inputs):
            if number == left or one.asked or merge.buffered(number):
                continue
            if self._is_held_back(number):
                one.asked, one.idle_since_ms = True, None
                merge.unread(number, False)
                continue
            follows = number in self._upstream.inputs
            if follows and self._follow(number):
                return
            try:
                records, offset, unread, idle = self._reader.fetch(one.plan.name, task.partition, most)
            except LogUnavailableError as error:
                # Nothing is lost, and nothing is known: as long as this lasts the input is waited for.
                self.trouble, one.asked = error, True
                one.idle_since_ms = None
                merge.unread(number, True)
                continue
            if records:
                heads = task.decode(number, records)
                merge.offer(number, heads)
                merge.unread(number, unread)
                self._check_open(one.plan, records[0].offset)
                one.idle_since_ms, one.is_idle = None, False
                task.wake(number)  # before another input is taken: this one has something to read
                continue
            one.asked = True
            self.passed.note(one.plan.name, offset)
            merge.unread(number, unread)
            if not idle:
                one.idle_since_ms = None
                continue
            if one.idle_since_ms is None:
                one.idle_since_ms = self.elapsed_ms
            if follows and self._follow(number, at_end=True):
                return

    def _is_held_back(self, number: int) -> bool:
        """Whether an input has to wait for others. If the run ends with what is there, or a test sets the time, none waits for one that has been read."""
        ends = self._settings.bounded or self._phase > 0 or not self._settings.real_clock
        return self.task.is_held_back(
            number, {one.plan.index for one in self._inputs if ends and one.idle_since_ms is not None}
        )

    def _follow(self, number: int, *, at_end: bool = False) -> bool:
        """Apply what the writers of an input have published as far as it is read. Returns whether a drain has to end first.

        The task and the reader are at the same position. That the writers are idle counts only at the end of the input.
        """
        task = self.task
        published = self._reader.published(task.plan.inputs[number].name, task.partition)
        for source, mark in self._upstream.take(number, published).items():
            marks = task.watermarks
            last_ms = self._upstream.last_ms(source)
            steps: list[Callable[[], None]] = []
            if isinstance(mark, int):
                if mark > marks.of_source[source] or (marks.idle[source] and mark > NO_WATERMARK):
                    steps.append(partial(task.upstream, source, mark))
            elif not marks.idle[source]:
                if last_ms > marks.of_source[source]:
                    steps.append(partial(task.upstream, source, last_ms))
                if at_end and not self._phase:
                    steps.append(partial(task.idle, source))
            if steps:
                self._read_clock()
            for step in steps:
                if not self._bring(step):
                    return True  # it is asked again when that is done
        return task.draining

    def _bring(self, step: Callable[[], None]) -> bool:
        if self.task.draining:
            return False
        step()
        self._followed = True
        return True

    def _take(self, most: int) -> int:
        """Bring one run to the task. Returns how many of its records were taken."""
        task = self.task
        if self._left is None:
            found = self._merge.next_run(most)
            if found is None:
                return 0
            self._left = _Run(*found, 0)
        self._read_clock()
        if task.draining:
            return 0
        number, heads, start = self._left
        stop = task.run(number, heads, start)
        self._left = None if stop == len(heads) else _Run(number, heads, stop)
        if stop > start:
            one = self._inputs[number]
            one.first, one.last = one.first or heads[start][4], heads[stop - 1][4]
        self._moved += stop - start
        return stop - start

    def _read_clock(self) -> None:
        """Tell the task what time it is, once in a slice that brings it anything."""
        if not self._clocked:
            self._clocked = True
            self._take_clock()

    def check_clock(self) -> None:
        """Check the first reading. Raises ClockError, before the task takes it."""
        if self._unchecked:
            check_start(self.task, self._log, self.now_ms)
            self._unchecked = False

    def _take_clock(self) -> None:
        self.check_clock()
        self.task.clock(self.now_ms)

    def _reading_is_due(self) -> bool:
        """Whether the last reading is so old that it would not prove, after a restart, that the clock is right.

        A reading that was accepted is taken at once: the next start need not accept it again.
        """
        settings, last_ms = self._settings, self.task.now
        if not settings.real_clock or (settings.bounded and not settings.accept_clock):
            return False
        return last_ms > 0 and self.now_ms - last_ms >= READ_EVERY_MS

    def _fall_idle(self) -> bool:
        fell = False
        for one in self._inputs:
            since_ms = one.idle_since_ms
            if since_ms is None or self.elapsed_ms - since_ms < one.plan.idle_after_ms:
                continue
            if not self._may_fall_idle(one):
                continue
            if not self.task.draining:
                self._read_clock()
            if self.task.draining:
                break
            fell = one.is_idle = True
            self.task.idle(one.plan.index)
        return fell

    def _may_fall_idle(self, one: _Input) -> bool:
        return not self._phase and not one.is_idle and one.falls_idle

    def _end_further(self) -> bool:
        """Bring the next cause of the end of input to the task. Returns whether there was one in the phases so far."""
        task = self.task
        if not self._end_begun:
            self._end_begun = True
            task.wake_all()
            return True
        for phase in range(2, self._phase + 1):
            stage, finishes = divmod(phase - 2, 2)
            for one in task.plan.operators:
                if one.stage == stage and finishes and task.finish(one.index):
                    return True
                if one.stage == stage and not task.watermarks.ended_operators[one.index]:
                    task.ended(one.index)
                    return True
        return False

    def _check_open(self, one: InputPlan, offset: int) -> None:
        """Raises InputEndedError if an input from outside of the app has ended."""
        task = self.task
        ended = task.watermarks.ended_operators
        if one.is_inbox or self._settings.after_end or True not in ended or one.name in task.plan.written:
            return
        if any(ended[operator] for operator in task.watermarks.concerned(one.index)):
            raise InputEndedError(
                f"the inputs of {task.plan.app!r} were ended for good, and a record has come after that",
                topic=one.name,
                partition=task.partition,
                offset=offset,
                hint="It was not handled. All timers have fired as if nothing came any more (--end-of-input), so "
                "it may be late. To continue with it, run the app once with --after-end. A run with --until-end "
                "does not end the inputs.",
            )

    def _send(self) -> None:
        """Append what has come of a slice to the open transaction, all at once: most runs of a merge are short."""
        outputs = self.task.take_numbered()
        if outputs:
            self._moved += len(outputs)
            stay = self._topics_match and self.task.own_keys
            self.writer.append(outputs, self.task.partition if stay else None)
            self._measures.sent(outputs)
