"""The watermarks that the commits of a task publish.

A commit publishes the watermarks that the task has reached. If they differ from the last published ones, that alone is a reason for a
commit, since a task whose source became idle, or that was restored, may have nothing else to commit.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.core.declare.plan import Published
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.task import Task


class PublishedWatermarks:
    """``before``: what the task has published last, by topic and channel; None: it holds no reader back."""

    __slots__ = ("_last", "_task", "owed")

    def __init__(self, task: Task, before: Mapping[str, int | None]) -> None:
        self._task = task
        self._last = dict(before)
        # A task that has never committed holds everybody back as it is, unless it was retired.
        self.owed = bool(before or any(task.positions.values())) and self._differ()
        """Whether the next commit publishes anything new, as far as was known at the last commit."""

    def wanted(self) -> dict[str, int | None]:
        """What the next commit publishes."""
        wanted = self._task.publications()
        # What it no longer writes holds nobody back any more.
        wanted |= {name: None for name in self._last if name not in wanted}
        for one in self._task.plan.published:
            if wanted[one.name] is None:
                # Its last watermark first, by a commit of its own: readers take it before they let go.
                reached = self._reached(one)
                last = self._last.get(one.name, NO_WATERMARK)
                if last is not None and last < reached:
                    wanted[one.name] = reached
        return wanted

    def promised(self) -> dict[str, int]:
        """What others go by that was published before. Where nobody is held back now, it is what was published before that."""
        said, found = self._task.publications(), dict[str, int]()
        for one in self._task.plan.published:
            if one.name in self._last:
                marks = (self._last[one.name], said[one.name], self._reached(one))
                found[one.name] = next(mark for mark in marks if mark is not None)
        return found

    def committed(self, published: Mapping[str, int | None]) -> None:
        """A commit has published these."""
        self._last |= published
        self.owed = self._differ()

    def _differ(self) -> bool:
        return any(self._last.get(name, NO_WATERMARK) != mark for name, mark in self.wanted().items())

    def _reached(self, one: Published) -> int:
        marks = self._task.watermarks.of_operator
        return min(marks[writer] for writer in one.writers) - one.out_of_order_ms
