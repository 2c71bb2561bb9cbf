"""What goes into the app of ``served``, and what has to have come out of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from tailrace.core.records import Output
from tailrace.log import Log, TopicPartition
from tests.runtime.served import Count, Tick


def ticks(keys: int, rounds: int, first_round: int = 0) -> list[Output]:
    """One event for each key and round; event time goes up by one with each."""
    return [
        Output("ticks", who.encode(), msgspec.json.encode(Tick(who, at)), at)
        for number in range(first_round, first_round + rounds)
        for key in range(keys)
        for who, at in [(f"k{key}", number * keys + key)]
    ]


def read(log: Log, topic: str) -> list[Count]:
    """All that is visible in a topic, partition after partition."""
    found: list[Count] = []
    for number in range(log.partitions(topic)):
        reader = log.reader({TopicPartition(topic, number): log.start_offset(topic, number)})
        while records := reader.fetch(topic, number, 10_000).records:
            found += [msgspec.json.decode(one.value or b"", type=Count) for one in records]
        reader.close()
    return found


def check_counts(log: Log, keys: int, rounds: int) -> None:
    """Nothing was lost and nothing repeated: each key has counted one by one up to the number of rounds."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for one in read(log, "counts"):
        by_key[one.who].append(one.count)
    expected = list(range(1, rounds + 1))
    assert {who: counts for who, counts in by_key.items() if counts != expected} == {}
    assert len(by_key) == keys


def check_all(log: Log, keys: int, rounds: int) -> None:
    """... and every message has arrived once, and each key's last timer has fired once."""
    check_counts(log, keys, rounds)
    totals: dict[str, int] = {}
    audits = read(log, "audits")
    for one in audits:
        totals[one.who] = max(totals.get(one.who, 0), one.count)
    assert sum(totals.values()) == len(audits) == keys * rounds
    last = [one for one in read(log, "finals") if one.count == rounds]
    assert len(last) == keys
    assert len({one.who for one in last}) == keys


def poison(who: str, at: int) -> dict[str, Any]:
    """An event whose handler fails, as the arguments of ``append``."""
    return {
        "topic": "ticks",
        "key": who.encode(),
        "value": msgspec.json.encode(Tick(who, at, -1)),
        "timestamp_ms": at,
    }
