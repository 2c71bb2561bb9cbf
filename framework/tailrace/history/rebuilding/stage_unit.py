"""The unit that runs one stage of one partition (see ``core.engine.stages``), and what the driver joins its results to.

The unit does its work in one piece: an attempt after a kill begins from the start. It writes the rows of its operators into the
snapshot, and files for later stages: what it sends, sorted. What waits in its ordered operators at the end, of the records that the
app has sent itself, is in no log: it goes into the snapshot as messages in flight, addressed to the operators in which it waits.

A task without a past derives its lineage, the seed of its randomness, from its name: every rebuild draws the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace as with_
from operator import itemgetter

import msgspec
from msgspec.structs import replace

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.intake import refill
from tailrace.core.engine.key_ranges import KeyRange
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.redriven import Redriven, redriven_header, redriven_in
from tailrace.core.engine.stage_order import StageOrder
from tailrace.core.engine.stages import Behind, Stages, own_inputs
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.engine.watermarks import published_by
from tailrace.core.records import InputRecord
from tailrace.core.unit_ids import RecordIds
from tailrace.history.reading.beginnings import rows_of_keys
from tailrace.history.reading.driving import CommitPolicy, Sink, drive
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.failures import Failed
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.output_files import Frame, write_outputs
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.ranges import RangeFiles, StageMade, joined_ranges
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.results import StateFiles, TaskResult, UnitResult
from tailrace.history.rebuilding.sends import SendsWriter
from tailrace.history.rebuilding.stage_history import Made, StageHistory, decode_made, inner_inputs, made_in
from tailrace.history.rebuilding.task_folder import TaskFolder, write_by_actor, write_rows
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.state import StateMemory

_COMMIT_EVERY = 100_000
"""Records and timer firings between two commits."""
_READ_AT_ONCE = 1_000
_REPORT_EVERY = 1_000
"""Turns of a task between two reports of progress."""
_OUTPUTS_AT_ONCE = 10_000
"""Most outputs held in memory."""


def run_stage(
    unit: Unit, past: HistorySource, work: WorkFolder, attempt: str, watch: Watch | None = None
) -> UnitResult:
    """Run a partition in one stage, or join what ranges of its keys have made; watched: of the keys of the watch, with its observer."""
    begun_s = time.perf_counter()
    with ExitStack() as closing:
        if unit.range is None and unit.job.request.execution.split > 1:
            made = joined_ranges(unit, past, work, attempt)
            result = UnitResult(unit=unit.name, attempt=attempt)
        else:
            run = _StageRun(unit, past, work, attempt, closing, watch or Watch())
            made, result = run.run(), run.result
        written_s = time.perf_counter()
        phases = result.work.phases
        phases.handle = written_s - begun_s - phases.read
        if unit.range is None:
            _write(made, result, unit, attempt)
            phases.write = time.perf_counter() - written_s
        return result


class _StageRun(Sink):
    """One attempt at a unit."""

    def __init__(
        self,
        unit: Unit,
        past: HistorySource,
        work: WorkFolder,
        attempt: str,
        closing: ExitStack,
        watch: Watch,
    ) -> None:
        self._unit, self._job, self._past, self._work, self._attempt = unit, unit.job, past, work, attempt
        self._whole, number = past.plan, unit.partition
        self._stages = Stages(self._whole)
        self._plan = self._stages.plan_of(unit.stage)
        self._failed = Failed(self._job.request.failures.on_error)
        self.result = UnitResult(unit=unit.name, attempt=attempt)
        self._range = None if unit.range is None else KeyRange(unit.range, self._job.request.execution.split)
        folder = TaskFolder(self._job, number, work.tasks, attempt, StateMemory())
        self._folder = closing.enter_context(folder)
        super().__init__(folder.store, CommitPolicy(entries=None, moved=_COMMIT_EVERY))
        self._begun = past.beginning(self._job, number)
        self._history = StageHistory(unit, past, work, attempt, self._stages, self._begun)
        keys = self._job.request.keys
        self._keys = named_keys(self._whole, keys).keys if keys else watch.keys
        self._behind = Behind(self._whole)
        self._task, self._on_time = self._task_of(watch), watch.on_time
        self._first_outputs = self._task.totals.outputs
        read = self._history.of(self._task, self.result.work.phases)
        self._read = [one for one in self._history.read if one in read.ends]
        self._begun_at = self._offsets()
        self._of = sum(read.ends[name] for name in self._read) - self._begun_at
        self._records_before = self._task.totals.records
        self._order = StageOrder(
            self._task,
            read,
            here=self._stages.here(unit.stage),
            finish=self._job.finish,
            limit=self._job.request.limit(number),
        )
        sent = f"{unit.name}-{attempt}"
        self._sends = SendsWriter(work, sent, self._history.own, self._whole.partitions, self._whole.app)
        self._ranged: RangeFiles | None = None
        if self._range is not None:
            begun = self._task.totals, self._sent_before
            is_wanted = bool(own_inputs(self._whole)) or self._job.request.to.outputs != "none"
            files = RangeFiles(unit, work, attempt, self._range, *begun, is_wanted=is_wanted)
            self._ranged = closing.enter_context(files)
        self._turns = 0

    def _task_of(self, watch: Watch) -> Task:
        job, begun, number, stage = self._job, self._begun, self._unit.partition, self._unit.stage
        # An app that sends to itself runs all keys, since any of them may send to those that are wanted.
        keys = None if own_inputs(self._whole) else self._keys
        is_wanted, actors = rows_of_keys(self._whole, keys), self._stages.here(stage)
        names = {one.name for one in self._whole.actors}
        here = {one.name for one in self._whole.actors if one.index in actors}

        def is_here(row: bytes) -> bool:
            if row[:1] == rows.STATE and (actor := rows.read_state_row(row).actor) not in here:
                return stage == 0 and actor not in names
            if self._range is not None and row[:1] == rows.STATE:
                return self._range.has(rows.read_state_row(row).key)
            return is_wanted(row)

        begun.load(self.store, is_here)
        decides = None if job.request.failures.on_error == "stop" else self._failed.decide
        cut = None if begun.cut is None else self._stages.part_of(tape.decode_cut(begun.cut), stage)
        task = Task(
            self._plan,
            number,
            self.store,
            None if cut is None else tape.encode(cut),
            lineage=begun.lineage,
            positions=begun.positions,
            settings=with_(task_settings(), promises=self._behind),
            watch=Watch(watch.observer, keys, decides, watch.on_time, range=self._range),
        )
        self._sent_before = {} if cut is None else cut.sent
        refill(task, self._past.source(number))
        task.positions |= self._history.positions()
        for source, name in enumerate(self._whole.sources):
            if name in self._history.own or source >= len(self._whole.inputs):
                # It is read again, in order. What is behind its readers is late for them, and not behind what was read.
                task.watermarks.of_source[source] = NO_WATERMARK
        if stage:
            before = made_in(job, self._work, stage - 1, number)
            task.totals.outputs = tape.decode_cut(before.cut).totals.outputs
        task.event_clock_ms = job.clock_ms
        return task

    def run(self) -> StageMade:
        """Run the task. What it has made is still to be written."""
        result, task, stage = self.result, self._task, self._unit.stage
        drive(self._order.go(), [task], [self])
        if self._on_time is not None:
            for actor in self._plan.actors:
                self._on_time(task.cells, actor, FOREVER)
        self._work.report(self._unit.name, self._of, self._of, now=True)
        in_flight = [*self._taken_out()]
        if in_flight:
            self.commit(task)
        assert self.store.cut is not None
        actors = self._stages.actors(stage)
        known = {one.name for one in self._whole.actors}
        wanted = rows_of_keys(self._whole, self._keys)

        def is_made(row: bytes) -> bool:
            actor = rows.read_state_row(row).actor if row[:1] == rows.STATE else ""
            return (actor in actors or (not stage and actor not in known)) and wanted(row)

        made = StageMade(
            self.store.cut,
            self.store.get(rows.SCHEMA_ROW) or b"",
            (one for one in self._folder.store.rows() if is_made(one[0])),
            in_flight,
            self._folder.finished_outputs(),
            self._sends,
            self._published(self._order.reached.__getitem__),
            self._published(task.watermarks.of_operator.__getitem__),
            sum(one.taken for one in self._order.lanes if one.number in task.again),
            {one: count for one, count in self._behind.behind.items() if one.topic in self._history.own},
        )
        result.new_failures = self._failed.result()
        result.notes += self._history.notes()
        if not self._unit.range:
            result.work.replayed = task.totals.records - self._records_before
        if self._ranged is not None:
            result.made = self._ranged.finish(made)
        return made

    def _published(self, of: Callable[[int], int | None]) -> dict[str, int | None]:
        """What is published for topics and channels, given what their writers publish."""
        some = self._stages.published_in(self._unit.stage)
        return published_by(some, {writer: of(writer) for one in some for writer in one.writers})

    def _taken_out(self) -> Iterator[InputRecord]:
        """The records that wait in ordered operators, and that the app has sent itself, as records for its inbox."""
        plan, own = self._plan, {one.index for one in self._history.own.values()}
        found: dict[tuple[int, int], tuple[InputRecord, list[str]]] = {}
        for operator, record, number in self._task.take_out(own):
            _, names = found.setdefault((number, record.offset), (record, []))
            names.append(plan.operators[operator].name)
        for (number, _), (record, names) in sorted(found.items()):
            addressed = redriven_in(record.headers)
            if addressed is not None:  # it was in flight at the base
                header = redriven_header(replace(addressed, operators=tuple(sorted(names))))
                yield record._replace(headers=(header, *record.headers[1:]))
                continue
            if plan.inputs[number].is_inbox:
                yield record
                continue
            name = plan.inputs[number].name
            id_of = RecordIds(name, self._unit.partition, plan.app).id_of
            header = redriven_header(Redriven("", name, -1, -1, tuple(sorted(names)), id_of(record).hex()))
            yield record._replace(headers=(header, *record.headers))

    # --- see ``Sink``

    def on_turn(self, task: Task, /) -> None:
        """See ``Sink.on_turn``."""
        self._turns += 1
        if not self._turns % _REPORT_EVERY:
            self._report()
        if task.waiting_outputs >= _OUTPUTS_AT_ONCE:
            self._emit(task)

    def commit(self, task: Task, /) -> None:
        """See ``Sink.commit``."""
        self._emit(task)
        super().commit(task)
        self._report()

    def _emit(self, task: Task) -> None:
        outputs = task.take_outputs()
        if self._ranged is not None:
            self._ranged.take(outputs)
            return
        self._sends.take(outputs)
        self._sends.flush(self._published(task.published_ms).get)
        if self._folder.outputs is not None and outputs:
            self._folder.outputs.write(Frame(task.totals.outputs - len(outputs), outputs))

    def _report(self) -> None:
        """Report the progress, by the offsets that it has passed."""
        self._work.report(self._unit.name, self._offsets() - self._begun_at, self._of)

    def _offsets(self) -> int:
        return sum(self._task.positions[name] for name in self._read)


def _write(made: StageMade, result: UnitResult, unit: Unit, attempt: str) -> None:
    """Write the rows of a stage into the snapshot, and fill the result of its unit."""
    job, number = unit.job, unit.partition
    named = f"{unit.stage}-{attempt}"
    by_actor = [*write_by_actor(job, number, named, made.rows)]
    sent = write_rows(job, number, f"{named}-sent", (), made.schema, messages=made.in_flight)
    outputs = None if made.outputs is None else write_outputs(job, number, attempt, made.outputs, unit.stage)
    result.tasks = (
        TaskResult(
            partition=number,
            cut=made.cut,
            totals=tape.decode_cut(made.cut).totals,
            state=_sum(made.schema, [*(one for _, one in by_actor), sent]),
            outputs=() if outputs is None else (outputs,),
        ),
    )
    files = [(first, one.files) for first, one in by_actor]
    sends = made.sends.finish()
    result.made = msgspec.msgpack.encode(
        Made(made.cut, files, sent.files, sends, made.published, made.stood, made.again)
    )
    for one, count in sorted(made.behind.items()):
        result.notes.append(
            f"{counted(count, 'record')} that {one.handler} sends to {one.topic} in partition {number} "
            f"{'is' if count == 1 else 'are'} behind its watermark: in time here, and perhaps late in a service"
        )


def joined(job: Job, past: HistorySource, number: int, parts: Sequence[UnitResult]) -> TaskResult:
    """The task of a partition, of the results of all stages."""
    plan, stages = past.plan, Stages(past.plan)
    made = [decode_made(one.made) for one in parts]
    tasks = [one.tasks[0] for one in parts]
    positions = {name: _position(job, past, number, name) for name in inner_inputs(plan)}
    cuts = [tape.decode_cut(one.cut) for one in made]
    cut = stages.joined(cuts, positions, sum(one.again for one in made))
    by_actor = sorted((pair for one in made for pair in one.by_actor), key=itemgetter(0))
    state = replace(
        _sum(tasks[-1].state.schema, [one.state for one in tasks]),
        files=(
            *(file for _, some in by_actor for file in some),
            *(file for one in made for file in one.in_flight),
        ),
    )
    held = sum(file.rows for one in made for file in one.in_flight)
    state = replace(state, waiting={plan.inbox_topic: held})
    return TaskResult(
        partition=number,
        cut=one_commit(cut, past.beginning(job, number).cut),
        totals=cut.totals,
        state=state,
        outputs=tuple(file for one in tasks for file in one.outputs),
    )


def _position(job: Job, past: HistorySource, number: int, name: str) -> int:
    """Where a task continues in a topic that the app writes: at its end, or where the service is, if no record is behind that. On Kafka
    the markers of transactions are.
    """
    end, cut = job.ends[name][number] if name in job.ends else 0, job.targets[number].cut
    at = end if cut is None else tape.decode_cut(cut).positions.get(name, end)
    read = past.source(number)
    some = (read(name, start, min(start + _READ_AT_ONCE, end)) for start in range(at, end, _READ_AT_ONCE))
    return end if any(some) else min(at, end)


def _sum(schema: bytes, parts: Sequence[StateFiles]) -> StateFiles:
    return StateFiles(
        tuple(file for one in parts for file in one.files),
        schema,
        sum(one.keys for one in parts),
        sum(one.rows for one in parts),
        tuple(key for one in parts for key in one.named_keys),
    )


def one_commit(cut: tape.Cut, base: bytes | None) -> bytes:
    """The cut with everything counted as one commit: the number of commits must not affect the result.

    It is no commit of the service. Its identity chains to that of ``base``, and its nonce is the content of
    the cut, so equal rebuilds give equal bytes.
    """
    start = None if base is None else tape.decode_cut(base)
    number, before = (0, b"") if start is None else (start.tape, start.identity)
    cut.tape, cut.identity = number + 1, b""
    cut.identity = tape.identity_of(before, tape.encode(cut), number)
    return tape.encode(cut)
