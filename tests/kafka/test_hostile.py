"""On Kafka too, bytes of an input never end a task: see ``tests.proof.hostile``."""

from __future__ import annotations

from random import Random

from confluent_kafka import Producer

from tailrace.log.kafka import KafkaLog
from tests.proof.hostile import Made, run

CODECS = ("none", "gzip", "lz4", "zstd", "snappy")


def run_on(log: KafkaLog, seed: int, rounds: int, at_once: int, largest: int) -> None:
    random = Random(seed)
    brokers, _, prefix = log.place.removeprefix("kafka://").partition("/")
    producers = [
        Producer({"bootstrap.servers": brokers, "compression.type": one, "message.max.bytes": 1 << 26})
        for one in CODECS
    ]

    def append(some: list[Made]) -> None:
        producer = random.choice(producers)
        for (topic, key, value, timestamp_ms, headers), partition, _, _ in some:
            producer.produce(
                prefix + topic, value, key, partition, timestamp=timestamp_ms, headers=list(headers)
            )
        assert producer.flush(60) == 0

    run(log, append, random, rounds, at_once, largest, log.reader({}, live=True))


def test_whatever_is_written_to_an_input_is_handled_or_a_letter_with_its_reason(log: KafkaLog) -> None:
    run_on(log, 1, 4, 100, 2_000_000)
