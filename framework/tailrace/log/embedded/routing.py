"""Which partition each record goes to, and whether the log takes it: the one loop in which Python sees every record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from tailrace.core.errors import RecordTooLargeError, UnknownTopicError
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log.interface import TopicPartition

_KEYS_REMEMBERED = 1 << 20


class Router:
    """Sorts records by partition. ``partitions_of`` raises UnknownTopicError for a topic that does not exist."""

    def __init__(self, partitions_of: Callable[[str], int], max_record_bytes: int) -> None:
        self.max_record_bytes = max_record_bytes
        self._partitions_of = partitions_of
        self._counts: dict[str, int] = {}
        self._numbers: dict[int, dict[bytes | None, int]] = {}
        """Per number of partitions the partition of each key seen."""

    def split(self, outputs: Iterable[Output], partition: int | None) -> dict[TopicPartition, list[Output]]:
        """The outputs of each partition, in order; all of them or, with an error, none.

        Raises:
            UnknownTopicError, RecordTooLargeError: See ``Writer.append``.
        """
        staged: dict[str, list[list[Output]]] = {}
        limit = self.max_record_bytes
        before: str | None = None
        lists: list[list[Output]] = []
        numbers: dict[bytes | None, int] = {}
        number: int | None
        for output in outputs:
            topic, key, value, _, _ = output
            if topic != before:
                before = topic
                count = self._count(topic, partition)
                numbers = self._numbers.setdefault(count, {})
                found = staged.get(topic)
                lists = staged[topic] = [[] for _ in range(count)] if found is None else found
            number = numbers.get(key) if partition is None else partition
            if number is None:
                number = self._number(numbers, key, len(lists))
            if (len(value) if value else 0) + (len(key) if key else 0) > limit:
                self._refuse(output, number)
            lists[number].append(output)
        return {
            TopicPartition(topic, number): some
            for topic, lists in staged.items()
            for number, some in enumerate(lists)
            if some
        }

    def _count(self, topic: str, partition: int | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partitions_of(topic)
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicError(f"the topic has {count} partitions", topic=topic, partition=partition)
        return count

    def _number(self, numbers: dict[bytes | None, int], key: bytes | None, count: int) -> int:
        if len(numbers) >= _KEYS_REMEMBERED:
            numbers.clear()
        number = numbers[key] = partition_of(key or b"", count)
        return number

    def _refuse(self, output: Output, partition: int) -> NoReturn:
        raise RecordTooLargeError(
            f"a record of {len(output.value or b'')} bytes is over the limit of {self.max_record_bytes}",
            topic=output.topic,
            partition=partition,
            key=output.key,
            mend="Emit less in one event, or raise the limit of log and readers.",
        )
