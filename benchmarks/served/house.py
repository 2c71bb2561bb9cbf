"""A house: a temporary folder with a log that has the topics of some apps. It feeds services and counts their outputs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Self

import msgspec

import tailrace as tr
from benchmarks import apps
from benchmarks.apps import Event
from benchmarks.measure import WALL
from benchmarks.served.service import Service, wait_until
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log

AT_ONCE = 10_000
"""Number of records given to a writer at once."""
_FOR_EVER = 1 << 60


class Taken(NamedTuple):
    """The time that a service needed for some events."""

    events: int
    processor_s: float
    wall_rate: float
    """Events per second in wall time, up to the last commit that left at least a tenth to do. The final rest does not count,
    as it only waits for the next commit."""

    @property
    def rate(self) -> float:
        """Events per second, by the clock that is used for all measurements."""
        return self.wall_rate if WALL else self.events / self.processor_s


class House:
    """See the head of this file. A context manager; at its end the folder is removed."""

    def __init__(self, *of: tr.App) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
        self.log = EmbeddedLog(self.folder / "log")
        for app in of:
            prepare_log(self.log, app.plan(), create_declared=True)
        self._writer = self.log.writer("feed")
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        shutil.rmtree(self.folder)

    def start(self, app: str, commit_ms: int, *arguments: object, slow_ms: float = 0) -> Service:
        """Start an app, given as ``package.module:name``. Does not wait for its partitions."""
        return Service(
            self.folder / f"said-{next(self._numbers)}",
            app,
            *("--log", self.folder / "log", "--state", self.folder / "state"),
            *("--commit-interval", f"{commit_ms}ms", *arguments),
            environment={"BENCH_SLOW_MS": str(slow_ms)},
        )

    def feed(self, records: Iterable[Output]) -> int:
        """Append records in one commit. Returns their number. Only their bytes are kept in memory."""
        rest, fed = iter(records), 0
        while some := list(islice(rest, AT_ONCE)):
            self._writer.append(some)
            fed += len(some)
        self._writer.commit()
        return fed

    def records(self, *topics: str) -> int:
        """The sum of the end offsets of all partitions of some topics."""
        ends = (self.log.end_offset(topic, n) for topic in topics for n in range(self.log.partitions(topic)))
        return sum(ends)

    def take(self, service: Service, records: Iterable[Output], *out: str) -> Taken:
        """Feed a service, and wait until ``out`` has as many new records, and the service is idle again."""
        before = self.records(*out)
        began_s = service.processor_s()
        fed = self.feed(records)
        start = perf_counter()
        seen: list[tuple[int, float]] = []

        def all_is_out() -> bool:
            done, at_s = self.records(*out) - before, perf_counter() - start
            if done <= 0.9 * fed or not seen:
                seen.append((done, at_s))
            return done >= fed

        wait_until(all_is_out, f"{fed:,} records are in {', '.join(out)}", service)
        took_s = perf_counter() - start
        service.settle()
        done, at_s = max(seen)
        wall_rate = done / at_s if done else fed / took_s
        return Taken(fed, service.processor_s() - began_s, wall_rate)

    def wait_for(self, many: int, service: Service, *out: str) -> None:
        """Wait until some topics have had ``many`` records."""
        wait_until(lambda: self.records(*out) >= many, f"{many:,} records are in {', '.join(out)}", service)


def endless(keys: int, topic: str = "events") -> Iterator[Output]:
    """An infinite stream of JSON records with random keys. It starts with one event for each key."""
    names = apps.keys(keys)
    yield from as_records((Event(name, 0, 1) for name in names), topic)
    yield from as_records(apps.events(_FOR_EVER, names), topic)


def as_records(events: Iterable[Event], topic: str = "events") -> Iterator[Output]:
    """Events as records of a producer."""
    encode = msgspec.json.Encoder().encode
    return (Output(topic, event.key.encode(), encode(event), event.at) for event in events)
