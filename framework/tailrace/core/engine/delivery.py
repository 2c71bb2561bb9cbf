"""Delivery of records that an app sends to itself, when all of its tasks run as one.

Theory. Messages, topics that the app both writes and reads, and the topics behind ``repartition=True`` are
effects of the code. If changed code runs along history, it may send other records than the recorded ones, so
these records must come from the tasks themselves. Each output for an own input is delivered to the task that
reads it, directly after the step that made it, in the order of sending, before any other record. No recorded
copy is read, so the result depends only on the records from outside.

    own input    the inbox, and every input that an operator of the app may write, or that gets routed late
                 events. Records that others have written to it are added at their place (``add``)
    offset       counts up from the task's position. If the topic has a recorded past, it starts after every
                 real offset (``_BEYOND``), so a task that continues cannot take it for a recorded one
    watermark    of an own input that follows its writers, and of a channel: when no record is left to
                 deliver, the lowest watermark that its writers would publish, over all tasks
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of

Deliver: TypeAlias = Callable[[str, int, InputRecord], None]
"""Called with each delivered record: the input, the partition, and the record as the topic would have it."""

_BEYOND = 1 << 40


def own_inputs(plan: Plan) -> dict[str, InputPlan]:
    """The inputs that the app may write, by name: its inbox, and targets of its operators or late events."""
    written = plan.written
    return {one.name: one for one in plan.inputs if one.is_inbox or one.name in written}


class Delivered(NamedTuple):
    """A record on its way to the task that reads it."""

    place: int
    to: InputPlan
    record: InputRecord


class Delivery:
    """The records in transit between the tasks of one app. ``ends``, by task: of the recorded own inputs."""

    def __init__(self, tasks: Sequence[Task], ends: Sequence[Mapping[str, int]], deliver: Deliver) -> None:
        plan = tasks[0].plan
        published = {one.name for one in plan.published}
        self.inputs = own_inputs(plan)
        self._tasks, self._deliver = tasks, deliver
        self._waiting: deque[Delivered] = deque()
        self._next = {
            name: [
                _BEYOND + (task.positions[name] << 20) if name in end else task.positions[name]
                for task, end in zip(tasks, ends, strict=True)
            ]
            for name in self.inputs
        }
        follows = {one.name for one in plan.inputs if one.watermark == "upstream"} & self.inputs.keys()
        follows |= {*plan.sources[len(plan.inputs) :]}
        self._following = sorted(follows & published)
        """The sources that follow operators of the app."""
        self._marks: dict[str, int | None] = dict.fromkeys(self._following, NO_WATERMARK)
        self._stale = set(range(len(tasks)))
        """Tasks (by place) that have worked since their watermarks were last read."""
        self._published: list[dict[str, int | None]] = [{} for _ in tasks]

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def send(self, output: Output) -> None:
        """Accept an output of one of the tasks; ignored if the app does not read its topic."""
        to = self.inputs.get(output.topic)
        if to is not None:
            key = output.key
            self.add(
                to,
                partition_of(key or b"", len(self._tasks)),
                InputRecord(0, output.timestamp_ms, key, output.value, output.headers),
            )

    def add(self, to: InputPlan, place: int, record: InputRecord) -> None:
        """Append a record of an own input to the waiting records; it gets the next offset."""
        offsets = self._next[to.name]
        record = record._replace(offset=offsets[place])
        offsets[place] += 1
        self._deliver(to.name, place, record)
        self._waiting.append(Delivered(place, to, record))

    def next(self) -> Delivered:
        """The record that has waited longest."""
        found = self._waiting.popleft()
        self._stale.add(found.place)
        return found

    def worked(self, place: int) -> None:
        """Note that the watermarks of a task may have moved."""
        self._stale.add(place)

    def risen(self) -> Iterator[tuple[int, int | None]]:
        """The sources whose writers have a new watermark, with its value; None holds no reader back."""
        for place in self._stale:
            self._published[place] = self._tasks[place].publications()
        self._stale.clear()
        sources = self._tasks[0].plan.sources
        for name in self._following:
            marks = [mark for one in self._published if (mark := one[name]) is not None]
            mark = min(marks, default=None)
            if mark != self._marks[name]:
                self._marks[name] = mark
                yield sources.index(name), mark
