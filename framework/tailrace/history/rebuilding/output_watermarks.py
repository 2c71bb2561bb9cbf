"""Marks: the watermarks that a task's commits published with its outputs, for topics that a rebuild writes.

Theory. A topic is more than its records. Its producers have published their watermarks with it, commit by
commit, and the readers that follow them (``watermark="upstream"``) derive from these what is late and which
timers are due. In addition, the records of several tasks are in a partition in the order of their commits. So
a rebuild that writes topics keeps a *mark* for each commit::

    mark     the number of outputs by then, and the progress of the task: its published watermarks, its clock

and publishes mark by mark: the outputs up to it, the watermark, and the progress, in one transaction.

    publishers   one for each task, all registered before the first record. As in a live service, a task holds
                 all readers back until it has published
    order        along a tape, that of the service's commits, which an embedded log has: the same code gives
                 the same topics, record by record. If the log lacks a part of it: by clock, then by partition
    marks        along a tape, one for each record of the tape. In canonical order, when the task's clock
                 reaches another minute, or after ``MOST`` more outputs, if no drain is open
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.task import Task
from tailrace.core.engine.watermarks import published_by
from tailrace.core.records import CHANNEL
from tailrace.history.reading.stretches import scan
from tailrace.history.reading.tape_records import tape_record
from tailrace.history.rebuilding.job import Job
from tailrace.log.interface import Log, TopicPartition

TOPIC = "topic:"
MOST = 1_000
"""Number of outputs after which a task in canonical order makes a mark."""
_MINUTE_MS = 60_000


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A commit of a task. ``number`` is that of its record on the tape; -1 in canonical order."""

    number: int
    clock_ms: int
    published: dict[str, int | None]
    """By topic; see ``upstream_watermarks``."""
    rows: int = 0
    """Number of outputs of this rebuild up to the mark."""
    left: dict[str, int] = {}
    """For topics without a published watermark (None): the one reached, which a service publishes first."""


def marks_wanted(job: Job) -> bool:
    """Whether outputs go to topics, with which watermarks can be published."""
    return job.request.to.outputs.startswith(TOPIC)


def mark_of(task: Task, record: tape.TapeRecord | None = None, rows: int = 0) -> Mark:
    """The present mark of a task. Along a tape the record names the timers that had not fired by then."""
    operators = task.plan.operators
    if record is None:
        reached = {one.index: task.published_ms(one.index) for one in operators}
    else:
        holds = {one.index: record.holds.get(one.name) for one in task.plan.actors}
        reached = {one.index: task.watermarks.published_ms(one.index, holds.get) for one in operators}
    published = {
        name: mark for name, mark in published_by(task.plan.published, reached).items() if CHANNEL not in name
    }
    stand = published_by(task.plan.published, dict(enumerate(task.watermarks.of_operator)))
    left = {name: at for name, mark in published.items() if mark is None and (at := stand[name]) is not None}
    return Mark(-1 if record is None else record.number, task.now, published, rows, left)


def encode_marks(marks: Sequence[Mark]) -> bytes:
    """The marks as bytes, for the result of a unit."""
    return msgspec.msgpack.encode(marks)


def decode_marks(data: bytes) -> list[Mark]:
    """The marks in the bytes of ``encode_marks``."""
    return msgspec.msgpack.decode(data, type=list[Mark]) if data else []


class Marking:
    """Decides when a task without a tape gets a mark."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._minute = -1
        self._outputs = self._emitted()

    def is_due(self) -> bool:
        """Whether a mark is due. If so, the caller must make it: the next one is measured from here."""
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
    """One mark in the order of publication. ``place``: its number among the partition's marks, from 0."""

    partition: int
    place: int


def turns(plan: Plan, log: Log, marks: Mapping[int, Sequence[Mark]]) -> list[Turn]:
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


def _ranks(plan: Plan, log: Log) -> dict[tuple[int, int], int]:
    """By partition and number of a tape record: the running number of its commit in the log."""
    known = plan.tape_topic in log.topics()
    offsets = {place: rank for rank, place in enumerate(log.commit_order(plan.tape_topic))} if known else {}
    if not offsets:
        return {}
    found: dict[tuple[int, int], int] = {}
    for number in range(plan.partitions):
        rank = -1
        place = TopicPartition(plan.tape_topic, number)
        for record in reversed(list(scan(log, *place))):
            rank = offsets.get((place, record.offset + 1), rank)
            found.setdefault((number, tape_record(place, record).number), rank)
    return found
