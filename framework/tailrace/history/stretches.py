"""Reading a stretch of a partition: the committed records between two offsets, as they are at the call.

No position is kept, and nothing is waited for. Everybody who reads the past goes by the same rule at each edge::

    edge                                        what there is (default)        ``whole``
    no start, or one that is deleted            begins with the oldest kept    OffsetGoneError
    no stop, or one beyond the end              ends with the partition        OffsetGoneError
    a transaction that is open before the stop  ends before it                 OffsetGoneError
    retention overtakes the reading             OffsetGoneError                OffsetGoneError

A stretch has to be *whole* where something on record says that a task has read it, or has still to read it: the tape, a
cut, a plan of Spark. A missing record would then be a wrong result. All others look at what there is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain

from tailrace.core.engine.replay import Source
from tailrace.core.errors import OffsetGoneError
from tailrace.core.records import InputRecord
from tailrace.log.interface import Log, TopicPartition

_AT_ONCE = 10_000
"""Records that are read at once, unless the caller says how many."""


def batches(
    log: Log,
    topic: str,
    partition: int,
    start: int | None = None,
    stop: int | None = None,
    *,
    whole: bool = False,
    at_once: int | None = None,
    patience_s: float = 0.0,
) -> Iterator[list[InputRecord]]:
    """The committed records with ``start <= offset < stop``, at most ``at_once`` in a list, and no list empty.

    Where the stretch has to be whole, an open transaction is given ``patience_s`` to end.

    Raises:
        UnknownTopicError: There is no such topic or partition.
        OffsetGoneError: See the head of this file.
    """
    oldest, end = log.start_offset(topic, partition), log.end_offset(topic, partition)
    position = oldest if start is None else start if whole else max(start, oldest)
    until = end if stop is None else stop if whole else min(stop, end)
    place = TopicPartition(topic, partition)
    return _batches(log, place, position, until, at_once or _AT_ONCE, patience_s, whole=whole)


def scan(
    log: Log,
    topic: str,
    partition: int,
    start: int | None = None,
    stop: int | None = None,
    *,
    whole: bool = False,
) -> Iterator[InputRecord]:
    """The same, record by record."""
    return chain.from_iterable(batches(log, topic, partition, start, stop, whole=whole))


def first(log: Log, topic: str, partition: int, start: int | None = None) -> InputRecord | None:
    """The first committed record at or behind an offset; None if there is none."""
    return next(chain.from_iterable(batches(log, topic, partition, start, at_once=1)), None)


def last(
    log: Log,
    topic: str,
    partition: int,
    wanted: Callable[[InputRecord], bool] = lambda _: True,
    stop: int | None = None,
) -> InputRecord | None:
    """The last committed record below ``stop`` that is wanted; None if there is none.

    Reads backwards from there, ever more at once.
    """
    start, end = log.start_offset(topic, partition), log.end_offset(topic, partition)
    back, below = 2, end if stop is None else min(stop, end)
    while start < below:
        begin = max(start, below - back)
        found: InputRecord | None = None
        for record in scan(log, topic, partition, begin, below):
            if wanted(record):
                found = record
        if found is not None:
            return found
        back, below = back * 8, begin
    return None


def source(log: Log, partition: int) -> Source:
    """Gives whole stretches of one partition of any topic, by offsets, without an end; best read forwards.

    It reads ahead, so that short stretches that follow one another cost no more than long ones.
    """
    reader = log.reader({})
    ahead: dict[str, _Ahead] = {}

    def read(topic: str, start: int, stop: int) -> list[InputRecord]:
        held = ahead.get(topic)
        if held is None or not held.reaches(start):
            reader.seek(topic, partition, start)
            held = ahead[topic] = _Ahead(start)
        while held.position < stop:
            fetch = reader.fetch(topic, partition, _AT_ONCE)
            if fetch.next_offset == held.position:
                raise _ends_before(TopicPartition(topic, partition), held.position, stop)
            held.add(fetch.records, fetch.next_offset)
        return held.take(stop)

    return read


class _Ahead:
    """What has been fetched of a partition and not yet given: ``records`` from ``at`` on, read up to ``position``."""

    __slots__ = ("at", "position", "records")

    def __init__(self, start: int) -> None:
        self.records: list[InputRecord] = []
        self.at = 0
        self.position = start

    def reaches(self, start: int) -> bool:
        """Whether what comes from ``start`` on is here, or is read next."""
        rest = self.at < len(self.records)
        return self.records[self.at].offset >= start if rest else self.position == start

    def add(self, found: list[InputRecord], position: int) -> None:
        """What was fetched next; what was given before is let go."""
        self.records = self.records[self.at :] + found if self.at < len(self.records) else found
        self.at, self.position = 0, position

    def take(self, stop: int) -> list[InputRecord]:
        """The records below ``stop``."""
        records, at = self.records, self.at
        end = len(records) if self.position == stop else bisect_left(records, stop, at, key=_offset)
        self.at = end
        return records[at:end]


def _batches(
    log: Log,
    place: TopicPartition,
    position: int,
    stop: int,
    at_once: int,
    patience_s: float,
    *,
    whole: bool,
) -> Iterator[list[InputRecord]]:
    if position >= stop:
        return
    reader = log.reader({place: position})
    try:
        while position < stop:
            fetch = reader.fetch(*place, min(at_once, stop - position))
            records = fetch.records
            if fetch.next_offset > stop:
                records = records[: bisect_left(records, stop, key=_offset)]
            if records:
                yield records
            if fetch.next_offset == position:
                if not whole:
                    return
                if fetch.idle or not patience_s or not reader.wait(patience_s):
                    raise _ends_before(place, position, stop)
            position = fetch.next_offset
    finally:
        reader.close()


def _ends_before(place: TopicPartition, position: int, stop: int) -> OffsetGoneError:
    return OffsetGoneError(
        f"the log ends here, and it held records up to {stop} before",
        topic=place.topic,
        partition=place.partition,
        offset=position,
        hint="It is another log, or it has lost its end.",
    )


def _offset(record: InputRecord) -> int:
    return record.offset
