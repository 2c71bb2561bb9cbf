"""Pending timers of one actor in one time domain, in firing order.

Theory. A timer's identity is (actor, key, domain, name). Its time is stored with its key. This queue only answers "which timer is due next?", and may be wrong in one direction: it can name a
timer too early, or a timer that was cancelled. The caller that pops an entry checks it against the row, and
pushes it again if the timer was moved to a later time. So setting, moving and cancelling a timer never search
the queue, an aborted unit does not have to repair it, and a timer that each event moves to a later time is
pushed only once.

Each actor has its own queues because each has its own watermark: which timers of one actor are due says
nothing about another.

The queue keeps entries before a *horizon* in a heap. All others are in the store's index, and the queue scans
the index when it reaches the horizon. So memory is bounded, regardless of the number of pending timers.

    set a timer before the horizon     it is pushed on the heap
    set a timer at or after it         it is kept in ``_beyond`` until the next commit puts it into the index
    heap empty, or horizon reached     the next part of the index is read, with ``_beyond`` in that range
    at a commit, with too many         the heap is cut and the horizon lowered (the index has the rest)

The index may be wrong in the same direction: a timer that is moved to a later time keeps its index row, which
is renewed when it comes up. So each timer has an index row at its time or before. A row that comes up and has no
timer is deleted.

Order: (time, place of the actor, key bytes, timer name), over all queues of a domain. The place is
``Plan.order``: an actor nearer to the sources comes first, so its events for an instant arrive before other
actors finish that instant. Names of expiries sort first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.storage import StateReader

Entry: TypeAlias = tuple[int, int, bytes, bytes]
"""Time, place of the actor, key bytes, timer name."""

FOREVER = (1 << 63) - 1
"""Later than any instant."""


class TimerQueue:
    """The queue of one actor and time domain. No timer fires before ``due_ms``, the time of ``first``."""

    __slots__ = ("_beyond", "_heap", "_horizon_ms", "_limit", "_place", "_prefix", "_state", "due_ms")

    def __init__(
        self, domain: int, state: StateReader, actor: str, place: int, limit: int, *, stored: bool
    ) -> None:
        """``stored``: whether the store may hold timers. ``limit``: maximum number of entries in memory."""
        self._state = state
        self._prefix = rows.index_prefix(domain, actor.encode())
        self._place = place
        self._limit = max(2, limit)
        self._heap: list[Entry] = []
        self._beyond: set[Entry] = set()
        self._horizon_ms = -FOREVER if stored else FOREVER
        self.due_ms = self._horizon_ms
        if stored:
            self._refill()

    @property
    def first(self) -> Entry:
        """The next entry. There is one unless ``due_ms`` is ``FOREVER``."""
        return self._heap[0]

    def push(self, time_ms: int, key: bytes, name: bytes) -> None:
        """Add an entry for a timer that is set."""
        if time_ms < self._horizon_ms:
            heappush(self._heap, (time_ms, self._place, key, name))
            if time_ms < self.due_ms:
                self.due_ms = time_ms
        else:
            self._beyond.add((time_ms, self._place, key, name))

    def pop(self) -> Entry:
        """Take the next entry, which may be outdated. ``due_ms`` must have been reached, so that there is one.

        If the heap has it twice, both are taken: otherwise both would be pushed again without end.
        """
        entry = heappop(self._heap)
        while self._heap and self._heap[0] == entry:
            heappop(self._heap)
        if self._heap:
            self.due_ms = self._heap[0][0]
        else:
            self._refill()
        return entry

    def put_back(self, entry: Entry) -> None:
        """Undo a pop."""
        heappush(self._heap, entry)
        self.due_ms = self._heap[0][0]

    def committed(self) -> None:
        """Note that the store's index now has every timer that was set."""
        self._beyond.clear()
        if len(self._heap) > self._limit:
            self._heap.sort()
            cut = self._heap[self._limit // 2][0]
            keep = self._limit // 2
            while keep and self._heap[keep - 1][0] == cut:
                keep -= 1
            if keep:  # otherwise all of them are due at one instant, which cannot be divided
                del self._heap[keep:]
                self._horizon_ms = cut

    def entries(self) -> set[Entry]:
        """All entries, with those of the index. Some may be too early, or outdated."""
        entries = set(self._heap) | self._beyond
        entries.update(self._indexed(-FOREVER, FOREVER))
        return entries

    def _refill(self) -> None:
        """Raise the horizon until the heap has an entry or no entries are left."""
        while not self._heap and self._horizon_ms < FOREVER:
            horizon_ms = FOREVER
            for count, entry in enumerate(self._indexed(self._horizon_ms, FOREVER)):
                if count >= self._limit // 2 and entry[0] > self._heap[-1][0]:
                    horizon_ms = entry[0]
                    break
                self._heap.append(entry)
            near = {entry for entry in self._beyond if entry[0] < horizon_ms}
            self._beyond -= near
            self._heap.extend(near)
            self._horizon_ms = horizon_ms
        heapify(self._heap)
        self.due_ms = self._heap[0][0] if self._heap else FOREVER

    def _indexed(self, start_ms: int, stop_ms: int) -> Iterator[Entry]:
        start, stop = (self._prefix + rows.time_bytes(at_ms) for at_ms in (start_ms, stop_ms))
        for row, _ in self._state.scan(start, stop):
            time_ms, _, key, name = rows.read_index_row(row)
            yield time_ms, self._place, key, name


Timers: TypeAlias = tuple[TimerQueue, ...]
"""The timers of all actors, in one domain of time."""


def timer_queues(plan: Plan, state: StateReader, in_memory: int, *, stored: bool) -> tuple[Timers, Timers]:
    """The timers of each actor, by event time and by processing time. ``in_memory``: about how many of each domain are kept there."""
    most = in_memory // max(1, len(plan.actors))

    def of(domain: int) -> Timers:
        return tuple(
            TimerQueue(domain, state, one.name, plan.order[one.index], most, stored=stored)
            for one in plan.actors
        )

    return of(rows.EVENT_TIME), of(rows.PROCESSING_TIME)
