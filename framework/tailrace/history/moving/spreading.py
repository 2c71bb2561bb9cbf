"""Copies a topic into another number of partitions: each record goes where the murmur2 of its key says.

Theory. The records of all partitions are merged by event time: a record comes when the latest event before it in its own partition
would. So each partition keeps its order, and no record is more out of order than it was. They get the next offsets, without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import TypeAlias

from tailrace.core.declare.plan import InputPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.input_decoder import InputDecoder
from tailrace.core.engine.redriven import in_another_log
from tailrace.core.errors import OtherHistoryError
from tailrace.core.names import is_own
from tailrace.core.records import InputRecord
from tailrace.core.unit_ids import without_task
from tailrace.core.values.partitioner import partition_of
from tailrace.history.moving.copying import BEGIN_AGAIN, Copied
from tailrace.history.reading.stretches import batches
from tailrace.log.interface import Placer, StoredLog, Stretch, TopicPartition

_AT_ONCE = 5_000
_Moment: TypeAlias = tuple[int, int, InputRecord]
"""When a record comes in the merge, the partition that it goes to, and the record."""


class Spread:
    """A copy of one topic. ``ends``: up to where each partition of the target has records that were added."""

    def __init__(self, plan: Plan, source: StoredLog, target: StoredLog, placer: Placer, topic: str) -> None:
        self._source, self._target, self._topic, self._placer = source, target, topic, placer
        self._before, self._after = source.partitions(topic), target.partitions(topic)
        self._input = next((one for one in plan.inputs if one.name == topic), None)
        self._decode = None if self._input is None else InputDecoder(plan, self._input).decode
        self._is_own = is_own(topic, plan.app)
        numbers = range(self._after)
        self.ends = [0 for _ in numbers]
        self._new: list[list[InputRecord]] = [[] for _ in numbers]
        self._count = 0

    def add(self, starts: Sequence[int], stops: Sequence[int], wanted: Callable[[int, int], bool]) -> None:
        """Add the records between offsets of each partition that are ``wanted``, by partition and offset."""
        found = [
            self._records(number, start, stop, wanted)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
        ]
        for _, number, record in merge(*found, key=itemgetter(0)):
            self._add(number, record)

    def done(self) -> Copied:
        """Write the rest."""
        self._flush()
        for number, end in enumerate(self.ends):
            if (here := self._target.end_offset(self._topic, number)) != end:
                raise OtherHistoryError(
                    f"{self._topic!r} partition {number} ends at {here} on the target, and its copy at {end}: something else has written "
                    "to it",
                    why="log",
                    hint=BEGIN_AGAIN,
                )
        return Copied(self._topic, self._after, self._count)

    def _records(
        self, number: int, start: int, stop: int, wanted: Callable[[int, int], bool]
    ) -> Iterator[_Moment]:
        latest = NO_WATERMARK
        for some in batches(self._source, self._topic, number, start, stop, whole=True):
            heads = None if self._decode is None else self._decode(some)
            for at, record in enumerate(some):
                if not wanted(number, record.offset):
                    continue
                time_ms = record.timestamp_ms if heads is None else heads[at][1]
                latest = latest if time_ms is None else max(latest, time_ms)
                key = record.key if heads is None else self._key(heads[at][2], record)
                yield latest, self._goes_to(number, key), record

    def _key(self, key: object, record: InputRecord) -> bytes | None:
        """The key that decides: that of the event, if it has one, since the state is found by that."""
        one: InputPlan | None = self._input
        if one is None or one.is_inbox or one.repartitioned or one.key_of is None or key is None:
            return record.key
        return one.key_codec.encode(key)

    def _goes_to(self, number: int, key: bytes | None) -> int:
        if self._input is None and self._before == self._after:
            return number
        return number % self._after if key is None else partition_of(key, self._after)

    def _add(self, number: int, record: InputRecord) -> None:
        offset = self.ends[number]
        self.ends[number] += 1
        headers = record.headers
        if self._is_own:
            headers = in_another_log(without_task(headers))
        self._new[number].append(record._replace(offset=offset, headers=headers))
        self._count += 1
        if self._count % _AT_ONCE == 0:
            self._flush()

    def _flush(self) -> None:
        found = [
            Stretch(TopicPartition(self._topic, number), some, some[-1].offset + 1)
            for number, some in enumerate(self._new)
            if some
        ]
        if found:
            self._placer.append(found)
            self._new = [[] for _ in self._new]
