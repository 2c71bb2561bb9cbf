"""What has nothing to do with the framework: a producer and a consumer of confluent-kafka, as the clients of other programs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tailrace.core.records import Output

_ANSWER_S = 60.0
_AT_ONCE = 10


class Feeder:
    """Writes records in their order, ``per_second`` of them from ``start`` until ``stop`` or ``close``."""

    def __init__(self, bootstrap: str, prefix: str, records: Iterator[Output], per_second: float) -> None:
        self.fed = 0
        self.longest_s = 0.0
        """The longest time between two batches."""
        self._prefix, self._records, self._every_s = prefix, records, _AT_ONCE / per_second
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2",
                "linger.ms": 0,
            }
        )
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def some(self, count: int) -> None:
        """Write the next ones, and wait until the brokers have them."""
        self.write(islice(self._records, count))

    def write(self, records: Iterable[Output]) -> None:
        """Write these instead."""
        for topic, key, value, at_ms, *_ in records:
            self._producer.produce(self._prefix + topic, value, key, timestamp=at_ms)
            self._producer.poll(0)
            self.fed += 1
        assert not self._producer.flush(_ANSWER_S), "the broker does not take the records"

    def start(self) -> None:
        """Write until ``stop``, beside the caller."""
        self._running = self._thread.submit(self._run)

    def stop(self) -> None:
        """Write no more. Raises what went wrong. May be called again."""
        self._stopped.set()
        self._thread.shutdown()
        running, self._running = self._running, None
        if running is not None:
            running.result()

    close = stop

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stopped.wait(self._every_s):
            self.some(_AT_ONCE)
            now_s = time.monotonic()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s


def messages(bootstrap: str, topic: str) -> list[list[Message]]:
    """The committed records of a topic, by partition."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "outside",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        count = len(reader.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)])
        found: list[list[Message]] = [[] for _ in range(count)]
        left, until_s = set(range(count)), time.monotonic() + _ANSWER_S
        while left:
            assert time.monotonic() < until_s, f"{topic} is not read to its end"
            for message in reader.consume(10_000, 0.2):
                error, number = message.error(), message.partition()
                if error is None:
                    found[number or 0].append(message)
                else:
                    assert error.name() == "_PARTITION_EOF", error
                    left.discard(number or 0)
        return found
    finally:
        reader.close()
