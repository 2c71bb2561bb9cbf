"""A house: a folder with a log in it that has the topics of some apps, what is fed to them, and what comes out."""

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
from tailrace.runtime.service import prepare_log

AT_ONCE = 10_000
"""Records given to a writer at once."""
_FOR_EVER = 1 << 60


class Taken(NamedTuple):
    """What it took a service to take some events."""

    events: int
    processor_s: float
    wall_rate: float
    """Events per second as seen from outside, up to the last commit that came with a tenth still to do: what is left
    over at the end waits for a commit of its own, with nothing to do."""

    @property
    def rate(self) -> float:
        """Events per second, by the clock that everything is measured with."""
        return self.wall_rate if WALL else self.events / self.processor_s


class House:
    """See the head of this file. A context manager: at its end nothing of it is left."""

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
        """Start an app, given as ``package.module:name``. Its partitions are not waited for."""
        return Service(
            self.folder / f"said-{next(self._numbers)}",
            app,
            *("--log", self.folder / "log", "--state", self.folder / "state"),
            *("--commit-interval", f"{commit_ms}ms", *arguments),
            environment={"BENCH_SLOW_MS": str(slow_ms)},
        )

    def feed(self, records: Iterable[Output]) -> int:
        """Append records in one commit; how many they were. Nothing of them is kept in memory but their bytes."""
        rest, fed = iter(records), 0
        while some := list(islice(rest, AT_ONCE)):
            self._writer.append(some)
            fed += len(some)
        self._writer.commit()
        return fed

    def records(self, *topics: str) -> int:
        """How many records some topics have had, all partitions together."""
        ends = (self.log.end_offset(topic, n) for topic in topics for n in range(self.log.partitions(topic)))
        return sum(ends)

    def take(self, service: Service, records: Iterable[Output], *out: str) -> Taken:
        """Feed a service, and wait until as many records have come out in ``out``, and it rests again."""
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
        """Until some topics have had so many records."""
        wait_until(lambda: self.records(*out) >= many, f"{many:,} records are in {', '.join(out)}", service)


def endless(keys: int, topic: str = "events") -> Iterator[Output]:
    """Events of random keys as records of JSON, without an end; one for each key first, so that all are known."""
    names = apps.keys(keys)
    yield from as_records((Event(name, 0, 1) for name in names), topic)
    yield from as_records(apps.events(_FOR_EVER, names), topic)


def as_records(events: Iterable[Event], topic: str = "events") -> Iterator[Output]:
    """Events as a producer writes them."""
    encode = msgspec.json.Encoder().encode
    return (Output(topic, event.key.encode(), encode(event), event.at) for event in events)
