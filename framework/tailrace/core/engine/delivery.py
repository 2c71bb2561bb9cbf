"""Delivery of what an app sends to itself, where all of its tasks run as one.

Theory. Messages, topics that the app both writes and reads, and the topics behind ``repartition=True`` are effects of the
code. Where history is run by code that may send something else than what was recorded, they come from the tasks
themselves: each output for an own input is handed to the task that reads it right after the step that made it, first
sent first, before any other record. Nothing recorded is read, so the result depends on the records from outside alone.

    own input    the inbox, and every input that an operator of the app may write, or that late events are routed to. What
                 others have written to it is added in its place (``add``)
    offset       runs on from the task's position; beyond every real offset (``_BEYOND``) where the topic has a recorded
                 past, so that no record is taken for another by whoever continues from here
    watermark    of an own input that follows its writers, and of a channel: once nothing is left to deliver, the least of
                 what its writers would publish, over all tasks
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.publications import publications
from tailrace.core.engine.task import Task
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of

Told: TypeAlias = Callable[[str, int, InputRecord], None]
"""Gets each record that is delivered: the input, the partition, and the record as the topic would hold it."""

_BEYOND = 1 << 40


def own_inputs(plan: Plan) -> dict[str, InputPlan]:
    """The inputs that the app may write itself, by name: its inbox, and those that its operators or late events go to."""
    written = plan.written
    return {one.name: one for one in plan.inputs if one.is_inbox or one.name in written}


class Delivered(NamedTuple):
    """A record on its way to the task that reads it."""

    place: int
    to: InputPlan
    record: InputRecord


class Delivery:
    """The records under way between the tasks of one app. ``ends``, by task: where the recorded past of own inputs ends."""

    def __init__(self, tasks: Sequence[Task], ends: Sequence[Mapping[str, int]], told: Told) -> None:
        plan = tasks[0].plan
        published = {one.name for one in plan.published}
        self.inputs = own_inputs(plan)
        self._tasks, self._told = tasks, told
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
        """Places of the tasks that have worked since their watermarks were looked at."""
        self._published: list[dict[str, int | None]] = [{} for _ in tasks]

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def send(self, output: Output) -> None:
        """Take an output of one of the tasks; nothing happens if the app does not read it."""
        to = self.inputs.get(output.topic)
        if to is not None:
            key = output.key
            self.add(
                to,
                partition_of(key or b"", len(self._tasks)),
                InputRecord(0, output.timestamp_ms, key, output.value, output.headers),
            )

    def add(self, to: InputPlan, place: int, record: InputRecord) -> None:
        """Put a record of an own input behind those that wait; it gets the next offset."""
        offsets = self._next[to.name]
        record = record._replace(offset=offsets[place])
        offsets[place] += 1
        self._told(to.name, place, record)
        self._waiting.append(Delivered(place, to, record))

    def next(self) -> Delivered:
        """The record that has waited longest."""
        found = self._waiting.popleft()
        self._stale.add(found.place)
        return found

    def worked(self, place: int) -> None:
        """The watermarks of a task may have moved."""
        self._stale.add(place)

    def risen(self) -> Iterator[tuple[int, int | None]]:
        """The sources whose writers have come further, each with its watermark; None: they hold nobody back."""
        for place in self._stale:
            self._published[place] = publications(self._tasks[place])
        self._stale.clear()
        sources = self._tasks[0].plan.sources
        for name in self._following:
            marks = [said for one in self._published if (said := one[name]) is not None]
            mark = min(marks, default=None)
            if mark != self._marks[name]:
                self._marks[name] = mark
                yield sources.index(name), mark
