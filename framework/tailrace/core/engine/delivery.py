"""Delivery of records that an app sends to itself, when all of its tasks run as one.

Theory. Messages, topics that the app both writes and reads, and the topics behind ``repartition=True`` are
effects of the code. If changed code runs along history, it may send other records than the recorded ones, so
these records must come from the tasks themselves. Each output for an own input is delivered to the task that
reads it, directly after the step that made it, in the order of sending, before any other record. No recorded
copy is read, so the result depends only on the records from outside.

    own input    the inbox with messages, and every input that an operator of the app may write, or that gets routed late
                 events. Records that others have written to it are added at their place (``add``)
    offset       counts up from the task's position. If the topic has a recorded past, it starts after every
                 real offset (``BEYOND``), so a task that continues cannot take it for a recorded one
    watermark    of an own input that follows its writers, and of a channel: when no record is left to
                 deliver, the lowest watermark that its writers would publish, over all tasks

Most of these watermarks only rise, and have no effect until a timer is due or an event is ready. So a task gets one
when it has an effect, or before the task has another cause (``is_silent``), and a task may take several
records at once if they send nothing and no watermark that they could raise has an effect (``run_until_ms``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.engine.watermarks import published_by
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of

Deliver: TypeAlias = Callable[[str, int, InputRecord], None]
"""Called with each delivered record: the input, the partition, and the record as the topic would have it."""

BEYOND = 1 << 40
"""After every real offset."""


def own_inputs(plan: Plan) -> dict[str, InputPlan]:
    """The inputs that the app may write, by name: its inbox, if it sends messages, and targets of its operators or late events."""
    written = plan.written
    return {
        one.name: one for one in plan.inputs if (one.is_inbox and plan.has_messages) or one.name in written
    }


class Delivered(NamedTuple):
    """A record on its way to the task that reads it."""

    place: int
    to: InputPlan
    record: InputRecord


class Delivery:
    """The records in transit between the tasks of one app. ``ends``, by task: of the recorded own inputs."""

    def __init__(self, tasks: Sequence[Task], ends: Sequence[Mapping[str, int]], deliver: Deliver) -> None:
        plan = tasks[0].plan
        self.inputs = own_inputs(plan)
        self._plan, self._tasks, self._deliver = plan, tasks, deliver
        self.waiting: deque[Delivered] = deque()
        """The records that are not delivered yet."""
        self._next = {
            name: [
                BEYOND + (task.positions[name] << 20) if name in end else task.positions[name]
                for task, end in zip(tasks, ends, strict=True)
            ]
            for name in self.inputs
        }
        follows = {one.name for one in plan.inputs if one.watermark == "upstream"} & self.inputs.keys()
        follows |= {*plan.sources[len(plan.inputs) :]}
        self._following = sorted(
            (one for one in plan.published if one.name in follows), key=attrgetter("name")
        )
        """The sources that follow operators of the app."""
        self.follows = bool(self._following)
        """Whether there are any."""
        self._writers = sorted({writer for one in self._following for writer in one.writers})
        self._raised = {
            source: tuple(one.index for one in plan.operators if source in one.sources)
            for source in (plan.sources.index(one.name) for one in self._following)
        }
        """By such a source, the operators that it raises."""
        self._all_raised = sorted({one for raised in self._raised.values() for one in raised})
        self._free = {one.index for one in plan.inputs if self._is_free(one)}
        """Inputs whose events concern no operator that such a source raises."""
        self._silent = {one for one, raised in self._raised.items() if not {*raised} & {*self._writers}}
        """Those that raise no operator that another one of them follows."""
        self._marks: dict[str, int | None] = {one.name: NO_WATERMARK for one in self._following}
        self._stale = set(range(len(tasks)))
        """Tasks (by place) that have worked since their watermarks were last read."""
        self._published: list[dict[str, int | None]] = [{} for _ in tasks]

    def send(self, output: Output) -> None:
        """Accept an output of one of the tasks; ignored if the app does not read its topic."""
        to = self.inputs.get(output.topic)
        if to is not None:
            self.add(to, partition_of(output.key or b"", len(self._tasks)), output)

    def add(self, to: InputPlan, place: int, one: Output | InputRecord) -> None:
        """Append a record of an own input to the waiting records; it gets the next offset."""
        offsets = self._next[to.name]
        record = InputRecord(offsets[place], one.timestamp_ms, one.key, one.value, one.headers)
        offsets[place] += 1
        self._deliver(to.name, place, record)
        self.waiting.append(Delivered(place, to, record))

    def next(self) -> tuple[int, InputPlan, list[InputRecord]]:
        """The records that have waited longest, and follow one another in one input of one task."""
        place, to, record = self.waiting.popleft()
        found, waiting = [record], self.waiting
        while waiting and waiting[0].to is to and waiting[0].place == place:
            found.append(waiting.popleft().record)
        self._stale.add(place)
        return place, to, found

    def _is_free(self, one: InputPlan) -> bool:
        concerned = {*one.touches, *one.moves}
        concerned |= {number for it in concerned for number in self._plan.operators[it].together}
        return bool(one.moves) and concerned.isdisjoint(self._all_raised)

    def raised_by(self, source: int) -> tuple[int, ...]:
        """The operators that a source raises that follows others."""
        return self._raised[source]

    def run_until_ms(self, one: InputPlan) -> int:
        """Records of an input may be taken together as long as their times are before this: then no watermark that
        they raise makes a timer due, or a waiting event ready, in an operator that follows others.
        """
        if not self._following or one.index not in self._free:
            return NO_WATERMARK if self._following else FOREVER
        return min([task.due_ms(self._all_raised) for task in self._tasks])

    def is_silent(self, task: Task, source: int, mark: int) -> bool:
        """Whether a watermark has no effect in a task yet, so that it can get it later."""
        return (
            source in self._silent
            and not task.watermarks.idle[source]
            and task.due_ms(self._raised[source]) > mark
        )

    def worked(self, place: int) -> None:
        """Note that the watermarks of a task may have moved."""
        self._stale.add(place)

    def risen(self) -> Iterator[tuple[int, int | None]]:
        """The sources whose writers have a new watermark, with its value; None holds no reader back."""
        for place in self._stale:
            published_ms = self._tasks[place].published_ms
            self._published[place] = published_by(
                self._following, {writer: published_ms(writer) for writer in self._writers}
            )
        self._stale.clear()
        sources = self._plan.sources
        for name in self._marks:
            marks = [mark for one in self._published if (mark := one[name]) is not None]
            mark = min(marks, default=None)
            if mark != self._marks[name]:
                self._marks[name] = mark
                yield sources.index(name), mark
