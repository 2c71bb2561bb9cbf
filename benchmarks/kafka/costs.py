"""The cost of each part of a service on Kafka, in microseconds of processor time per event.

    python -m benchmarks.kafka.costs [APP [EVENTS [KEYS]]]

The service runs in this process. Each listed part is wrapped by a stopwatch of the main thread. Calls of other parts do not count
for the caller. The threads of librdkafka and RocksDB are listed together.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from benchmarks.kafka import apps
from benchmarks.kafka.house import LOOK_S, KafkaHouse
from benchmarks.served.costs import Stopwatches
from benchmarks.served.house import endless
from benchmarks.served.service import settled
from tailrace.core.engine.task import Task
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.writer import KafkaProducer
from tailrace.log.routing import Router
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.slices import Slices
from tailrace.state import OverlayStore, RocksStore

PARTS: tuple[tuple[type, str, str], ...] = (
    (KafkaReader, "_pump", "log: consumed, and sorted by partition"),
    (KafkaReader, "fetch", "log: fetched"),
    (Task, "decode", "events decoded, their keys and times"),
    (Task, "drain", "timers fired"),
    (Task, "run", "the steps: lateness, state, handler, emit, watermark"),
    (Task, "take_numbered", "outputs numbered"),
    (Router, "route", "log: routed"),
    (KafkaProducer, "_produce", "log: produced"),
    (KafkaProducer, "_serve", "log: polled and flushed"),
    (KafkaProducer, "commit", "log: committed"),
    (Task, "commit_batch", "what has changed, encoded"),
    (Slices, "stage", "changelog records"),
    (OverlayStore, "write", "rows kept in memory"),
    (RocksStore, "write", "RocksDB written"),
    (RocksStore, "get_many", "RocksDB read"),
    (Slices, "slice", "slices: all else"),
)
THREADS = "threads of libraries"


def costs(events: int, keys: int, name: str = "counting") -> dict[str, float]:
    """Microseconds per event by part, of a service that knows all keys."""
    app = getattr(apps, name)
    with KafkaHouse(app) as house, _stopped_at_last() as stop:
        options = ServiceOptions(f"benchmarks.kafka.apps:{name}", house.url, house.folder / "state")
        source, found, watches = endless(keys), dict[str, float](), Stopwatches(PARTS)

        def watched() -> None:
            try:
                _wait(house, name, islice(source, keys))
                _, ends = house.feed(islice(source, events))
                watches.seconds.clear()
                start = _clocks()
                _wait(house, name, (), ends)
                took = [now - before for now, before in zip(_clocks(), start, strict=True)]
                found.update(watches.seconds)
                found["in all"] = took[0]
                found[THREADS] = took[0] - took[1] - took[2]
            finally:
                stop()

        watcher = threading.Thread(target=watched, daemon=True)

        def _clocks() -> tuple[float, float, float]:
            """Of the process, of the main thread, and of the thread that watches."""
            return (
                time.process_time(),
                time.clock_gettime(time.pthread_getcpuclockid(main_thread)),
                time.thread_time(),
            )

        main_thread = threading.get_ident()
        with watches.attached():
            watcher.start()
            Host(options, app.plan()).run()
        watcher.join()
    return {name: seconds / events * 1e6 for name, seconds in found.items()}


@contextmanager
def _stopped_at_last() -> Generator[Callable[[], None]]:
    yield lambda: os.kill(os.getpid(), signal.SIGTERM)


def _wait(house: KafkaHouse, group: str, records: Any, ends: Any = None) -> None:
    if ends is None:
        _, ends = house.feed(records)
    while any(at < ends[place] for place, at in house.taken(group, ends).items()):
        time.sleep(LOOK_S)
    settled(time.process_time)


def main(app: str = "counting", events: str = "400000", keys: str = "100000") -> int:
    """Print the parts as a table."""
    found = costs(int(events), int(keys), app)
    names = [*(name for _, _, name in PARTS if name in found), THREADS, "in all"]
    print(f"| us per event | service |\n|{'-' * 54}|---------|")
    for name in names:
        print(f"| {name:52} | {found[name]:7.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
