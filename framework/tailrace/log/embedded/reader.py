"""Reads the embedded log: a position in the view's index and one decoded block for each partition."""

from __future__ import annotations

import time
from bisect import bisect_left
from operator import attrgetter

from tailrace.core.errors import OffsetGoneError
from tailrace.core.records import InputRecord
from tailrace.log.embedded.index import HOLDS_NOBODY_BACK
from tailrace.log.embedded.view import View
from tailrace.log.interface import Fetch, Publication, TopicPartition
from tailrace.log.publications import Heard

_offset = attrgetter("offset")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0005, 0.005


class _Cursor:
    __slots__ = ("at", "passed", "position", "records", "seen")

    def __init__(self, position: int) -> None:
        self.position = position
        self.records: list[InputRecord] = []
        """The records of the current block. Those from ``at`` on are not returned yet."""
        self.at = 0
        self.passed: tuple[int, int] | None = None
        """Segment and number of the next publication; None before the first call of ``published``."""
        self.seen: dict[str, int | None] = {}


class EmbeddedReader:
    """A reader of an ``EmbeddedLog``; see ``tailrace.log.Reader``. Holds one decoded block for each partition."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._cursors: dict[TopicPartition, _Cursor] = {}

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        """See ``Reader.fetch``."""
        place = TopicPartition(topic, partition)
        cursor, view = self._cursors[place], self._view
        view.refresh()
        self._check_position(place, cursor.position)
        records: list[InputRecord] = []
        while (wanted := max_records - len(records)) > 0:
            if cursor.at == len(cursor.records):
                found = view.records_at(place, cursor.position)
                cursor.records, cursor.at = [], 0
                if not found:
                    break
                at = bisect_left(found, cursor.position, key=_offset)
                if found[at].offset > cursor.position and self._is_gone(place, cursor.position):
                    break  # deleted meanwhile; otherwise it is a gap left by compaction
                cursor.records, cursor.at = found, at
            some = cursor.records[cursor.at : cursor.at + wanted]
            records += some
            cursor.at += len(some)
            cursor.position = some[-1].offset + 1
        with view.mutex:
            unread = cursor.at < len(cursor.records) or view.find(place, cursor.position) is not None
            end = view.catalog.ends[topic][partition]
            if not records:
                self._check_position(place, cursor.position)
            if not unread and not self._is_gone(place, cursor.position):
                cursor.position = max(cursor.position, end)
        return Fetch(records, cursor.position, unread, not unread and cursor.position == end)

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        """See ``Reader.seek``."""
        if topic not in self._view.catalog.topics:
            self._view.refresh()
        self._view.catalog.check(topic, partition)
        self._cursors[TopicPartition(topic, partition)] = _Cursor(offset)

    def forget(self, topic: str, partition: int, /) -> None:
        """See ``Reader.forget``."""
        self._cursors.pop(TopicPartition(topic, partition), None)

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        """See ``Reader.published``."""
        cursor = self._cursors[TopicPartition(topic, partition)]
        found = Heard()
        with self._view.mutex:
            number, at = cursor.passed or (0, 0)
            # If a segment was deleted, the next one has the last publications before it.
            first = number not in self._view.indexes
            passed = (number, at)
            for segment, index in self._view.indexes.items():
                if segment < number:
                    continue
                if first:
                    first = False
                    for one in index.first:
                        if one.topic == topic and one.ends[partition] <= cursor.position:
                            found.add(one.publisher, one.watermark_ms)
                publications = index.publications.get(topic)
                begin = at if segment == number else 0
                passed = (segment, begin)
                if publications is None:
                    continue
                while begin < len(publications) and publications.end(begin, partition) <= cursor.position:
                    watermark_ms = publications.watermarks_ms[begin]
                    publisher = publications.publishers[begin]
                    found.add(publisher, None if watermark_ms == HOLDS_NOBODY_BACK else watermark_ms)
                    begin += 1
                passed = (segment, begin)
                if begin < len(publications):
                    break
            cursor.passed = passed
        return found.news(cursor.seen)

    def wait(self, timeout_s: float, /) -> bool:
        """See ``Reader.wait``. Polls the end of the log every few milliseconds."""
        deadline = time.monotonic() + timeout_s
        nap_s = _FIRST_NAP_S
        while not (ready := self._is_ready()) and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(nap_s, left_s))
            nap_s = min(nap_s * 2, _LONGEST_NAP_S)
        return ready

    def close(self) -> None:
        """See ``Reader.close``."""
        self._cursors.clear()

    def _is_ready(self) -> bool:
        view = self._view
        view.refresh()
        with view.mutex:
            return any(
                cursor.at < len(cursor.records) or view.find(place, cursor.position) is not None
                for place, cursor in self._cursors.items()
            )

    def _is_gone(self, place: TopicPartition, position: int) -> bool:
        """Whether the record at a position was deleted."""
        with self._view.mutex:
            return position < self._view.catalog.starts[place.topic][place.partition]

    def _check_position(self, place: TopicPartition, position: int) -> None:
        topic, partition = place
        with self._view.mutex:
            start = self._view.catalog.starts[topic][partition]
            end = self._view.catalog.ends[topic][partition]
        if not start <= position <= end:
            raise OffsetGoneError(
                f"the log holds offsets {start} to {end}, the reader stands at {position}",
                topic=topic,
                partition=partition,
                offset=position,
                hint="The records in between were deleted before they were read. To continue without them, run the service "
                "with --after-deleted; keep the log for longer."
                if position < start
                else "It has read more than this log holds: the log has lost its end, or it is another one.",
            )
