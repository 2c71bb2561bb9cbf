"""Reads the data source as Spark does, but in this process, and counts the records that are taken from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tailrace.log.embedded.reader import EmbeddedReader
from tailrace.log.kafka.reader import KafkaReader
from tailrace.spark.source import TailraceSource


class Answer(NamedTuple):
    """The rows, and how many tasks and records it took."""

    rows: list[dict[str, Any]]
    tasks: int
    read: Counter[int]
    """Records taken from the log, by partition."""


def answer(**options: object) -> Answer:
    """What a query with these options reads."""
    read: Counter[int] = Counter()
    source = TailraceSource({name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    with counted(read):
        parts = reader.partitions()
        batches: list[Any] = [batch for part in parts for batch in reader.read(part)]
        rows = [row for batch in batches for row in batch.to_pylist()]
    return Answer(rows, len(parts), read)


@contextmanager
def counted(read: Counter[int]) -> Generator[None]:
    """Count the records that are fetched from logs."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (EmbeddedReader, KafkaReader):
            patch.setattr(kind, "fetch", _counting(kind.fetch, read))
        yield


def _counting(fetch: Any, read: Counter[int]) -> Any:
    def counting(self: Any, topic: str, partition: int, most: int) -> Any:
        found = fetch(self, topic, partition, most)
        read[partition] += len(found.records)
        return found

    return counting
