"""Finds the partition of each record and checks its types and size, with as few steps per record as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NoReturn

from tailrace.core.errors import RecordTooLargeError, UnknownTopicError, UsageError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log.interface import TopicPartition

_KEYS_REMEMBERED = 1 << 20
_BYTES = frozenset((bytes, type(None)))


class Router:
    """Sorts records by partition. ``partitions_of`` raises UnknownTopicError for a topic that does not exist."""

    def __init__(self, partitions_of: Callable[[str], int], max_record_bytes: int) -> None:
        self.max_record_bytes = max_record_bytes
        self._partitions_of = partitions_of
        self._counts: dict[str, int] = {}
        self._numbers: dict[int, dict[bytes | None, int]] = {}
        """By number of partitions, the partition of each known key."""

    def split(self, outputs: Iterable[Output], partition: int | None) -> dict[TopicPartition, list[Output]]:
        """The outputs of each partition, in order. After an error, no output is used.

        Raises:
            UnknownTopicError, RecordTooLargeError: See ``Writer.append``.
            UsageError: A key or value is not bytes. A reader could not decode it.
        """
        staged: dict[TopicPartition, list[Output]] = {}
        for topic, some in _by_topic(list(outputs)).items():
            count = self._count(topic, partition)
            _, keys, values, _, _ = zip(*some, strict=True)
            for name, column in (("key", keys), ("value", values)):
                if not _BYTES.issuperset(map(type, column)):
                    _refuse_type(topic, name, column)
            # Only changelog and tape of a task are written with a partition number. The tape has one record per commit. Many
            # failures make it large, and it must be written anyway.
            if partition is None and _longest(keys) + _longest(values) > self.max_record_bytes:
                self._check_sizes(some, count)
            if partition is not None or count == 1:
                staged[TopicPartition(topic, partition or 0)] = some
                continue
            lists: list[list[Output]] = [[] for _ in range(count)]
            for output, number in zip(some, self._numbers_of(keys, count), strict=True):
                lists[number].append(output)
            for number, of_it in enumerate(lists):
                if of_it:
                    staged[TopicPartition(topic, number)] = of_it
        return staged

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

    def _check_sizes(self, outputs: Sequence[Output], count: int) -> None:
        """Refuse the first record that is too large, if any: the longest key and value may be of different records."""
        for output in outputs:
            if len(output.value or b"") + len(output.key or b"") > self.max_record_bytes:
                self._refuse(output, self._numbers_of([output.key], count)[0])

    def _count(self, topic: str, partition: int | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partitions_of(topic)
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicError(f"the topic has {count} partitions", topic=topic, partition=partition)
        return count

    def _refuse(self, output: Output, partition: int) -> NoReturn:
        raise RecordTooLargeError(
            f"a record of {len(output.value or b'')} bytes is over the limit of {self.max_record_bytes}",
            topic=output.topic,
            partition=partition,
            key=output.key,
            hint="Emit less in one event, or raise the limit: tailrace run --max-record-bytes.",
        )


def _refuse_type(topic: str, name: str, column: Sequence[object]) -> NoReturn:
    wrong = next(one for one in column if type(one) not in _BYTES)
    raise UsageError(
        f"the {name} of a record for topic {topic!r} is of type {type(wrong).__name__}; a log takes bytes, or None",
        hint="Encode it. Nothing of this call was appended.",
    )


def _by_topic(outputs: list[Output]) -> dict[str, list[Output]]:
    """The outputs of each topic, in order. Usually all have the same topic."""
    if not outputs:
        return {}
    topic = outputs[0].topic
    if all(map(topic.__eq__, map(itemgetter(0), outputs))):
        return {topic: outputs}
    found: dict[str, list[Output]] = {}
    for output in outputs:
        found.setdefault(output.topic, []).append(output)
    return found


def _longest(values: Iterable[bytes | None]) -> int:
    return max(map(len, filter(None, values)), default=0)
