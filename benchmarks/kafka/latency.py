"""The latency of an event through a service on Kafka: from when it was due to be produced until its output can be read."""

from __future__ import annotations

import time
from itertools import islice

import msgspec

from benchmarks import apps
from benchmarks.kafka.apps import EVENTS, TOTALS, counting
from benchmarks.kafka.house import KafkaHouse
from benchmarks.kafka.throughput import APP
from benchmarks.measure import Row, Scale
from benchmarks.served.house import endless
from benchmarks.served.rows import latencies
from benchmarks.served.service import PATIENCE_S, BenchmarkError
from tailrace.log import TopicPartition
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.library import library

PER_S = 5_000
COMMIT_MS = 100
MOST_MS = 300
_LOOK_S = 0.002
_BATCH = 5_000


def latency(scale: Scale) -> list[Row]:
    """5,000 events a second, a commit every 100 ms."""
    with KafkaHouse(counting) as house, house.start(APP, COMMIT_MS) as service:
        service.wait_for_partitions(counting.plan().partitions)
        house.take([service], counting.name, islice(endless(scale.keys), scale.keys))
        runs = [_paced(house, scale) for _ in range(scale.repeats)]
    return latencies("Kafka: latency at 5,000 events/s", runs, MOST_MS, f"a commit every {COMMIT_MS} ms")


def _paced(house: KafkaHouse, scale: Scale) -> list[float]:
    """Produce events as they are due, and read their outputs. Returns the milliseconds of each event.

    The time of an event is the instant when it was due, and comes back as the timestamp of its output.
    """
    connection, encode = Connection(house.url), msgspec.json.Encoder().encode
    producer = library().Producer(
        {"bootstrap.servers": connection.addresses, "linger.ms": 1, "partitioner": "murmur2"}
    )
    consumer = connection.consumer("latency", **{"fetch.wait.max.ms": 10})
    places = [TopicPartition(TOTALS, number) for number in range(house.log.partitions(TOTALS))]
    name = connection.prefix + TOTALS
    consumer.assign(
        [library().TopicPartition(name, one.partition, house.log.end_offset(*one)) for one in places]
    )
    draws = apps.events(1 << 60, apps.keys(scale.keys))
    many, fed, took_ms = int(PER_S * scale.latency_s), 0, list[float]()
    start = time.time()
    while len(took_ms) < many:
        now_s = time.time() - start
        if now_s > scale.latency_s + PATIENCE_S:
            raise BenchmarkError(f"{many - len(took_ms)} events did not come out")
        for number in range(fed, min(many, int(now_s * PER_S))):
            due_ms = int((start + number / PER_S) * 1_000)
            event = msgspec.structs.replace(next(draws), at=due_ms)
            producer.produce(connection.prefix + EVENTS, encode(event), event.key)
            fed = number + 1
        producer.poll(0)
        found = [one for one in consumer.consume(_BATCH, 0) if one.error() is None]
        now_ms = time.time() * 1_000
        took_ms += [now_ms - one.timestamp()[1] for one in found]
        time.sleep(_LOOK_S)
    consumer.close()
    producer.close()
    return took_ms
