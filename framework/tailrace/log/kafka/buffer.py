"""Messages of librdkafka as records, made column by column, and the records of a partition that wait to be fetched.

What is done for each message costs more than anything else in a reader. So messages are taken in runs of one partition, and each
field of a run is read by one ``map``, without a step of Python for each message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from operator import is_, itemgetter
from typing import Any, Final, NamedTuple

from tailrace.core.errors import EventValueError
from tailrace.core.records import UNREADABLE, Headers, InputRecord, record_of
from tailrace.log.kafka.library import Message, library

NO_TIMESTAMP: Final = -1
"""Kafka's "no timestamp", which stands for 0: librdkafka takes 0 for "now"."""
_OVERHEAD_BYTES: Final = 250
"""Of a record in memory, about: the record, and the objects of its fields."""
_second = itemgetter(1)


class Run(NamedTuple):
    """Messages of one partition, in order: all of them records, or all of them errors."""

    topic: str
    """Its name at the brokers."""
    partition: int
    are_records: bool
    messages: Sequence[Message]


def runs(messages: Sequence[Message]) -> Iterator[Run]:
    """The runs in which messages have arrived."""
    if not messages:
        return
    kind = library().Message
    are_records = map(is_, _column(kind.error, messages), repeat(None))
    places: Iterable[tuple[str, int, bool]] = zip(
        _column(kind.topic, messages), _column(kind.partition, messages), are_records, strict=True
    )
    at = 0
    for place, run in groupby(places):
        start, at = at, at + len(list(run))
        yield Run(*place, messages[start:at])


def records_of(messages: Sequence[Message], first: int) -> list[InputRecord]:
    """The records from the offset ``first`` on. The messages must be of one partition, and no errors."""
    kind = library().Message
    if messages[0].offset() < first:
        messages = [one for one in messages if one.offset() >= first]
    times_ms: list[int] = list(map(_second, _column(kind.timestamp, messages)))
    if NO_TIMESTAMP in times_ms:
        times_ms = [0 if one == NO_TIMESTAMP else one for one in times_ms]
    headers = _readable(_column(kind.headers, messages))
    # Nothing is strict: a ``repeat`` has no end.
    columns = zip(
        _column(kind.offset, messages),
        times_ms,
        _column(kind.key, messages),
        _column(kind.value, messages),
        map(_headers, headers) if any(headers) else repeat(()),
        strict=False,
    )
    return list(map(record_of, columns))


def stored_times(times_ms: Iterable[int], topic: str) -> list[int]:
    """Timestamps as they are written to Kafka, where ``NO_TIMESTAMP`` stands for 0."""
    if NO_TIMESTAMP in (times_ms := list(times_ms)):
        raise EventValueError(
            "the time of the event is 1 ms before 1970, which stands for 'no time' in Kafka",
            topic=topic,
            hint="Give the event another time, or emit it with at=.",
        )
    return [at_ms or NO_TIMESTAMP for at_ms in times_ms]


def _column(read: Any, messages: Sequence[Message]) -> Iterable[Any]:
    found: Iterable[Any] = map(read, messages)
    return found


def _readable(column: Iterable[Any]) -> list[Any]:
    """The headers of messages, with a mark for those of which a name is not UTF-8. These must not be asked for twice: it is a segmentation fault."""
    found: list[Any] = []
    left = iter(column)
    while True:
        try:
            found.extend(left)
        except (SystemError, UnicodeError):
            found.append([(UNREADABLE, b"")])
        else:
            return found


def _headers(found: list[tuple[str, bytes | None]] | None) -> Headers:
    """The headers of a message. One without a value gets an empty one: records hold no other."""
    if not found:
        return ()
    if all(map(_second, found)):
        return tuple(found)  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]  # no value is None
    return tuple((name, value or b"") for name, value in found)


class Buffer:
    """The records of a partition that wait to be fetched, in lists as they have arrived."""

    __slots__ = ("_lists", "bytes", "count")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        """Estimated size in memory."""
        self._lists: deque[tuple[list[InputRecord], int]] = deque()
        """With their sizes."""

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def first(self) -> int:
        """The offset of the next record. There must be one."""
        return self._lists[0][0][0].offset

    def add(self, records: list[InputRecord]) -> None:
        """Add records, which must not be changed from here on."""
        _, _, keys, values, _ = zip(*records, strict=True)
        size = len(records) * _OVERHEAD_BYTES + _length(keys) + _length(values)
        self._lists.append((records, size))
        self.count += len(records)
        self.bytes += size

    def take(self, most: int) -> list[InputRecord]:
        """Remove and return the next records, at most ``most``."""
        found: list[InputRecord] = []
        while self._lists and len(found) < most:
            records, size = self._lists.popleft()
            room = most - len(found)
            if len(records) > room:
                left = size * (len(records) - room) // len(records)
                self._lists.appendleft((records[room:], left))
                records, size = records[:room], size - left
            found = records if not found else found + records
            self.bytes -= size
        self.count -= len(found)
        return found


def _length(column: Iterable[bytes | None]) -> int:
    return sum(map(len, filter(None, column)))
