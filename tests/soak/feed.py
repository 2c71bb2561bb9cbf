"""What goes into the soak: events that follow from a seed, and a process that appends them, each exactly once.

    python -m tests.soak.feed LOG SEED RICH PER_SECOND

appends for ever, in transactions that carry how many were appended: killed at any moment, it goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from random import Random

import msgspec

from tailrace.core.errors import CommitUnknownError, FencedError, LogUnavailableError
from tailrace.core.records import Output
from tailrace.log import Log, TopicPartition, Writer
from tailrace.log.opening import open_log
from tests.soak.apps import DISORDER_MS, WINDOW_MS, Call, Kind, Notice, Step

START_MS = 1_700_000_000_000
STEP_MS = 20
DEVICES = 30
GROUP = "feed"
PLACE = TopicPartition("steps", 0)
_EVERY_S = 0.02
_AGAIN_S = 0.2


def events(seed: int, *, rich: bool) -> Iterator[tuple[Step | Call | Notice, bool]]:
    """All events in order, without end, each with whether it lies so far behind that it may be late."""
    random = Random(seed)
    kinds: tuple[Kind, ...] = ("add", "add", "add", "add", "quiet", "cancel")
    number = 0
    while True:
        number += 1
        device = f"device {random.randrange(DEVICES)}"
        latest = START_MS + number * STEP_MS
        at = latest - random.randrange(DISORDER_MS)
        chance = random.random()
        if rich and chance < 0.1:
            yield Call(device, at), False
        elif rich and chance < 0.11:
            yield Notice(device, at), False
        else:
            far = random.random() < 0.02
            if far:
                at = latest - random.randrange(DISORDER_MS, 5 * WINDOW_MS)
            yield Step(device, at, number, random.choice(kinds), random.randrange(100)), far


def outputs(seed: int, start: int, stop: int, *, rich: bool) -> list[Output]:
    """Some of them, as records."""
    return [
        Output(_TOPICS[type(event)], event.device.encode(), msgspec.json.encode(event), event.at)
        for event, _ in islice(events(seed, rich=rich), start, stop)
    ]


def fed(log: Log) -> int:
    """How many have been appended."""
    return log.committed_offsets(GROUP, [PLACE]).get(PLACE, 0)


def feed(log: Log, seed: int, *, rich: bool, per_second: float) -> None:
    """Append until the process is killed. After an error, continue at the position that the log has."""
    while True:
        try:
            _feed(log, seed, rich=rich, per_second=per_second)
        except (LogUnavailableError, CommitUnknownError, FencedError):
            time.sleep(_AGAIN_S)


def _feed(log: Log, seed: int, *, rich: bool, per_second: float) -> None:
    with closing(log.writer("feed")) as writer:
        _feed_by(writer, fed(log), seed, rich=rich, per_second=per_second)


def _feed_by(writer: Writer, position: int, seed: int, *, rich: bool, per_second: float) -> None:
    source = islice(events(seed, rich=rich), position, None)
    begun_s, count = time.monotonic(), 0
    while True:
        wanted = int((time.monotonic() - begun_s) * per_second) - count
        batch = [
            Output(_TOPICS[type(event)], event.device.encode(), msgspec.json.encode(event), event.at)
            for event, _ in islice(source, wanted)
        ]
        count += len(batch)
        if batch:
            writer.append(batch)
            writer.commit({PLACE: position + len(batch)}, GROUP)
        position += len(batch)
        time.sleep(_EVERY_S)


_TOPICS: dict[type, str] = {Step: "steps", Call: "calls", Notice: "notices"}


if __name__ == "__main__":
    _, folder, seed_text, rich_text, rate_text = sys.argv
    feed(open_log(folder), int(seed_text), rich=rich_text == "rich", per_second=float(rate_text))
