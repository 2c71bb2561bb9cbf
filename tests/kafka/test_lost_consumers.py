"""A consumer that finds no broker any more is replaced, and the reader continues where it was."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka import reader as reader_
from tailrace.log.kafka.connection import Connection
from tailrace.log.options import LogOptions
from tests.log.contract import A
from tests.soak.processes import wait_until

NOWHERE = "kafka://127.0.0.1:1"
"""No broker is there, so a consumer of it finds none, like one that has forgotten the addresses."""


def fill(log: KafkaLog, count: int) -> None:
    log.append_all([Output("a", b"k", b"%d" % number, 1) for number in range(count)])


@pytest.fixture
def log(kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(reader_, "_SILENT_S", 0.5)
    log = KafkaLog(kafka_url, LogOptions(patience_s=60.0))
    log.create_topic("a", TopicSettings(2))
    yield log
    log.close()


def cut_off(reader: Any) -> None:
    """What the reader has now is cut off."""
    lost, reader._consumer = reader._consumer, Connection(NOWHERE).consumer("lost")
    reader._consumer.incremental_assign(
        [reader._cluster.at(part.place, part.read_to) for part in reader._parts.values()]
    )
    lost.close()


def test_reading_continues_with_what_was_not_read(log: KafkaLog) -> None:
    fill(log, 10)
    reader = log.reader({A: 0, TopicPartition("a", 1): 0}, live=True)
    number = next(n for n in (0, 1) if log.end_offset("a", n))
    found: list[bytes | None] = []

    def read(count: int) -> bool:
        found.extend(one.value for one in reader.fetch("a", number, 3).records)
        return len(found) >= count

    wait_until(lambda: read(4), "some are read")
    cut_off(reader)
    fill(log, 10)
    wait_until(lambda: read(20), "all are read")
    assert found == [b"%d" % number for number in range(10)] * 2
    wait_until(lambda: reader.fetch("a", number, 1).idle, "the partition is idle")
    reader.close()
