"""The order in which records of several inputs are taken.

Theory. Within an input, offsets are never reordered. Between inputs, the head with the lowest event time goes
first. Times are compared in steps of a tolerance, so that runs stay long; within a step, the input whose name
sorts first goes first. A head without an event time goes at once. So the order of two heads depends only on
these two heads: an input that other actors read does not change the order of an actor's own inputs.

The merge waits only for inputs that have unread records: as long as one of these has no head here, the order
is unknown, and no run is returned. It never waits for feedback and slow reference data.

This order depends on which records had arrived, so it is a cause: the task writes it on its tape, and a
replay follows the tape instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.core.declare.plan import InputPlan
from tailrace.core.records import Head

TOLERANCE_MS = 1_000
"""Step in which the event times of different inputs are compared."""


def limit_of(rank: int, other_ms: int, other_rank: int, tolerance_ms: int) -> int:
    """The latest event time at which heads of rank ``rank`` go before a head of another input."""
    step = other_ms // tolerance_ms
    return (step + (rank < other_rank)) * tolerance_ms - 1


class Merge:
    """The heads of all inputs, returned as runs.

    ``offer`` heads as they are read, call ``unread`` to set which inputs have more to read, and call
    ``next_run`` until it returns None.
    """

    def __init__(self, inputs: tuple[InputPlan, ...], tolerance_ms: int = TOLERANCE_MS) -> None:
        self._heads: list[Sequence[Head]] = [()] * len(inputs)
        self._at = [0] * len(inputs)
        self._unread = [False] * len(inputs)
        self._waited_for = [not plan.is_inbox and plan.watermark != "none" for plan in inputs]
        self._tolerance_ms = max(1, tolerance_ms)

    def offer(self, number: int, heads: Sequence[Head]) -> None:
        """Add heads, which follow those offered before."""
        left = self._heads[number][self._at[number] :]
        self._heads[number] = [*left, *heads] if left else heads
        self._at[number] = 0

    def unread(self, number: int, unread: bool) -> None:
        """Set whether the input has more to read than was offered."""
        self._unread[number] = unread

    def buffered(self, number: int) -> int:
        """The number of heads of the input that wait here."""
        return len(self._heads[number]) - self._at[number]

    def next_run(self, most: int = 1 << 62) -> tuple[int, Sequence[Head]] | None:
        """The next input and its heads, at most ``most``; None if it has no heads, or waits for an input."""
        ready: list[tuple[int, int]] = []
        for number, heads in enumerate(self._heads):
            if self._at[number] < len(heads):
                time_ms = heads[self._at[number]][1]
                if time_ms is None:
                    return self._take(number, self._at[number] + 1)
                ready.append((time_ms // self._tolerance_ms, number))
            elif self._unread[number] and self._waited_for[number]:
                return None
        if not ready:
            return None
        ready.sort()
        first = ready[0][1]
        heads, at = self._heads[first], self._at[first]
        stop = min(len(heads), at + most)
        if len(ready) > 1:
            step, other = ready[1]
            limit_ms = limit_of(first, step * self._tolerance_ms, other, self._tolerance_ms)
            for index in range(at, stop):
                time_ms = heads[index][1]
                if time_ms is None or time_ms > limit_ms:
                    stop = max(index, at + 1)
                    break
        return self._take(first, stop)

    def _take(self, number: int, stop: int) -> tuple[int, Sequence[Head]]:
        heads, at = self._heads[number], self._at[number]
        if at == 0 and stop == len(heads):
            self._heads[number], self._at[number] = (), 0
            return number, heads
        self._at[number] = stop
        return number, heads[at:stop]
