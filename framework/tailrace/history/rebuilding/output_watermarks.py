"""What a task's commits said of its outputs, so that topics that are written again say it too: marks.

Theory. A topic is more than its records. Its producers have published their watermarks with it, commit by commit, and who
follows them (``watermark="upstream"``) takes from there what is late and which timers are due. And the records of several
tasks lie in a partition as their commits came. So a rebuild that writes topics keeps a *mark* for each commit::

    mark     how many outputs there were by then, and how far the task was: what it published, its clock

and publishes mark by mark: the outputs up to it, the watermark, and how far it has come, in one transaction.

    publishers   one for each task, known all before the first record: until a task has published, it holds all back, as live
    order        along a tape, that of the service's commits, which the log tells. So the same code gives the same topics,
                 record by record. Where it cannot (an archive, canonical order): by the tasks' clocks, then by partition
    marks        along a tape, its records. In canonical order, whenever the task's clock has come to another minute, or
                 ``MOST`` outputs further, and no drain is under way: that depends on the records alone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.publications import published_by
from tailrace.core.engine.task import Task
from tailrace.core.records import CHANNEL
from tailrace.history.rebuilding.job import Job
from tailrace.history.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition

TOPIC = "topic:"
MOST = 1_000
"""Outputs after which a task in canonical order has a mark."""
_MINUTE_MS = 60_000


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A commit of a task. ``number`` is that of its record on the tape; -1 in canonical order."""

    number: int
    clock_ms: int
    published: dict[str, int | None]
    """By topic; see ``upstream``."""
    rows: int = 0
    """How many outputs of this rebuild there were by then."""
    left: dict[str, int] = {}
    """By topic that nobody was held back of: the watermark that had been reached. A service publishes it before it lets go."""


def marks_wanted(job: Job) -> bool:
    """Whether outputs go where watermarks can be published."""
    return job.request.to.outputs.startswith(TOPIC)


def mark_of(task: Task, record: tape.TapeRecord | None = None, rows: int = 0) -> Mark:
    """The mark of a task, as it stands. Along a tape its record tells which timers had not fired by then."""
    operators = task.plan.operators
    if record is None:
        reached = {one.index: task.published_ms(one.index) for one in operators}
    else:
        holds = {one.index: record.holds.get(one.name) for one in task.plan.actors}
        reached = {one.index: task.watermarks.published_ms(one.index, holds.get) for one in operators}
    published = {name: mark for name, mark in published_by(task.plan, reached).items() if CHANNEL not in name}
    stand = published_by(task.plan, dict(enumerate(task.watermarks.of_operator)))
    left = {name: at for name, mark in published.items() if mark is None and (at := stand[name]) is not None}
    return Mark(-1 if record is None else record.number, task.now, published, rows, left)


def encode_marks(marks: Sequence[Mark]) -> bytes:
    """For the result of a unit."""
    return msgspec.msgpack.encode(marks)


def decode_marks(data: bytes) -> list[Mark]:
    """What ``encode_marks`` wrote."""
    return msgspec.msgpack.decode(data, type=list[Mark]) if data else []


class Marking:
    """Says when a task that has no tape is to have a mark."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._minute = -1
        self._outputs = self._emitted()

    def is_due(self) -> bool:
        """Whether it is time for one; then it is taken to be made."""
        task = self._task
        minute, outputs = task.now // _MINUTE_MS, self._emitted()
        if task.draining or (minute == self._minute and outputs - self._outputs < MOST):
            return False
        self._minute, self._outputs = minute, outputs
        return True

    def _emitted(self) -> int:
        return self._task.totals.outputs + self._task.waiting_outputs


# --- the order of all tasks' marks


class Turn(msgspec.Struct, frozen=True):
    """One mark's turn: ``place`` is its number among the partition's, from 0."""

    partition: int
    place: int


def turns(plan: Plan, log: EmbeddedLog, marks: Mapping[int, Sequence[Mark]]) -> list[Turn]:
    """All marks in the order in which they are published."""
    ranks = _ranks(plan, log)
    found: list[tuple[tuple[int, int, int], Turn]] = []
    taped = all((number, one.number) in ranks for number, some in marks.items() for one in some)
    for number, some in marks.items():
        for place, one in enumerate(some):
            at = ranks[number, one.number] if taped else one.clock_ms
            found.append(((at, number, place), Turn(number, place)))
    found.sort(key=lambda pair: pair[0])
    return [turn for _, turn in found]


def _ranks(plan: Plan, log: EmbeddedLog) -> dict[tuple[int, int], int]:
    """By partition and number of a tape record: which commit of the log it came with, counted."""
    if plan.tape_topic not in log.topics():
        return {}
    offsets = {place: rank for rank, place in enumerate(log.commit_order(plan.tape_topic))}
    found: dict[tuple[int, int], int] = {}
    for number in range(plan.partitions):
        rank = -1
        place = TopicPartition(plan.tape_topic, number)
        for record in reversed(list(scan(log, *place))):
            rank = offsets.get((place, record.offset + 1), rank)
            found.setdefault((number, tape.decode_tape(record.value or b"").number), rank)
    return found
