"""What has been published for a topic, as the partitions of one reader need it.

A reader that stands at a position of a partition needs, of each publisher, the last publication that holds there, and all later ones.
To read ``<topic>.watermarks`` from its beginning would take the longer the older the topic is, so a ``Feed`` looks backwards:

1. The stable end of the feed is asked; from there on it is read as records arrive.
2. The last publication of each publisher is read from ``<topic>.publishers``: these are the publishers.
3. For a partition, the feed is read backwards, stretch by stretch, until each publisher has a publication that holds at the
   position. One that has none in the first stretch needs no more if its last publication holds: then that is the one.

A publication of a transaction whose end is not at all partitions yet may be found in step 2 and again after step 1. That is harmless:
it holds where it says, and a watermark that was applied never falls.

Memory is bounded, however far behind a reader is: of a publisher with more than ``MOST_WAITING`` publications that do not hold yet,
every second one is skipped. What it has promised holds then a little later, never sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tailrace.log.interface import Publication
from tailrace.log.kafka.watermarks import Published, counted
from tailrace.log.publications import Heard

STRETCH: Final = 10_000
"""How far back the first look is, in offsets; also how many publications are kept for the next partition."""
_LONGEST: Final = 1_000_000
MOST_WAITING: Final = 4_000

Stretch = Callable[[int, int], Iterable[tuple[int, Published]]]
"""Reads the publications from one offset to another, each with its offset."""


class Feed:
    """The publications for one topic, for all partitions of a reader.

    ``end`` is the stable end of its topic, asked before ``last``, the last publication of each publisher, was read. ``start`` is the
    oldest offset kept. ``read`` reads older publications. ``topic_id`` is that of the topic that they are for.
    """

    def __init__(
        self,
        start: int,
        end: int,
        last: Iterable[Published],
        read: Stretch,
        topic_id: str = "",
        *,
        stretch: int | None = None,
        longest: int = _LONGEST,
    ) -> None:
        self.read_to = end
        """The offset up to which it is complete."""
        self._start = start
        self._read_all = read
        self._topic_id = topic_id
        self._stretch, self._longest = stretch or STRETCH, longest
        self._last = {one.name: one for one in last}
        self._recent: deque[tuple[int, Published]] = deque()
        """All from ``_recent_from`` on."""
        self._recent_from = end
        self._waiting: list[Waiting] = []

    def add(self, offset: int, one: Published) -> None:
        """Take in the next publication."""
        self.read_to = offset + 1
        if (found := counted(one, self._topic_id)) is None:
            return
        self._last[found.name] = found
        self._recent.append((offset, found))
        if len(self._recent) > 2 * self._stretch:
            while len(self._recent) > self._stretch:
                self._recent_from = self._recent.popleft()[0] + 1
        for waiting in self._waiting:
            waiting.add(found)

    def waiting(self, partition: int, position: int) -> Waiting:
        """Those of a partition that a reader at a position has not used yet."""
        made = Waiting(partition)
        unseen = dict(self._last)

        def seen(some: Iterable[tuple[int, Published]]) -> bool:
            """Note for whom one was found that holds. Returns whether nobody is left."""
            for _, one in some:
                if one.ends[partition] <= position:
                    unseen.pop(one.name, None)
            return all(one.ends[partition] <= position for one in unseen.values())

        low = max(self._start, self.read_to - self._stretch)
        if low < self._recent_from:
            self._recent.extendleft(reversed(list(self._read(low, self._recent_from))))
            self._recent_from = low
        low, length, done = self._recent_from, self._stretch, seen(self._recent)
        while not done and low > self._start:
            high, length = low, min(2 * length, self._longest)
            low = max(self._start, low - length)
            done = seen(self._read(low, high))
        for one in unseen.values():
            made.add(one)
        for _, one in self._read(low, self._recent_from) if low < self._recent_from else ():
            made.add(one)
        for _, one in self._recent:
            made.add(one)
        self._waiting.append(made)
        return made

    def drop(self, waiting: Waiting) -> None:
        """A reader has gone elsewhere."""
        self._waiting.remove(waiting)

    def _read(self, first: int, end: int) -> Iterator[tuple[int, Published]]:
        for offset, one in self._read_all(first, end):
            found = counted(one, self._topic_id)
            if found is not None:
                yield offset, found


class Waiting:
    """The publications of a topic that do not hold yet at a reader's position in one partition."""

    __slots__ = ("_by_name", "_most", "_partition", "_seen")

    def __init__(self, partition: int, most: int = MOST_WAITING) -> None:
        self._partition = partition
        self._most = most
        self._by_name: dict[str, deque[Published]] = {}
        self._seen: dict[str, int | None] = {}

    def add(self, one: Published) -> None:
        """Take in the next publication."""
        queue = self._by_name.setdefault(one.name, deque())
        while queue and queue[-1].ends[self._partition] > one.ends[self._partition]:
            queue.pop()  # the last one of its publisher, which was known before the feed was read as far: it comes again
        if queue and queue[-1].ends[self._partition] == one.ends[self._partition]:
            # Both hold from the same position on, so only the later one is of use.
            queue[-1] = _after(queue[-1], one)
            return
        queue.append(one)
        if len(queue) > self._most:
            self._by_name[one.name] = deque(_thinned(queue))

    def news(self, position: int) -> list[Publication]:
        """Those that hold from this position on and were not returned before."""
        heard = Heard()
        for queue in self._by_name.values():
            while queue and queue[0].ends[self._partition] <= position:
                one = queue.popleft()
                if one.watermark_ms is None and one.before_ms is not None:
                    heard.add(one.name, one.before_ms)
                heard.add(one.name, one.watermark_ms)
        return heard.news(self._seen)


def _thinned(queue: deque[Published]) -> Iterator[Published]:
    """Every second one, and the last."""
    waiting = iter(queue)
    for one in waiting:
        later = next(waiting, None)
        yield one if later is None else _after(one, later)


def _after(before: Published, one: Published) -> Published:
    """The later of two publications, which knows the last watermark."""
    if one.watermark_ms is None and one.before_ms is None:
        return one._replace(before_ms=before.watermark_ms)
    return one
