"""Watermarks in the log: what a task publishes with its commits, and how it uses those of other tasks.

Theory. A task publishes for each topic that its app writes, and for each channel of messages, the least watermark of
the operators that may write it, less the topic's disorder: no record at or before it will come from this task any
more. An operator with due timers that have not fired (a commit may happen within a drain) counts as standing before
the first of them. A reader may apply a publication once it has read everything that was in its partition then: the
log knows which publications hold at a position.

    an operator with idle sources only   holds no reader back: a topic that it alone writes is published as None
    the last watermark before that       is published first, by a commit of its own, so that it is not lost
    a source that has ended              no longer counts, but its operator still publishes its watermark: an app whose
                                         inputs have ended holds its readers there until it continues, or is retired

A source has as many publishers as tasks write it. Its watermark is the least of theirs, without those that hold no
reader back; if none does, the source is idle. Of the app itself all tasks are known from the beginning; those of
another app from the first publication of one of them. A task that has not committed yet holds all readers back until
its first commit, which it makes with its first records or because its inputs become idle. A task that is down holds
them back too, since it will resume. A task that will not run again is retired: see ``retirement``. An app
is known from its first commit on: if it appears later, its records behind the watermark are late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.errors import UnknownTopicError
from tailrace.core.names import tape_of, task_of, transactional_id
from tailrace.core.records import CHANNEL
from tailrace.log.interface import Log, Publication

IDLE: Final = "idle"
"""Stands for the watermark of a source whose writers hold no reader back."""

Published = int | None
"""The publication of one publisher: a watermark, or None."""


class Upstream:
    """The publications for a task's sources (by number in the plan), up to the position in its inputs."""

    __slots__ = ("_last", "_log", "_plan", "_published", "inputs")

    def __init__(self, plan: Plan, log: Log) -> None:
        self._plan = plan
        self._log = log
        channels = range(len(plan.inputs), len(plan.sources))
        self.inputs: dict[int, tuple[int, ...]] = {
            one.index: (one.index,) for one in plan.inputs if one.watermark == "upstream"
        }
        """The inputs whose publications are read, each with the sources that use them."""
        self.inputs |= {one.index: tuple(channels) for one in plan.inputs if one.is_inbox and channels}
        own = {one.index for one in plan.inputs if one.own} | set(channels)
        tasks = [transactional_id(plan.app, number) for number in range(plan.partitions)]
        self._published: dict[int, dict[str, Published]] = {
            source: dict.fromkeys(tasks, NO_WATERMARK) if source in own else {}
            for sources in self.inputs.values()
            for source in sources
        }
        self._last: dict[int, int] = {}

    def take(self, number: int, publications: Iterable[Publication]) -> dict[int, int | str]:
        """By source of an input, the watermark at a position, or IDLE; without unknown ones. ``publications``: those that hold there and
        were not given before.
        """
        name = self._plan.inputs[number].name
        for publisher, watermark_ms, actor in publications:
            source = self._channel(name, actor) if actor else number
            if source in self._published:
                self._hear(source, publisher, watermark_ms)
        found = {source: self._watermark(source) for source in self.inputs[number]}
        return {source: mark for source, mark in found.items() if mark is not None}

    def _channel(self, inbox: str, actor: str) -> int:
        """The number of a channel; -1 if it is no longer a channel of this app."""
        name = f"{inbox}{CHANNEL}{actor}"
        return self._plan.sources.index(name) if name in self._plan.sources else -1

    def _hear(self, source: int, writer: str, watermark_ms: int | None) -> None:
        published = self._published[source]
        if writer not in published:
            published.update(dict.fromkeys(tasks_beside(writer, self._log), NO_WATERMARK))
        published[writer] = watermark_ms
        if watermark_ms is not None:
            self._last[source] = max(watermark_ms, self._last.get(source, NO_WATERMARK))

    def _watermark(self, source: int) -> int | str | None:
        published = self._published[source]
        holding = [watermark_ms for watermark_ms in published.values() if watermark_ms is not None]
        if holding:
            return min(holding)
        return IDLE if published else None

    def last_ms(self, source: int) -> int:
        """The highest watermark that any publisher of a source has ever published."""
        return self._last.get(source, NO_WATERMARK)


def without_watermark(log: Log, topic: str) -> list[str]:
    """The transactional ids of the tasks that hold all readers of a topic back, because they have published no
    watermark yet, or none since they have started again.
    """
    published = {writer: mark for (of, writer), mark in log.publications().items() if of == topic}
    known = {*published, *(one for writer in published for one in tasks_beside(writer, log))}
    return sorted(one for one in known if published.get(one, NO_WATERMARK) == NO_WATERMARK)


def tasks_beside(publisher: str, log: Log) -> list[str]:
    """The transactional ids of all tasks of the publisher's app; none if the publisher is no task.
    Raises LogDeniedError.
    """
    task = task_of(publisher)
    if task is None:
        return []
    app, _ = task
    try:
        count = log.partitions(tape_of(app))
    except UnknownTopicError:
        return []
    return [transactional_id(app, one) for one in range(count)]
