"""Three inputs that are written in transactions which overlap, an app whose actor is ordered, and the same by arrival.

Each transaction has records of all inputs and partitions. A reader sees the records of a partition up to the first of a
transaction that is open, so each commit becomes visible in some topics and partitions, and in the others only after other commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Producer

import tailrace as tr
from tailrace.core.records import Output
from tests.core import ordered
from tests.core.ordered import Event, Said, oracle
from tests.kafka.outside import messages

DISORDER_MS = {"left": 50, "middle": 500, "right": 2_000}
PARTITIONS = 4
START_MS = 1_700_000_000_000
KEYS = "abcdefghijkl"
_ANSWER_S = 60.0


def joining(name: str, order: Any, partitions: int = PARTITIONS) -> tr.App:
    """The app of ``tests.core.ordered`` with three inputs, and a fourth that never gets a record."""
    idle = {**dict.fromkeys(DISORDER_MS, "10m"), "never": "1s"}
    inputs = {**DISORDER_MS, "never": 0}
    return ordered.joining(
        order, partitions, name=name, said_in=f"{name}-said", disorder_ms=inputs, idle_after=idle
    )


app = joining("gate", "event-time")
hasty = joining("hasty", "arrival")
waits = joining("waits", "event-time", partitions=1)


def events(random: Random, count: int) -> Iterator[Output]:
    """In disorder; few are late. No input is far ahead of the others."""
    at = START_MS
    for number in range(count):
        at += random.choice([0, 0, 1, 3, 7, 15, 100])
        name = random.choice(list(DISORDER_MS))
        behind_ms = random.randrange(DISORDER_MS[name] + (1 if random.random() < 0.95 else 1_000))
        event = Event(random.choice(KEYS), at - behind_ms, number)
        yield Output(name, event.key.encode(), msgspec.json.encode(event), event.at)


History = list[dict[str, list[tuple[int, Event]]]]
"""By task and input, offsets and events."""


def history(bootstrap: str, prefix: str) -> History:
    """What the inputs have."""
    decode = msgspec.json.Decoder(Event).decode
    found: History = [{} for _ in range(PARTITIONS)]
    for name in DISORDER_MS:
        for task, records in enumerate(messages(bootstrap, prefix + name)):
            found[task][name] = [(one.offset() or 0, decode(one.value() or b"")) for one in records]
    return found


def said(bootstrap: str, topic: str) -> list[list[tuple[str, str]]]:
    """By task, what has been said, in its order."""
    decode = msgspec.json.Decoder(Said).decode
    found = [[decode(one.value() or b"") for one in records] for records in messages(bootstrap, topic)]
    return [[(one.key, one.text) for one in of_task] for of_task in found]


def expected(fed: History) -> list[list[tuple[str, str]]]:
    """By task, what is said once all inputs have ended."""
    return [
        oracle(
            {name: [event for _, event in of_input] for name, of_input in of_task.items()},
            ends=True,
            disorder_ms=DISORDER_MS,
        )
        for of_task in fed
    ]


class Transactions:
    """Writes records in their order, in transactions of several producers that overlap."""

    def __init__(self, bootstrap: str, prefix: str, random: Random) -> None:
        self._prefix, self._random = prefix, random
        self._producers = [
            Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "transactional.id": f"{prefix}gate-{number}",
                    "partitioner": "murmur2",
                    "linger.ms": 0,
                }
            )
            for number in range(3)
        ]
        for one in self._producers:
            one.init_transactions(_ANSWER_S)
        self.committed = 0

    def write(self, records: Iterator[Output], of_round: int, after_round: Callable[[int], None]) -> None:
        """A round is some records of one transaction; some rounds end it."""
        open_ones: list[Producer] = []
        while some := list(islice(records, of_round)):
            producer = self._random.choice(self._producers)
            if producer not in open_ones:
                producer.begin_transaction()
                open_ones.append(producer)
            for topic, key, value, at_ms, *_ in some:
                producer.produce(self._prefix + topic, value, key, timestamp=at_ms)
            assert not producer.flush(_ANSWER_S)
            if self._random.random() < 0.6:
                self._commit(producer)
                open_ones.remove(producer)
            after_round(self.committed)
        for producer in open_ones:
            self._commit(producer)

    def _commit(self, producer: Producer) -> None:
        producer.commit_transaction(_ANSWER_S)
        self.committed += 1
