"""The order in which records of several inputs are taken.

Theory. Within an input, offsets are never reordered. Between inputs, the head with the least event time goes first, times
being compared in steps of a tolerance, so that runs stay long; of heads in the same step the input whose name comes first.
A head without an event time goes at once. So which of two heads goes first depends on these two alone: an input that other
actors read changes nothing for the order of those that an actor reads itself.

Only inputs that have something unread are waited for: as long as one of those has no head here, nothing can be said
about the order, and no run is given out. Feedback and slow reference data are never waited for.

An input may be limited in how far it runs ahead (``limits``): a head past its limit is not given out. If all that are here
are past theirs, nothing is, and ``held`` names the first: how long that may last is for the driver to say.

The order chosen here depends on what had arrived, so it is a cause: the task writes it on its tape, and a replay
follows the tape instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tailrace.core.declare.plan import InputPlan
from tailrace.core.records import Head

NO_LIMITS: Mapping[int, int] = MappingProxyType({})
FURTHEST = 1 << 62
NO_TIME = -FURTHEST
TOLERANCE_MS = 1_000
"""How finely the event times of different inputs are told apart."""


def limit_of(rank: int, other_ms: int, other_rank: int, tolerance_ms: int) -> int:
    """The latest event time with which heads of rank ``rank`` go before a head of another input."""
    step = other_ms // tolerance_ms
    return (step + (rank < other_rank)) * tolerance_ms - 1


class Merge:
    """Heads of all inputs, given out as runs.

    ``offer`` heads as they are read, say with ``unread`` which inputs have more to read, and take ``next_run`` until
    it gives None.
    """

    __slots__ = ("_at", "_heads", "_tolerance_ms", "_unread", "_waited_for", "held")

    def __init__(self, inputs: tuple[InputPlan, ...], tolerance_ms: int = TOLERANCE_MS) -> None:
        self._heads: list[Sequence[Head]] = [()] * len(inputs)
        self._at = [0] * len(inputs)
        self._unread = [False] * len(inputs)
        self._waited_for = [not plan.is_inbox and plan.watermark != "none" for plan in inputs]
        self._tolerance_ms = max(1, tolerance_ms)
        self.held: int | None = None
        """The input that the last call held back, if it gave nothing out for that reason."""

    def offer(self, number: int, heads: Sequence[Head]) -> None:
        """Add heads, which follow those offered before."""
        left = self._heads[number][self._at[number] :]
        self._heads[number] = [*left, *heads] if left else heads
        self._at[number] = 0

    def unread(self, number: int, unread: bool) -> None:
        """Say whether the input has more to read than was offered."""
        self._unread[number] = unread

    def buffered(self, number: int) -> int:
        """How many heads of the input are waiting here."""
        return len(self._heads[number]) - self._at[number]

    def next_run(
        self, most: int = 1 << 62, limits: Mapping[int, int] = NO_LIMITS
    ) -> tuple[int, Sequence[Head]] | None:
        """The next run: an input and its heads, at most ``most``. None if there is nothing, or one is waited for.

        ``limits``: by input, the latest event time that it may be read to.
        """
        self.held = None
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
        if limits:
            ready = self._within(ready, limits)
            if not ready:
                return None
        first = ready[0][1]
        heads, at = self._heads[first], self._at[first]
        stop = min(len(heads), at + most)
        limit_ms = limits.get(first, FURTHEST)
        if len(ready) > 1:
            step, other = ready[1]
            limit_ms = min(limit_ms, limit_of(first, step * self._tolerance_ms, other, self._tolerance_ms))
        if limit_ms < FURTHEST:
            for index in range(at, stop):
                time_ms = heads[index][1]
                if time_ms is None or time_ms > limit_ms:
                    stop = max(index, at + 1)
                    break
        return self._take(first, stop)

    def head_ms(self, number: int) -> int:
        """The event time of the next head of an input, which has one."""
        time_ms = self._heads[number][self._at[number]][1]
        return NO_TIME if time_ms is None else time_ms

    def _within(self, ready: list[tuple[int, int]], limits: Mapping[int, int]) -> list[tuple[int, int]]:
        """Those whose heads are within their limits; ``held`` is the first of the others if there are none."""
        within = [one for one in ready if self.head_ms(one[1]) <= limits.get(one[1], FURTHEST)]
        if not within:
            self.held = ready[0][1]
        return within

    def _take(self, number: int, stop: int) -> tuple[int, Sequence[Head]]:
        heads, at = self._heads[number], self._at[number]
        if at == 0 and stop == len(heads):
            self._heads[number], self._at[number] = (), 0
            return number, heads
        self._at[number] = stop
        return number, heads[at:stop]
