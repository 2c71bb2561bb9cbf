"""Reads the embedded log: a position and one decoded block for each partition."""

from __future__ import annotations

import time
from bisect import bisect_left
from operator import attrgetter

from tailrace.core.errors import OffsetGoneError
from tailrace.core.records import InputRecord
from tailrace.log.embedded.rows import Bounds, Rows
from tailrace.log.embedded.view import View
from tailrace.log.interface import Fetch, Publication, TopicPartition
from tailrace.log.publications import Heard

_offset = attrgetter("offset")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0005, 0.005


class _Cursor:
    __slots__ = ("at", "heard", "idle", "passed", "place", "position", "records", "seen", "topic")

    def __init__(self, place: int, topic: int, position: int) -> None:
        self.place = place
        self.topic = topic
        """Place of the first partition of the topic."""
        self.position = position
        self.records: list[InputRecord] = []
        """The records of the current block. Those from ``at`` on are not returned yet."""
        self.at = 0
        self.idle = -1
        """State of the log at the last fetch, if there was nothing to read then."""
        self.passed: int | None = None
        """Running number of the next publication; None before the first call of ``published``."""
        self.heard: tuple[int, int] = (-1, -1)
        """Position and state of the log at the last call of ``published``."""
        self.seen: dict[str, int | None] = {}


class EmbeddedReader:
    """A reader of an ``EmbeddedLog``. Holds one decoded block for each partition."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._cursors: dict[TopicPartition, _Cursor] = {}

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        at = TopicPartition(topic, partition)
        cursor = self._cursors[at]
        if cursor.idle == self._view.version():
            return Fetch([], cursor.position, unread=False, idle=True)
        before = cursor.position, cursor.records, cursor.at
        try:
            with self._view.moment("reading records") as rows:
                bounds = rows.bounds(cursor.place)
                _check_position(at, cursor.position, bounds)
                records = _take(cursor, rows, max_records)
                unread = _has_more(cursor, rows)
                if not unread:
                    cursor.position, cursor.idle = bounds.end, self._view.seen
        except BaseException:
            cursor.position, cursor.records, cursor.at = before
            raise
        return Fetch(records, cursor.position, unread, not unread)

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        with self._view.moment() as rows:
            place, number = rows.place(topic, partition), rows.topic(topic).first_place
        self._cursors[TopicPartition(topic, partition)] = _Cursor(place, number, offset)

    def forget(self, topic: str, partition: int, /) -> None:
        self._cursors.pop(TopicPartition(topic, partition), None)

    def behind(self, topic: str, partition: int, /) -> int:
        cursor = self._cursors[TopicPartition(topic, partition)]
        with self._view.moment() as rows:
            return max(0, rows.bounds(cursor.place).end - cursor.position)

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        cursor = self._cursors[TopicPartition(topic, partition)]
        found = Heard()
        with self._view.moment() as rows:
            now = cursor.position, self._view.seen
            if cursor.heard == now:
                return []
            if cursor.passed is None:
                cursor.passed = _first_after(rows, cursor, partition)
                for one in rows.last_published(cursor.topic, cursor.passed):
                    found.add(one.publisher, one.watermark_ms)
            else:
                for one in rows.published(cursor.topic, cursor.passed):
                    if one.ends[partition] > cursor.position:
                        break
                    found.add(one.publisher, one.watermark_ms)
                    cursor.passed = one.number + 1
            cursor.heard = now
        return found.news(cursor.seen)

    def wait(self, timeout_s: float, /) -> bool:
        """See ``Reader.wait``. Asks every few milliseconds whether there was a commit."""
        deadline = time.monotonic() + timeout_s
        nap_s = _FIRST_NAP_S
        version = self._view.version()
        while not (ready := self._is_ready()) and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(nap_s, left_s))
            while (now := self._view.version()) == version and (left_s := deadline - time.monotonic()) > 0:
                nap_s = min(nap_s * 2, _LONGEST_NAP_S)
                time.sleep(min(nap_s, left_s))
            version = now
        return ready

    def close(self) -> None:
        self._cursors.clear()

    def _is_ready(self) -> bool:
        with self._view.moment("following the log") as rows:
            return any(_has_more(cursor, rows) for cursor in self._cursors.values())


def _take(cursor: _Cursor, rows: Rows, most: int) -> list[InputRecord]:
    """The next records, and the position moved past them."""
    records: list[InputRecord] = []
    while (wanted := most - len(records)) > 0:
        if cursor.at == len(cursor.records) and not _load(cursor, rows):
            break
        some = cursor.records[cursor.at : cursor.at + wanted]
        records += some
        cursor.at += len(some)
        cursor.position = some[-1].offset + 1
    return records


def _has_more(cursor: _Cursor, rows: Rows) -> bool:
    """Whether there is a record at or after the position."""
    return cursor.at < len(cursor.records) or (
        cursor.position < rows.bounds(cursor.place).end
        and rows.next_record(cursor.place, cursor.position) is not None
    )


def _load(cursor: _Cursor, rows: Rows) -> bool:
    """Load the next block with records at or after the position. Returns whether there is one."""
    cursor.records, cursor.at = [], 0
    position = cursor.position
    while (found := rows.records_at(cursor.place, position)) is not None:
        block, records = found
        at = bisect_left(records, position, key=_offset)
        if at < len(records):
            cursor.records, cursor.at = records, at
            return True
        position = block.end
    return False


def _first_after(rows: Rows, cursor: _Cursor, partition: int) -> int:
    """The number of the first publication that does not hold yet. Bisects: their ends never fall."""
    last = rows.published_before(cursor.topic, 1 << 62)
    low, high = 0, last.number + 1 if last else 0
    while low < high:
        middle = (low + high) // 2
        one = rows.published_before(cursor.topic, middle + 1)  # cleaning has left gaps
        if one is None or one.ends[partition] <= cursor.position:
            low = middle + 1
        else:
            high = one.number
    return low


def _check_position(at: TopicPartition, position: int, bounds: Bounds) -> None:
    if not bounds.start <= position <= bounds.end:
        raise OffsetGoneError(
            f"the log holds offsets {bounds.start} to {bounds.end}, the reader stands at {position}",
            topic=at.topic,
            partition=at.partition,
            offset=position,
            hint="The records in between were deleted before they were read. To continue without them, run the service "
            "with --after-deleted; keep the log for longer."
            if position < bounds.start
            else "It has read more than this log holds: the log has lost its end, or it is another one. The next start names the "
            "ways on.",
        )
