"""What the log holds of an app's past: its tape, its last cut, what it read and what it emitted. Only read.

A service may be at work meanwhile. All that is read of a partition ends at the cut that is read first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeAlias

from tailrace.core import rows
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Source
from tailrace.core.engine.task import ORIGIN_HEADER
from tailrace.core.errors import CorruptStateError, InputsChangedError, OffsetGoneError, UnknownTopicError
from tailrace.core.records import InputRecord, Output
from tailrace.core.suggestions import did_you_mean
from tailrace.history.app_topics import apps_in
from tailrace.log.interface import Log, Reader, TopicPartition
from tailrace.state import MemoryStore

Origin: TypeAlias = tuple[int, int]
"""Where an output comes from: the partition that emitted it, and its running number there."""

_FETCH = 20_000
_TAIL = 1_000
_AT_ONCE = 10_000


def origin_of(record: InputRecord, app: bytes) -> Origin | None:
    """What the header of an output says; None for a record that no task of ``app`` has written."""
    headers = record.headers
    if not headers or headers[-1][0] != ORIGIN_HEADER:
        return None
    name, partition, number = headers[-1][1].rsplit(b"/", 2)
    return (int(partition), int(number)) if name == app else None


@dataclass(frozen=True, slots=True)
class Committed:
    """Where a partition stands by its changelog: the cut, and the position behind it. No cut: it never committed."""

    cut: bytes | None
    position: int
    rows: MemoryStore | None = None
    """The rows that the changelog leaves, if they were asked for; without those of the index."""


@dataclass(slots=True)
class Emitted:
    """What a partition has emitted, in short: a hash of each output under its running number, 0 for one not found."""

    hashes: array[int] = field(default_factory=lambda: array("q"))
    twice: dict[int, str] = field(default_factory=dict[int, str])
    """Numbers found more than once, and the topic."""


class _Ahead:
    """What has been fetched of an input and not yet given: ``records`` from ``at`` on, read up to ``position``."""

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


class AppHistory:
    """The past of an app in a log.

    Raises:
        UnknownTopicError: The app has never run on this log.
        InputsChangedError: It ran with another number of partitions.
    """

    def __init__(self, plan: Plan, log: Log) -> None:
        self.plan = plan
        self.log = log
        known = log.topics()
        for name in (plan.tape_topic, plan.changelog_topic):
            if name not in known:
                raise UnknownTopicError(
                    f"the log has no topic {name!r}: the app {plan.app!r} has never run on it",
                    hint=did_you_mean(
                        plan.app, apps_in(known), "Look at the path of the log, and at the app's name."
                    ),
                )
            if known[name].partitions != plan.partitions:
                raise InputsChangedError(
                    f"the app {plan.app!r} has {plan.partitions} partitions, and ran with {known[name].partitions}",
                    hint="Replay it with the number it ran with.",
                )

    # --- where it stands

    def committed(self, partition: int, *, with_rows: bool = False, end: int | None = None) -> Committed:
        """The last cut of a partition; ``with_rows`` reads the whole changelog for it, and keeps what it leaves.

        ``end``: the last one below this offset of the changelog.
        """
        place = TopicPartition(self.plan.changelog_topic, partition)
        start = self.log.start_offset(*place)
        end = self.log.end_offset(*place) if end is None else end
        if with_rows:
            return self._folded(place, start, end)
        back = _TAIL
        while True:
            first = max(start, end - back)
            found = Committed(None, first)
            for record, after in self._records(place, first, end):
                if record.key == rows.CUT_ROW:
                    found = Committed(record.value, after)
            if found.cut is not None or first == start:
                return found
            back *= 8

    def _folded(self, place: TopicPartition, start: int, end: int) -> Committed:
        kept, cut, position = MemoryStore(), None, start
        pending: dict[bytes, bytes | None] = {}
        for record, after in self._records(place, start, end):
            if record.key is None:
                raise CorruptStateError(
                    f"{place.topic!r} partition {place.partition} has a record without a key at offset {record.offset}",
                    hint="Something else writes to the changelog.",
                )
            if record.key != rows.CUT_ROW:
                pending[record.key] = record.value
                continue
            # Every commit ends with its cut: what stands behind the last one belongs to a commit not read in full.
            cut, position = record.value, after
            kept.write(pending, b"")
            pending.clear()
        return Committed(cut, position, kept)

    def tapes(self, partition: int, stop: int) -> Iterator[tape.TapeRecord]:
        """The tape of a partition up to, without, the record number ``stop``.

        Raises:
            OffsetGoneError: Retention has deleted its beginning.
        """
        place = TopicPartition(self.plan.tape_topic, partition)
        start, end = self.log.start_offset(*place), self.log.end_offset(*place)
        for record, _ in self._records(place, start, end):
            decoded = tape.decode_tape(record.value or b"")
            if decoded.number >= stop:
                return
            yield decoded

    # --- what it read and emitted

    def source(self, partition: int) -> Callable[[str, int, int], list[InputRecord]]:
        """Gives the records of one partition of any input, by offsets; best read forwards."""
        reader = self.log.reader({})
        ahead: dict[str, _Ahead] = {}

        def read(name: str, start: int, stop: int) -> list[InputRecord]:
            held = ahead.get(name)
            if held is None or not held.reaches(start):
                reader.seek(name, partition, start)
                held = ahead[name] = _Ahead(start)
            while held.position < stop:
                found, after, _, _ = self._fetch(reader, TopicPartition(name, partition))
                if after == held.position:
                    raise OffsetGoneError(
                        "the log ends before what the tape says was read",
                        topic=name,
                        partition=partition,
                        offset=after,
                        hint="It is another log, or it has lost its end.",
                    )
                held.add(found, after)
            return held.take(stop)

        return read

    def emitted(self, partitions: Collection[int]) -> dict[int, Emitted]:
        """What partitions have emitted, in one pass over all topics that the app writes to."""
        found = {number: Emitted() for number in partitions}
        tasks = {f"{self.plan.app}/{number}".encode(): one for number, one in found.items()}
        for place, start, end in self._output_places():
            topic = place.topic
            for records in self.batches(place, start, end):
                for _, timestamp_ms, key, value, headers in records:
                    if not headers or headers[-1][0] != ORIGIN_HEADER:
                        continue
                    task, _, said = headers[-1][1].rpartition(b"/")
                    one = tasks.get(task)
                    if one is None:
                        continue
                    hashes, number = one.hashes, int(said)
                    if number >= len(hashes):
                        hashes.extend(repeat(0, number + 1 - len(hashes)))
                    if hashes[number]:
                        one.twice.setdefault(number, topic)
                    hashes[number] = hash((topic, key, value, timestamp_ms, headers)) or 1
        return found

    def outputs(self, wanted: Mapping[int, Collection[int]]) -> dict[int, dict[int, Output]]:
        """Outputs by the partition that emitted them and their numbers; those that are not found are left out."""
        found: dict[int, dict[int, Output]] = defaultdict(dict)
        app = self.plan.app.encode()
        for place, start, end in self._output_places() if any(wanted.values()) else ():
            for record, _ in self._records(place, start, end):
                origin = origin_of(record, app)
                if origin is not None and origin[1] in wanted.get(origin[0], ()):
                    found[origin[0]][origin[1]] = Output(
                        place.topic, record.key, record.value, record.timestamp_ms, record.headers
                    )
        return found

    def outputs_are_whole(self) -> bool:
        """Whether nothing can have been deleted from the topics that the app writes to."""
        known = self.log.topics()
        return all(
            start == 0 and not known[place.topic].compacted for place, start, _ in self._output_places()
        )

    def _output_places(self) -> Iterator[tuple[TopicPartition, int, int]]:
        plan = self.plan
        names = [*plan.outputs, plan.dead_letters_topic, *filter(None, [plan.inbox_topic])]
        known = self.log.topics()
        for name in dict.fromkeys(names):
            if name in known:
                for number in range(known[name].partitions):
                    place = TopicPartition(name, number)
                    yield place, self.log.start_offset(*place), self.log.end_offset(*place)

    # --- reading

    def _records(self, place: TopicPartition, start: int, end: int) -> Iterator[tuple[InputRecord, int]]:
        """The records from ``start`` up to ``end``, each with the offset behind it."""
        for records in self.batches(place, start, end):
            for record in records:
                yield record, record.offset + 1

    def batches(self, place: TopicPartition, start: int, end: int) -> Iterator[list[InputRecord]]:
        """The records of any topic from ``start`` up to ``end``, as they are fetched."""
        if start >= end:
            return
        reader = self.log.reader({place: start})
        try:
            position = start
            while position < end:
                records, after, _, _ = self._fetch(reader, place)
                if after == position:
                    return  # what is left belongs to transactions that are still open
                yield records if after <= end else records[: bisect_left(records, end, key=_offset)]
                position = after
        finally:
            reader.close()

    def _fetch(self, reader: Reader, place: TopicPartition) -> tuple[list[InputRecord], int, bool, bool]:
        return reader.fetch(*place, _FETCH)


def stretch(read: Source, name: str, start: int, stop: int) -> Iterator[InputRecord]:
    """The records of an input from ``start`` up to ``stop``, some at a time; ``read`` is what ``History.source`` gives."""
    for at in range(start, stop, _AT_ONCE):
        yield from read(name, at, min(at + _AT_ONCE, stop))


def hash_of(output: Output) -> int:
    """A hash of an output as a whole, never 0: that of a tuple of its fields. It holds within one process."""
    return hash(output) or 1


def _offset(record: InputRecord) -> int:
    return record.offset
