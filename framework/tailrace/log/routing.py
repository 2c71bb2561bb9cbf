"""Finds the partition of each record and checks its types and size, with as few steps per record as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from tailrace.core.errors import UnknownTopicError, UsageError
from tailrace.core.names import is_kept, is_passed_on
from tailrace.core.records import RawOutput, too_large
from tailrace.core.values.partitioner import partition_of
from tailrace.log.interface import TopicPartition

_KEYS_REMEMBERED = 1 << 20
_BYTES = frozenset((bytes, type(None)))


def keep_partitions(topics: Iterable[str], count: int, partitions_of: Callable[[str], int]) -> bool:
    """Whether all topics have ``count`` partitions, so that a key has the same one in all of them."""
    try:
        return all(partitions_of(topic) == count for topic in topics)
    except UnknownTopicError:
        return False


class Routed(NamedTuple):
    """Outputs of one topic, in order; the same as columns; and the partition of each."""

    topic: str
    outputs: list[RawOutput]
    columns: Sequence[Sequence[Any]]
    numbers: list[int]


class Router:
    """Sorts records by partition. ``partitions_of`` raises UnknownTopicError for a topic that does not exist."""

    def __init__(self, partitions_of: Callable[[str], int], max_record_bytes: int) -> None:
        self.max_record_bytes = max_record_bytes
        self._partitions_of = partitions_of
        self._counts: dict[str, int] = {}
        self._numbers: dict[int, dict[bytes | None, int]] = {}
        """By number of partitions, the partition of each known key."""

    def split(
        self, outputs: Iterable[RawOutput], partition: int | None
    ) -> dict[TopicPartition, list[RawOutput]]:
        """The outputs of each partition, in order. Raises what ``route`` raises."""
        staged: dict[TopicPartition, list[RawOutput]] = {}
        for topic, some, _, numbers in self.route(outputs, partition):
            if partition is not None or self._counts[topic] == 1:
                staged[TopicPartition(topic, partition or 0)] = some
                continue
            lists: list[list[RawOutput]] = [[] for _ in range(self._counts[topic])]
            for output, number in zip(some, numbers, strict=True):
                lists[number].append(output)
            for number, of_it in enumerate(lists):
                if of_it:
                    staged[TopicPartition(topic, number)] = of_it
        return staged

    def route(self, outputs: Iterable[RawOutput], partition: int | None) -> list[Routed]:
        """The outputs of each topic, with their partitions. After an error, no output is used.

        Raises:
            UnknownTopicError, RecordTooLargeError: See ``Writer.append``.
            UsageError: A key or value is not bytes. A reader could not decode it.
        """
        found: list[Routed] = []
        for topic, some in _by_topic(list(outputs)).items():
            count = self._count(topic, partition)
            columns = tuple(zip(*some, strict=True))
            _, keys, values, _, _ = columns
            for name, column in (("key", keys), ("value", values)):
                if not _BYTES.issuperset(map(type, column)):
                    _refuse_type(topic, name, column)
            # What a task keeps for itself has no limit. Many failures make its tape large, and it must be written anyway.
            # Nor has what an input brings: another limit let it in.
            is_limited = (partition is None or not is_kept(topic)) and not is_passed_on(topic)
            if is_limited and _longest(keys) + _longest(values) > self.max_record_bytes:
                self._check_sizes(some, count)
            is_known = partition is not None or count == 1
            numbers = [partition or 0] * len(some) if is_known else self._numbers_of(keys, count)
            found.append(Routed(topic, some, columns, numbers))
        return found

    def _numbers_of(self, keys: Sequence[bytes | None], count: int) -> list[int]:
        """The partition of each key."""
        numbers = self._numbers.setdefault(count, {})
        found = list(map(numbers.get, keys))
        if None not in found:
            return found  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # none of them is None
        new = {key for key, number in zip(keys, found, strict=True) if number is None}
        if len(numbers) + len(new) > _KEYS_REMEMBERED:
            numbers.clear()
            new = set(keys)
        for key in new:
            numbers[key] = partition_of(key or b"", count)
        return list(map(numbers.__getitem__, keys))

    def _check_sizes(self, outputs: Sequence[RawOutput], count: int) -> None:
        """Refuse the first record that is too large, if any: the longest key and value may be of different records."""
        for topic, key, value, _, _ in outputs:
            if len(value or b"") + len(key or b"") > self.max_record_bytes:
                raise too_large(topic, key, value, self.max_record_bytes, self._numbers_of([key], count)[0])

    def _count(self, topic: str, partition: int | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partitions_of(topic)
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicError(f"the topic has {count} partitions", topic=topic, partition=partition)
        return count


def _refuse_type(topic: str, name: str, column: Sequence[object]) -> NoReturn:
    wrong = next(one for one in column if type(one) not in _BYTES)
    raise UsageError(
        f"the {name} of a record for topic {topic!r} is of type {type(wrong).__name__}; a log takes bytes, or None",
        hint="Encode it. Nothing of this call was appended.",
    )


def _by_topic(outputs: list[RawOutput]) -> dict[str, list[RawOutput]]:
    """The outputs of each topic, in order. Usually all have the same topic."""
    if not outputs:
        return {}
    topic = outputs[0][0]
    if all(map(topic.__eq__, map(itemgetter(0), outputs))):
        return {topic: outputs}
    found: dict[str, list[RawOutput]] = {}
    for output in outputs:
        found.setdefault(output[0], []).append(output)
    return found


def _longest(values: Iterable[bytes | None]) -> int:
    return max(map(len, filter(None, values)), default=0)
