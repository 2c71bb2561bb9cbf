"""Reads a stretch of a partition: the committed records between two offsets, as of the call.

A read keeps no position and waits for nothing. All readers of the past follow the same rule at each edge::

    edge                                        partial (default)              ``whole``
    no start, or one that is deleted            begins with the oldest kept    OffsetGoneError
    no stop, or one beyond the end              ends with the partition        OffsetGoneError
    a transaction that is open before the stop  ends before it                 OffsetGoneError
    retention overtakes the reading             OffsetGoneError                OffsetGoneError

A stretch must be *whole* if the tape, a cut, or a plan of Spark says that a task has read it, or has still to read it. A
missing record would then give a wrong result. All other readers accept a partial stretch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import msgspec

from tailrace.core.engine.replay import Source
from tailrace.core.errors import ForeignLogError, OffsetGoneError
from tailrace.core.records import InputRecord
from tailrace.log.interface import Log, TopicPartition

OnHidden: TypeAlias = Callable[[TopicPartition, int, int], object]
"""Called if an open transaction hides the rest of a partial stretch: with its first offset, and the end."""
AT_ONCE = 10_000
"""Number of records to read at once, by default."""
_offset = attrgetter("offset")


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
    on_hidden: OnHidden | None = None,
) -> Iterator[list[InputRecord]]:
    """The committed records with ``start <= offset < stop``, in lists of 1 to ``at_once`` records.

    If the stretch must be whole, an open transaction has ``patience_s`` seconds to end; otherwise ``on_hidden``
    is called for it. Raises UnknownTopicError or OffsetGoneError.
    """
    oldest, end = log.start_offset(topic, partition), log.end_offset(topic, partition)
    position = oldest if start is None else start if whole else max(start, oldest)
    until = end if stop is None else stop if whole else min(stop, end)
    place = TopicPartition(topic, partition)
    return _batches(log, place, position, until, at_once or AT_ONCE, patience_s, on_hidden, whole)


def scan(
    log: Log,
    topic: str,
    partition: int,
    start: int | None = None,
    stop: int | None = None,
    *,
    whole: bool = False,
    on_hidden: OnHidden | None = None,
) -> Iterator[InputRecord]:
    """The records of ``batches``, one by one."""
    return chain.from_iterable(batches(log, topic, partition, start, stop, whole=whole, on_hidden=on_hidden))


def first(log: Log, topic: str, partition: int, start: int | None = None) -> InputRecord | None:
    """The first committed record at or after an offset; None if there is none."""
    return next(chain.from_iterable(batches(log, topic, partition, start, at_once=1)), None)


def last(
    log: Log,
    topic: str,
    partition: int,
    wanted: Callable[[InputRecord], bool] = lambda _: True,
    stop: int | None = None,
) -> InputRecord | None:
    """The last ``wanted`` committed record below ``stop``, searched backwards; None if there is none."""
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


def source(log: Log, partition: int, at_once: int | None = None) -> Source:
    """A function that reads whole stretches of one partition of any topic, with read-ahead."""
    reader = log.reader({})
    ahead: dict[str, _Ahead] = {}

    def read(topic: str, start: int, stop: int) -> list[InputRecord]:
        held = ahead.get(topic)
        if held is None or not held.reaches(start):
            reader.seek(topic, partition, start)
            held = ahead[topic] = _Ahead(start)
        while held.position < stop:
            fetch = reader.fetch(topic, partition, at_once or AT_ONCE)
            if fetch.next_offset == held.position:
                raise _ends_before(TopicPartition(topic, partition), held.position, stop)
            held.add(fetch.records, fetch.next_offset)
        return held.take(stop)

    return read


class _Ahead:
    """Records fetched and not yet returned: from index ``at`` on, up to ``position``.
    ``stop`` is the end of the last stretch returned.
    """

    __slots__ = ("at", "position", "records", "stop")

    def __init__(self, start: int) -> None:
        self.records: list[InputRecord] = []
        self.at = 0
        self.position = self.stop = start

    def reaches(self, start: int) -> bool:
        """Whether the records from ``start`` on are here, or are the next to be fetched."""
        rest = self.at < len(self.records)
        return self.stop <= start <= (self.records[self.at].offset if rest else self.position)

    def add(self, found: list[InputRecord], position: int) -> None:
        """Add the records of the next fetch, and drop those returned before."""
        self.records = self.records[self.at :] + found if self.at < len(self.records) else found
        self.at, self.position = 0, position

    def take(self, stop: int) -> list[InputRecord]:
        """The records below ``stop``."""
        records, at = self.records, self.at
        end = len(records) if self.position == stop else bisect_left(records, stop, at, key=_offset)
        self.at, self.stop = end, stop
        return records[at:end]


def _batches(
    log: Log,
    place: TopicPartition,
    position: int,
    stop: int,
    at_once: int,
    patience_s: float,
    on_hidden: OnHidden | None,
    whole: bool,
) -> Iterator[list[InputRecord]]:
    if position >= stop:
        return
    with closing(log.reader({place: position})) as reader:
        while position < stop:
            fetch = reader.fetch(*place, min(at_once, stop - position))
            records = fetch.records
            if fetch.next_offset > stop:
                records = records[: bisect_left(records, stop, key=_offset)]
            if records:
                yield records
            if fetch.next_offset == position:
                if not whole:
                    if on_hidden is not None:
                        on_hidden(place, position, stop)
                    return
                if fetch.idle or not patience_s or not reader.wait(patience_s):
                    raise _ends_before(place, position, stop)
            position = fetch.next_offset


def _ends_before(place: TopicPartition, position: int, stop: int) -> OffsetGoneError:
    return OffsetGoneError(
        f"the log ends here, and it held records up to {stop} before",
        topic=place.topic,
        partition=place.partition,
        offset=position,
        hint="It is another log, or it has lost its end.",
    )


@contextmanager
def decoding(topic: str, record: InputRecord, what: str, hint: str) -> Generator[None]:
    """Decode a record of a topic of ours inside the block. Raises ForeignLogError: it is none, something else has written it."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        what = f"the topic {topic!r} has a record at offset {record.offset} which is no {what}: {error}"
        raise ForeignLogError(what, hint=hint) from error
