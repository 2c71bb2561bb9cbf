"""Pending timers of one actor in one time domain, in the order in which they fire.

Theory. A timer's identity is (actor, key, domain, name); what is true about it (its time) stands in its own row, kept
with its key. This queue only answers "which is due next?", and may be wrong in one direction: it can name a timer too
early, or one that has since been cancelled. Whoever pops an entry checks it against the row, and pushes it once more if
the timer was moved to later. So setting, moving and cancelling never search the queue, an aborted unit need not repair
it, and a timer that is put off with each event is pushed once, not with each event.

Each actor has queues of its own, as each has a watermark of its own: what is due for one says nothing of the next.

The queue holds what is due before a *horizon* in a heap. The rest is in the store's index, found by a scan when the
horizon is reached. So memory is bounded however many timers are pending.

    set a timer before the horizon     pushed on the heap
    set a timer at or past it          noted in ``_beyond`` until the next commit has put it into the index
    heap empty, or horizon reached     the next stretch of the index is read, with what ``_beyond`` holds of it
    at a commit, with too many         the heap is cut back and the horizon moved down (all it drops is in the index)

Order: (time, place of the actor, key bytes, timer name), over all queues of a domain. The place is ``Plan.order``: who is
nearer to the sources comes first, so that what it makes of an instant is there before others close that instant. Names of
expiries sort first.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from tailrace.core import rows
from tailrace.core.storage import StateReader

Entry: TypeAlias = tuple[int, int, bytes, bytes]
"""Time, place of the actor, key bytes, timer name."""

FOREVER = (1 << 63) - 1
"""Later than any instant."""


class TimerQueue:
    """The queue of one actor and time domain. ``due_ms`` is the time of ``first``: nothing fires before it."""

    __slots__ = ("_beyond", "_heap", "_horizon_ms", "_limit", "_place", "_prefix", "_state", "due_ms")

    def __init__(
        self,
        domain: int,
        state: StateReader,
        actor: str,
        place: int,
        limit: int,
        *,
        stored: bool,
    ) -> None:
        """``stored`` says whether the store may hold timers; ``limit`` bounds the entries kept in memory."""
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
        """The next entry. There is one as long as ``due_ms`` is not FOREVER."""
        return self._heap[0]

    def push(self, time_ms: int, key: bytes, name: bytes) -> None:
        """Note that a timer is set."""
        if time_ms < self._horizon_ms:
            heappush(self._heap, (time_ms, self._place, key, name))
            if time_ms < self.due_ms:
                self.due_ms = time_ms
        else:
            self._beyond.add((time_ms, self._place, key, name))

    def pop(self) -> Entry:
        """Take the next entry. Call it only when ``due_ms`` has been reached, so that there is one.

        It may be one that is no longer true. Named twice, it is taken twice: else both would be pushed again for ever.
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
        """All that was set is in the store's index now."""
        self._beyond.clear()
        if len(self._heap) > self._limit:
            self._heap.sort()
            cut = self._heap[self._limit // 2][0]
            keep = self._limit // 2
            while keep and self._heap[keep - 1][0] == cut:
                keep -= 1
            if keep:  # else all of them are due at one instant, which is not divided
                del self._heap[keep:]
                self._horizon_ms = cut

    def latest_first(self) -> Iterator[Entry]:
        """All that is named, the latest first, what is no longer true included. Reads the whole index.

        Of what was moved since the last commit it may be named only where it was.
        """
        entries = set(self._heap) | self._beyond
        entries.update(self._indexed(-FOREVER, FOREVER))
        return iter(sorted(entries, reverse=True))

    def _refill(self) -> None:
        """Move the horizon up until there is something in the heap or nothing left anywhere."""
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
