"""Watermarks between services: what a task publishes with its commits, and what it makes of what others publish.

Theory. A task's watermark says that no event at or before it is expected any more; so of what it emits to a topic with
an allowed disorder of d, nothing is expected at or before (watermark - d). It publishes that with each commit, for the
topics that its app writes and does not read. A reader may apply it once it has read all that was in its partition when
it was published: the log tells which publications hold at a position.

A topic has as many publishers as tasks write it. Its watermark is the least of theirs, without those that hold nobody
back (all of their inputs are idle, or have ended); if none does, the highest. With the first publication of one task of
an app all of its tasks are known: one that has not committed yet holds everybody back until it does, with its first
records or because its inputs fall idle or end. An app is known from its first commit on: what comes from one that appears
later, behind the watermark, is late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.task import Task
from tailrace.core.engine.watermarks import NOTHING
from tailrace.log.interface import Log, Reader


class Upstream:
    """The publications for one task's inputs, as far as the reader has come."""

    __slots__ = ("_again", "_last", "_log", "_partition", "_reader", "_said", "inputs")

    def __init__(self, plan: Plan, partition: int, log: Log, reader: Reader) -> None:
        self._log = log
        self._reader = reader
        self._partition = partition
        self.inputs = {one.index: one.name for one in plan.inputs if one.watermark == "upstream"}
        """The inputs that follow their producers, by number."""
        self._again: set[int] = set()
        self._said: dict[int, dict[str, int | None]] = {number: {} for number in self.inputs}
        self._last: dict[int, dict[str, int]] = {number: {} for number in self.inputs}

    def news(self, number: int) -> int | None:
        """The watermark of an input, if something was published that holds where the reader stands."""
        published = self._reader.published(self.inputs[number], self._partition)
        if not published and number not in self._again:
            return None
        self._again.discard(number)
        said, last = self._said[number], self._last[number]
        for publisher, watermark_ms in published:
            if publisher not in said:
                said.update(dict.fromkeys(_tasks_beside(publisher, self._log), NOTHING))
            said[publisher] = watermark_ms
            if watermark_ms is not None:
                last[publisher] = watermark_ms
        holding = [watermark_ms for watermark_ms in said.values() if watermark_ms is not None]
        return min(holding) if holding else max(last.values(), default=None)

    def again(self, number: int) -> None:
        """Give the input's watermark once more: it could not be applied."""
        self._again.add(number)


def _tasks_beside(publisher: str, log: Log) -> Iterable[str]:
    """The transactional ids of all tasks of a task's app; a publisher that is no task is alone."""
    app, _, number = publisher.rpartition("-")
    tape = log.topics().get(f"{app}.tape")
    return (f"{app}-{one}" for one in range(tape.partitions)) if tape and number.isdigit() else ()


def publications(task: Task) -> Mapping[str, int | None]:
    """What a task publishes with its next commit, by topic; None where it holds nobody back."""
    return publications_of(task.plan, None if task.holds_nobody_back else task.watermark)


def publications_of(plan: Plan, watermark_ms: int | None) -> Mapping[str, int | None]:
    """What a task with this watermark publishes; None: it holds nobody back."""
    read = {one.declared_name for one in plan.inputs}
    written = [name for name in plan.outputs if name not in read and name in plan.topics]
    if watermark_ms is None or watermark_ms == NOTHING:
        return dict.fromkeys(written, watermark_ms)
    return {name: watermark_ms - plan.topics[name].settings.out_of_order_ms for name in written}
