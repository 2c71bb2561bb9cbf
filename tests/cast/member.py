"""What every app of the cast has: one kind of event, one kind of result, and histories in which what is hard happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple, TypeAlias

import msgspec

import tailrace as tr
from tailrace.core.records import Output

START_MS = 1_000_000
NEVER: Any = "1000d"
"""After this an input is idle. What falls idle may be late when it wakes, so in the cast none does."""
KEYS = ("k0", "k1", "k2", "k3", "", "ü\0")


class Event(msgspec.Struct, frozen=True):
    """What happens to a key. ``to`` is another key; what ``n`` means is up to the app."""

    key: tr.Key[str]
    at: tr.EventTime[int]
    n: int
    to: str = ""


class Said(msgspec.Struct, frozen=True):
    """A result."""

    key: tr.Key[str]
    at: int
    what: str
    n: int


Sent: TypeAlias = tuple[str, Event]
"""Topic and event."""
Found: TypeAlias = Counter[tuple[str, Any]]
"""Topics and what is there; of a table, the last value of each key."""


class Case(NamedTuple):
    """An app, its inputs in the order in which producers append them, and what it must come to, whatever the schedule."""

    make: Callable[[int], tr.App]
    """The app, with so many partitions."""
    partitions: int
    inputs: Sequence[Output]
    expected: Found
    topics: tuple[str, ...] = ("said",)
    """What is compared, beside dead letters."""
    early: int = 0
    """Number of the first inputs that are read before all others."""


def records(sent: Sequence[Sent]) -> list[Output]:
    """Events as producers write them."""
    return [Output(topic, one.key.encode(), msgspec.json.encode(one), one.at) for topic, one in sent]


def history(
    random: Random, *topics: str, disorder_ms: int = 0, late: float = 0, count: int = 90
) -> list[Sent]:
    """Events in phases: in some only one key has traffic, or only one topic; with ties, pauses and disorder.

    ``late`` is the part of the events that are late wherever their key is: in any number of partitions.
    """
    found, now, newest = list[Sent](), START_MS, dict[tuple[str, str], int]()
    while len(found) < count:
        keys = KEYS if random.random() < 0.6 else random.sample(KEYS, 1)
        some = topics if random.random() < 0.7 else (random.choice(topics),)
        for _ in range(random.choice((1, 8, 20))):
            now += random.choice((0, 0, 1, 250, 1_000, 4_000))
            key, topic = random.choice(keys), random.choice(some)
            at = now - random.randint(0, disorder_ms)
            if random.random() < late and (topic, key) in newest:
                at = newest[topic, key] - disorder_ms - random.choice((1, 700, 50_000))
            newest[topic, key] = max(at, newest.get((topic, key), at))
            found.append((topic, Event(key, at, len(found), random.choice(KEYS))))
        now += random.choice((0, 0, 30_000))
    return found


def in_order(
    sent: Sequence[Sent], topic: str, disorder_ms: int
) -> tuple[dict[str, list[Event]], list[Event]]:
    """Of a topic: the events of each key in the order of event time, and those that ``history`` has made late."""
    newest, keys, late = dict[str, int](), dict[str, list[Event]](), list[Event]()
    for one in (event for name, event in sent if name == topic):
        if one.at < newest.get(one.key, one.at) - disorder_ms:
            late.append(one)
        else:
            keys.setdefault(one.key, []).append(one)
        newest[one.key] = max(one.at, newest.get(one.key, one.at))
    return {key: sorted(some, key=lambda one: one.at) for key, some in keys.items()}, late
