"""Reading what a partition holds now: no position is kept, and nothing is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tailrace.core.records import InputRecord
from tailrace.log.interface import Log, TopicPartition

_AT_ONCE = 2_000


def scan(
    log: Log, topic: str, partition: int, start: int | None = None, stop: int | None = None
) -> Iterator[InputRecord]:
    """The committed records with ``start <= offset < stop``; by default all that there are at the call.

    Offsets that are not kept any more, or not yet, are left out.

    Raises:
        UnknownTopicError: There is no such topic or partition.
        OffsetGoneError: Retention has overtaken the reading.
    """
    first, end = log.start_offset(topic, partition), log.end_offset(topic, partition)
    position = first if start is None else max(start, first)
    stop = end if stop is None else min(stop, end)
    if position >= stop:
        return
    reader = log.reader({TopicPartition(topic, partition): position})
    try:
        while position < stop:
            fetch = reader.fetch(topic, partition, _AT_ONCE)
            for record in fetch.records:
                if record.offset >= stop:
                    return
                yield record
            if not fetch.records and not fetch.unread:
                return  # what is left is hidden by an open transaction, or was never committed
            position = fetch.next_offset
    finally:
        reader.close()


def last(
    log: Log, topic: str, partition: int, wanted: Callable[[InputRecord], bool] = lambda _: True
) -> InputRecord | None:
    """The last committed record that is wanted; None if there is none. Reads backwards from the end, ever more at once."""
    start, end = log.start_offset(topic, partition), log.end_offset(topic, partition)
    back, below = 2, end
    while start < below:
        first = max(start, end - back)
        found: InputRecord | None = None
        for record in scan(log, topic, partition, first, below):
            if wanted(record):
                found = record
        if found is not None:
            return found
        back, below = back * 8, first
    return None
