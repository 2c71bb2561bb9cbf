"""Driving a task along its causes: the one driver of replays, rebuilds and traces.

Theory. A task that goes through history takes causes, emits outputs, and has its state written from time to time. The
*way* gives the causes in their order. A *sink* takes the outputs and the state: it emits, compares or counts. Its
*commit policy* decides when state is written. Neither the sink nor the policy may change a result.

There are two ways:

    drive_along_tape    the causes of one tape record after the other, as the first run committed them
    drive               a generator that moves the task: stages (``core.engine.stage_order``)

``drive_along_tape`` does this with each tape record, in this order:

    1. begin      Of a record before the task's beginning, only its version and the numbers of inputs and operators are used.
    2. take       The task handles the causes of the record, and is compared with it. The sink sees an error before it is raised.
    3. outputs    The sink takes all outputs. It may look at the task, which is at the end of the record.
    4. commit     State is written when the policy requires it, at the last record, and where a limit stops the task
                  within a record. Otherwise a later commit writes what this record has changed.
    5. progress   The sink is notified that the task is past the record.

A task stops at its limit, or at the end of the tape. A tape that ends before the expected record is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.intake import refill
from tailrace.core.engine.observer import Watch
from tailrace.core.engine.replay import Limit, Replay, Source
from tailrace.core.engine.task import CommitBatch, Task, TaskSettings
from tailrace.core.errors import ReplayDivergedError, TailraceError
from tailrace.core.storage import Store

ENTRIES_AT_ONCE = 200_000
"""Most instances and collections touched since the last commit: they are in memory."""
MOVED_AT_ONCE = 500_000
"""Most records handled and timers fired since the last commit: the limit of a live task."""


@dataclass(slots=True)
class CommitPolicy:
    """When the state of a task is written. A commit encodes everything touched since the last one, and changes no result."""

    entries: int | None = field(default_factory=lambda: ENTRIES_AT_ONCE)
    moved: int | None = field(default_factory=lambda: MOVED_AT_ONCE)
    at: frozenset[int] = frozenset()
    """Numbers of tape records: the state is needed as it is before each of these."""
    _moved: int = 0

    def is_due(self, task: Task) -> bool:
        """Whether the state must be written now."""
        return (
            (self.moved is not None and _moved(task) - self._moved >= self.moved)
            or (self.entries is not None and task.dirty_count >= self.entries)
            or (bool(self.at) and task.tape_number + 1 in self.at)
        )

    def wrote(self, task: Task) -> None:
        """The state has been written."""
        self._moved = _moved(task)


def _moved(task: Task) -> int:
    return task.totals.records + task.totals.fired


class Sink:
    """Takes the outputs and the state of one task. This class writes the state, and keeps nothing else."""

    def __init__(self, store: Store, policy: CommitPolicy | None = None) -> None:
        self.store = store
        self.policy = CommitPolicy() if policy is None else policy

    def on_turn(self, task: Task, /) -> None:
        """The task has advanced. Called by ``drive`` only, and often."""

    def commit(self, task: Task, /) -> None:
        """Write the present state of the task. Its outputs must have been taken before."""
        self.write(task.commit_batch())
        task.committed()
        self.policy.wrote(task)

    def write(self, batch: CommitBatch, /) -> None:
        """Write the rows of a commit together with its cut."""
        self.store.write(batch.rows | batch.index_rows, batch.cut)


def drive(way: Iterable[Task], tasks: Sequence[Task], sinks: Sequence[Sink]) -> None:
    """Drive tasks along a way. The way yields the task that has advanced, at each point where any task may be committed."""
    by_task = {id(task): sink for task, sink in zip(tasks, sinks, strict=True)}
    for task in way:
        sink = by_task[id(task)]
        sink.on_turn(task)
        if sink.policy.is_due(task):
            sink.commit(task)
    for task, sink in zip(tasks, sinks, strict=True):
        sink.commit(task)


class Step(NamedTuple):
    """What a task has just replayed: the causes of one commit of the first run."""

    record: tape.TapeRecord
    before: tape.Totals
    """The task's counts before the step."""
    whole: bool
    """The task is at the end of the record. If not, it has stopped within the record: at its limit, or at a difference."""
    last: bool
    """No record follows."""


class TapeSink(Sink):
    """Takes the outputs and the state of a task along its tape. This class drops the outputs."""

    def failed(self, task: Task, step: Step, error: TailraceError, /) -> None:
        """The task cannot continue. The error is raised afterwards, unless this method raises another."""

    def take(self, task: Task, _step: Step, /) -> None:
        """Take all outputs of a step."""
        task.discard_outputs()

    def step_done(self, task: Task, step: Step, /) -> None:
        """The step is done."""


def replay_of(
    plan: Plan,
    partition: int,
    store: Store,
    cut: bytes | None,
    source: Source,
    *,
    lineage: bytes,
    watch: Watch | None = None,
    settings: TaskSettings | None = None,
    limit: Limit | None = None,
    any_environment: bool = False,
) -> Replay:
    """The replay of a task that begins with ``cut`` and the rows in the store, restricted to the keys of the watch."""
    task = Task(plan, partition, store, cut, lineage=lineage, settings=settings, replaying=True, watch=watch)
    refill(task, source)
    return Replay(
        task,
        source,
        limit=limit,
        some_keys=watch is not None and watch.keys is not None,
        any_environment=any_environment,
    )


def drive_along_tape(replay: Replay, tapes: Iterable[tape.TapeRecord], stop: int, sink: TapeSink) -> bool:
    """Drive a task along its tape, up to record number ``stop`` (exclusive). Returns False if a limit has stopped it.
    ``tapes`` may begin before the task does. Raises ReplayDivergedError, and what ``Replay.take`` raises.
    """
    task = replay.task
    for record in tapes:
        if record.number < task.tape_number:
            replay.follow_on(record)
            continue
        step = Step(record, msgspec.structs.replace(task.totals), whole=False, last=record.number + 1 == stop)
        try:
            step = step._replace(whole=replay.take(record))
        except TailraceError as error:
            sink.failed(task, step._replace(whole=replay.is_at_end), error)
            raise
        sink.take(task, step)
        if step.last or not step.whole or sink.policy.is_due(task):
            sink.commit(task)
        else:
            task.defer_commit()
        sink.step_done(task, step)
        if not step.whole:
            return False
    if task.tape_number != stop:
        raise ReplayDivergedError(
            f"the tape of app {task.plan.app!r} partition {task.partition} ends before record {task.tape_number}, its last "
            f"commit was number {stop - 1}",
            hint="A part of the tape is missing, and all of it is needed. A rebuild can do without a tape: --order stages.",
        )
    return True


def equal_versions(replay: Replay) -> list[str]:
    """Notes for a report about other code that has run a part of the history, with equal results."""
    here = replay.task.plan.version
    return [
        f"version {one!r} of the app has written a part of the tape; the results of this code, version {here!r}, are equal"
        for one in replay.others
    ]
