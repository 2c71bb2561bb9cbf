"""The cost of each part of a worker, and of the hand-written loop, in microseconds of processor time per event.

    python -m benchmarks.served.costs

The worker runs in this process. Each listed part is wrapped by a stopwatch. Calls of other parts do not count for the caller.
The parts are called once per slice or commit, so the cost of the stopwatches is negligible.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from statistics import median
from time import sleep, thread_time
from typing import Any

from benchmarks.apps import counting
from benchmarks.served.bare import BareLoop
from benchmarks.served.house import House, endless
from tailrace.core.engine.task import Task
from tailrace.history.replay.replaying import seldom_collected
from tailrace.log.embedded.reader import EmbeddedReader
from tailrace.log.embedded.writer import Batch, EmbeddedWriter
from tailrace.log.routing import Router
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.slices import Slices
from tailrace.runtime.worker import Worker
from tailrace.state import RocksStore

PARTS: tuple[tuple[type, str, str], ...] = (
    (EmbeddedReader, "fetch", "log: fetched"),
    (Task, "decode", "events decoded, their keys and times"),
    (Task, "run", "the steps: lateness, state, handler, emit, watermark"),
    (Task, "take_numbered", "outputs numbered"),
    (Router, "split", "log: sorted by partition"),
    (Batch, "add", "log: encoded"),
    (EmbeddedWriter, "commit", "log: encoded, written, committed"),
    (Task, "commit_batch", "what has changed, encoded"),
    (Slices, "stage", "changelog records"),
    (RocksStore, "write", "RocksDB"),
    (Slices, "slice", "slices: all else"),
)
ROUNDS = 3


class Stopwatches:
    """Processor time of this thread by part, without the time of other parts called from it."""

    def __init__(self, parts: Sequence[tuple[type, str, str]]) -> None:
        self._parts = parts
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def attached(self) -> Generator[None]:
        """Wrap all parts inside the block."""
        with ExitStack() as undo:
            for cls, method, name in self._parts:
                original: Callable[..., Any] = getattr(cls, method)
                undo.callback(setattr, cls, method, original)
                setattr(cls, method, self._wrapped(original, name))
            yield

    def _wrapped(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            start = thread_time()
            try:
                return call(*arguments, **named)
            finally:
                took = thread_time() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return timed


def costs(events: int, keys: int, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds per event by part, as medians of several rounds: of a worker, and of the hand-written loop."""
    by_worker: list[dict[str, float]] = []
    by_hand: list[dict[str, float]] = []
    with House(counting) as house, ExitStack() as closing, seldom_collected():
        options = ServiceOptions("benchmarks.apps:counting", house.folder / "log", house.folder / "state")
        host = Host(options, counting.plan())
        closing.enter_context(host.joined())
        host.tasks.look()
        worker = host.worker
        worker.start()
        closing.callback(worker.leave)
        loop, records = BareLoop(house.log, options.commit_interval_ms), endless(keys)
        for number in range(rounds + 1):
            count = events if number else keys  # first all keys once, not counted
            house.feed(islice(records, count))
            watches = Stopwatches(PARTS)
            with watches.attached():
                start = thread_time()
                _work(worker, house)
                by_worker.append(_each(watches, thread_time() - start, count))
                watches.seconds.clear()
                start = thread_time()
                loop.run()
                by_hand.append(_each(watches, thread_time() - start, count))
    return _medians(by_worker[1:]), _medians(by_hand[1:])


def _work(worker: Worker, house: House) -> None:
    """Run the worker until all outputs are committed."""
    while house.records("totals") < house.records("events"):
        if not worker.turn():
            sleep(0.005)  # until the last commit is due


def _each(watches: Stopwatches, total_s: float, count: int) -> dict[str, float]:
    rest_s = total_s - sum(watches.seconds.values())
    parts = {**watches.seconds, "the rest": rest_s, "in all": total_s}
    return {name: seconds / count * 1e6 for name, seconds in parts.items()}


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(one.get(name, 0.0) for one in rounds) for name in rounds[0]}


def main(events: int = 400_000, keys: int = 100_000, rounds: int = ROUNDS) -> int:
    """Print both as a table."""
    worker, by_hand = costs(events, keys, rounds)
    names = [*(name for _, _, name in PARTS if name in worker), "the rest", "in all"]
    print(f"| us per event | worker | loop by hand |\n|{'-' * 54}|--------|--------------|")
    for name in names:
        other = f"{by_hand[name]:.2f}" if name in by_hand else ""
        print(f"| {name:52} | {worker[name]:6.2f} | {other:12} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
