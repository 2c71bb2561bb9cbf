"""The baseline of a service on Kafka: a transactional loop with confluent-kafka, written by hand.

It consumes all partitions, decodes JSON, counts and sums in a dict, produces one JSON event for each event, and commits its outputs
and offsets together. Its state is lost when it ends. It has no changelog, store or tape, does not undo failures, and has no late
events and no watermarks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.apps import Event, Total
from benchmarks.kafka.apps import EVENTS
from benchmarks.loops import State
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.library import library

OUT = "raw-totals"
_BATCH = 10_000
_WAIT_S = 0.1
_ANSWER_S = 30.0


class RawLoop:
    """The loop. It keeps its counts and its positions from one ``run`` to the next."""

    def __init__(self, log: KafkaLog, url: str, commit_ms: int) -> None:
        count = log.partitions(EVENTS)
        log.create_topic(OUT, TopicSettings(count))
        connection = Connection(url)
        self._prefix = connection.prefix
        self._consumer = connection.consumer("raw")
        self._consumer.assign([self._at(TopicPartition(EVENTS, number), 0) for number in range(count)])
        self._producer = connection.producer("raw")
        self._producer.init_transactions(_ANSWER_S)
        self._commit_s = commit_ms / 1_000
        self._states: dict[str, State] = {}
        self._positions = {TopicPartition(EVENTS, number): 0 for number in range(count)}

    def run(self, ends: Mapping[TopicPartition, int]) -> int:
        """Handle all events before these positions. Returns their number."""
        decode, encode = msgspec.json.Decoder(Event).decode, msgspec.json.Encoder().encode
        consumer, producer, states, taken = self._consumer, self._producer, self._states, 0
        name, positions = self._prefix + OUT, {place.partition: at for place, at in self._positions.items()}
        ending = {place.partition: end for place, end in ends.items()}
        producer.begin_transaction()
        committed = time.monotonic()
        while any(positions[number] < end for number, end in ending.items()):
            messages = consumer.consume(_BATCH, 0)
            if not messages:
                first = consumer.poll(_WAIT_S)
                messages = [] if first is None else [first]
            for message in messages:
                number = message.partition()
                if message.error() is not None:
                    # The end of a partition, behind the marker of the last transaction.
                    positions[number] = max(positions[number], message.offset())
                    continue
                event = decode(message.value())
                state = states.get(event.key)
                if state is None:
                    state = states[event.key] = State()
                state.count += 1
                state.total += event.value
                total = Total(event.key, state.count, state.total)
                while True:
                    try:
                        producer.produce(name, encode(total), event.key, number, timestamp=event.at or 1)
                    except BufferError:
                        producer.poll(_WAIT_S)
                    else:
                        break
                positions[number] = message.offset() + 1
                taken += 1
            producer.poll(0)
            if time.monotonic() - committed >= self._commit_s:
                self._commit(positions)
                producer.begin_transaction()
                committed = time.monotonic()
        self._commit(positions)
        self._positions = {TopicPartition(EVENTS, number): at for number, at in positions.items()}
        return taken

    def close(self) -> None:
        """Release consumer and producer."""
        self._consumer.close()
        self._producer.close()

    def _commit(self, positions: Mapping[int, int]) -> None:
        offsets = [self._at(TopicPartition(EVENTS, number), at) for number, at in positions.items()]
        self._producer.send_offsets_to_transaction(
            offsets, self._consumer.consumer_group_metadata(), _ANSWER_S
        )
        self._producer.commit_transaction(_ANSWER_S)

    def _at(self, place: TopicPartition, offset: int) -> Any:
        return library().TopicPartition(self._prefix + place.topic, place.partition, offset)
