"""Reads the records of a task's history from a source, and decodes them in bulk before their order is known.

Runs of one input are short if inputs interleave. An ``Intake`` reads windows from its source, independent of
the runs, so the cost of a call of the source, and of the decoder, is paid once for thousands of records. It
never reads past ``ahead``: records after that may have to be decoded differently, or may not exist.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

from tailrace.core.engine.task import Task
from tailrace.core.records import Head, InputRecord

Source: TypeAlias = Callable[[str, int, int], Sequence[InputRecord]]
"""Returns the records of an input (by name) from a first offset up to, but not including, a last one."""

WINDOW = 10_000
"""Number of offsets to read at once. A history may have more records than fit in memory."""

_offset_of = itemgetter(0)


class Intake:
    """One input of one task, read in windows and returned in runs."""

    def __init__(
        self, task: Task, number: int, source: Source, start: int, window: int | None = None
    ) -> None:
        self._task, self._number, self._source = task, number, source
        self._name = task.plan.inputs[number].name
        self._window = window or WINDOW
        self._heads: list[Head] = []
        self._at = 0
        self._next = start
        """The offset after the last run."""
        self._read = start
        """The offset up to which the source was read."""

    def window(self, ahead: int) -> tuple[list[Head], Sequence[InputRecord]] | None:
        """The next heads with their records, from one window of offsets; None if ``ahead`` is reached."""
        if self._read >= ahead:
            return None
        stop = min(self._read + self._window, ahead)
        records = self._source(self._name, self._read, stop)
        self._read = stop
        return self._task.decode(self._number, records), records

    def run(self, start: int, stop: int, ahead: int) -> Iterator[Sequence[Head]]:
        """The heads of offsets ``start`` to before ``stop``, in pieces. ``ahead`` is at least ``stop``."""
        if start != self._next:
            self._heads, self._at, self._read = [], 0, start
        count, self._next = stop - start, -1
        while True:
            heads, at = self._heads, self._at
            if at < len(heads):
                end = at + count
                # Usually each offset has its record.
                if end > len(heads) or heads[end - 1][0] != stop - 1:
                    end = bisect_left(heads, stop, at, key=_offset_of)
                self._at = end
                if end > at:
                    count = stop - 1 - heads[end - 1][0]
                    yield heads[at:end]
                if end < len(heads):
                    break
            found = self.window(ahead) if self._read < stop else None
            if found is None:
                break
            self._heads, self._at = found[0], 0
        self._next = stop


def refill(task: Task, source: Source) -> None:
    """Read again the events that waited for their turn at the cut of a task, before its first cause.

    Raises what ``Task.refilled`` raises.
    """
    for name, low in task.waiting_from().items():
        number = next(one.index for one in task.plan.inputs if one.name == name)
        for start in range(low, task.positions[name], WINDOW):
            stop = min(start + WINDOW, task.positions[name])
            task.refill(number, task.decode(number, source(name, start, stop)))
    task.refilled()
