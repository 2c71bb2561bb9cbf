"""Logs that are worth archiving: several topics, days, keys and headers of every kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tailrace.core.records import InputRecord, Output
from tailrace.log import Log, TopicPartition, TopicSettings
from tailrace.log.archive import Archive
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Place

DAY_MS = 86_400_000
SMALL = 25
"""Records of a chunk."""
TOPICS = {"plain": TopicSettings(2), "odd %/name": TopicSettings(1), "kept": TopicSettings(2, compacted=True)}
PLACES = [TopicPartition(name, number) for name, kept in TOPICS.items() for number in range(kept.partitions)]


def made(folder: Path) -> EmbeddedLog:
    log = EmbeddedLog(folder / "log")
    for name, settings in TOPICS.items():
        log.create_topic(name, settings)
    return log


def grow(log: EmbeddedLog, chance: random.Random, commits: int = 5) -> None:
    """Commit some records of all topics, with watermarks."""
    writer = log.writer("grower")
    for number in range(commits):
        writer.append([record(chance) for _ in range(chance.randrange(1, 60))])
        writer.commit({}, "", {name: number * 1000 for name in TOPICS if chance.random() < 0.5})
    writer.close()


def record(chance: random.Random) -> Output:
    headers = tuple(
        (chance.choice("abc"), chance.randbytes(chance.randrange(4))) for _ in range(chance.randrange(3))
    )
    return Output(
        chance.choice([*TOPICS]),
        chance.choice([None, b"", b"\0", chance.randbytes(3)]),
        chance.choice([None, b"", chance.randbytes(chance.randrange(100))]),
        chance.choice([0, -5, DAY_MS, 3 * DAY_MS + 17, chance.randrange(5 * DAY_MS), 1 << 60]),
        headers,
    )


def archive_in(folder: Path) -> Archive:
    return Archive(Place.at(folder / "archive"))


def history(log: Log, **limits: Any) -> dict[TopicPartition, list[InputRecord]]:
    return {place: read(log, place, **limits) for place in PLACES}


def read(log: Log, place: TopicPartition, start: int | None = None, most: int = 17) -> list[InputRecord]:
    """What a reader gives from an offset on, a few at a time."""
    position = log.start_offset(*place) if start is None else start
    end = log.end_offset(*place)
    reader = log.reader({place: position})
    found: list[InputRecord] = []
    while position < end:
        fetch = reader.fetch(*place, most)
        assert len(fetch.records) <= most
        assert fetch.unread or not fetch.records or fetch.next_offset == end
        assert fetch.next_offset > position
        assert fetch.idle is (fetch.next_offset == end)
        found += fetch.records
        position = fetch.next_offset
    reader.close()
    return found
