"""What a reader on Kafka holds in memory: records that have arrived and were not fetched yet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.reader import KafkaReader
from tests.log.contract import A, read_all

B = TopicPartition("b", 0)


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url)
    for topic in ("a", "b"):
        log.create_topic(topic, TopicSettings(1))
    yield log
    log.close()


def test_the_backlog_of_one_partition_starves_no_other_and_is_not_held_in_memory(log: KafkaLog) -> None:
    count = 60_000
    log.append_all([Output("a", b"k", b"x" * 100, 7)] * count)
    log.append_all([Output("b", b"k", b"b", 7)])
    reader = log.reader({A: 0, B: 0}, live=True)
    deadline = time.monotonic() + 30
    while not reader.fetch("b", 0, 10).records:
        assert time.monotonic() < deadline
        reader.wait(0.1)
    for _ in range(50):
        reader.wait(0.01)
        reader.published("b", 0)
    assert buffered(reader) <= 30_000
    assert len(read_all(log, reader, A, 7_000)) == count


def test_the_memory_for_unread_records_does_not_grow_with_the_number_of_partitions(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.log.kafka.reader._FULL_BYTES", 16 << 20)
    log.create_topic("many", TopicSettings(8))
    places = [TopicPartition("many", number) for number in range(8)]
    with closing(log.writer("feed")) as writer:
        for place in places:
            writer.append([Output("many", b"k", b"x" * 1_000, 7)] * 8_000, partition=place.partition)
        writer.commit()
    reader = log.reader(dict.fromkeys(places, 0), live=True)
    for _ in range(100):
        reader.wait(0.01)
        reader.published("many", 0)
    held = sum(part.buffer.bytes for part in reader._parts.values())
    # Of 76 MiB: the shares of 16 MiB, the queue of librdkafka, which is as large, and the answers to a fetch.
    assert 1 << 20 < held < 60 << 20
    assert all(len(read_all(log, reader, place, 700)) == 8_000 for place in places)


def buffered(reader: KafkaReader) -> int:
    return max(part.buffer.count for part in reader._parts.values())
