"""An app with an input, messages, a timer and an output; a worker with all of its tasks in this process, and what others do to its topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec

import tailrace as tr
from tailrace.core.errors import LogUnavailableError, TailraceError
from tailrace.core.records import Output
from tailrace.core.storage import Store
from tailrace.history.reading.stretches import scan
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.kafka.outside import Outside
from tests.runtime.processes import PATIENCE_S, wait_until

QUIET_MS = 1_000
ORDER = b'{"key":"%s","at_ms":1000000}'
"""As it is written, but for its key."""


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something was ordered."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]
    note: str = ""


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The number of orders of a key."""

    key: tr.Key[str]
    count: int
    note: str = ""


class Noted(msgspec.Struct, frozen=True):
    """The message to the ledger."""

    count: int


app = tr.App("shop", partitions=2)
orders = app.topic("orders", Order)
totals = app.topic("totals", Total)


@app.actor
class Counter(tr.Actor):
    """Counts."""

    count: int = 0
    notes: tr.ListState[str]

    @tr.process(orders)
    def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
        """Count, emit, tell the ledger."""
        self.count += 1
        if event.note.startswith("keep"):
            self.notes.append(event.note)
        ctx.emit(totals, Total(ctx.key, self.count, event.note if event.note.startswith("emit") else ""))
        ctx.send(Ledger, ctx.key, Noted(self.count))
        ctx.set_timer(ctx.event_time + QUIET_MS, name="quiet")

    @tr.on_timer("quiet")
    def quiet(self, ctx: tr.Context[str]) -> None:
        """Nothing came for a while."""
        ctx.emit(totals, Total(ctx.key, -self.count))


@app.actor
class Ledger(tr.Actor):
    """Gets messages."""

    last: int = 0

    @tr.on_message
    def noted(self, message: Noted, ctx: tr.Context[str]) -> None:
        """Keep the last."""
        self.last = message.count


PLAN = app.plan()


class Shop(Outside):
    """The service in this process, over a log, with stores in memory that survive ``restart``."""

    def __init__(self, url: str, open_state: Callable[[int], Store] | None = None) -> None:
        super().__init__(url)
        self.log = KafkaLog(url, LogOptions(hidden_s=1.0, patience_s=PATIENCE_S))
        self.stores: dict[int, MemoryStore] = {}
        self.now = 0
        self.after_deleted = False
        self._open_state = open_state
        self._worker: Worker | None = None
        prepare_log(self.log, PLAN, create_declared=True)

    @property
    def worker(self) -> Worker:
        """The worker, which is started first."""
        return self.start()

    def start(self) -> Worker:
        """Start the worker, if there is none."""
        if self._worker is None:
            self._worker = Worker(
                PLAN,
                self.log,
                range(PLAN.partitions),
                self._open_state or (lambda number: self.stores.setdefault(number, MemoryStore())),
                settings=WorkerSettings(
                    partition=PartitionSettings(commit_interval_ms=0, after_deleted=self.after_deleted)
                ),
                reader=self.log.reader({}, live=True),
            )
            self._worker.start()
        return self._worker

    def order(self, count: int, note: str = "") -> None:
        """Append orders of a few keys, one second apart."""
        made = [Order(f"k{n % 5}", (self.now + n) * 1_000, note) for n in range(count)]
        self.now += count
        outputs = [Output("orders", one.key.encode(), msgspec.json.encode(one), one.at_ms) for one in made]
        outside = KafkaLog(self.url)

        def is_appended() -> bool:
            try:
                outside.append_all(outputs)
            except LogUnavailableError:  # nothing was
                return False
            return True

        wait_until(is_appended, "the orders are appended")
        outside.close()

    def work(self, until: Callable[[], object] | None = None, patience_s: float = PATIENCE_S) -> None:
        """Take turns until a condition holds; by default, until all orders and messages are handled and committed."""

        deadline_s, is_done = time.monotonic() + patience_s, until or self.settled
        while True:
            if not self.worker.turn() and is_done():
                return
            assert time.monotonic() < deadline_s, "waited in vain until the service has done its work"
            self.worker._reader.wait(0.01)

    def settled(self) -> bool:
        """Whether everything is read and committed."""
        slots = self.worker.slots
        running = [slot.running for slot in slots]
        if any(one is None or one.dirty for one in running):
            return False
        return all(
            one is not None
            and self.worker._reader.past_gaps.get(TopicPartition(name, one.partition), at)
            >= self.log.end_offset(name, one.partition)
            for one in running
            for name, at in (one.task.positions.items() if one is not None else ())
        )

    def lived(self) -> None:
        """Handle some orders."""
        self.order(20)
        self.work()

    def refuses(self, error: type[TailraceError], match: str) -> None:
        """Another process does not start, neither with the state of this one nor with none."""
        import pytest  # not for the processes that run the app

        for stores in (self.stores.copy(), {}):
            with serving(self.url) as later, pytest.raises(error, match=match):
                later.stores = stores
                later.start()

    def abandon(self) -> None:
        """Forget a worker that could not start."""
        worker, self._worker = self._worker, None
        assert worker is not None
        worker._reader.close()

    def stop(self) -> None:
        """Leave, in good order."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.leave()

    def restart(self, *, keep_state: bool) -> None:
        """Start again, here or on another machine."""
        self.stop()
        if not keep_state:
            self.stores.clear()
        self.start()

    def counts(self) -> dict[str, int]:
        """See ``counts``."""
        return counts(self.log)


def counts(log: KafkaLog) -> dict[str, int]:
    """The highest count that was emitted for each key."""
    found: dict[str, int] = {}
    for number in range(log.partitions("totals")):
        for record in scan(log, "totals", number):
            one = msgspec.json.decode(record.value or b"", type=Total)
            found[one.key] = max(found.get(one.key, 0), one.count)
    return found


@contextmanager
def serving(url: str, open_state: Callable[[int], Store] | None = None) -> Generator[Shop]:
    """A service whose resources are released at the end, whatever has become of it."""
    shop = Shop(url, open_state)
    try:
        yield shop
    finally:
        worker, shop._worker = shop._worker, None
        if worker is not None:
            for slot in worker.slots:
                if slot.partition is not None:
                    slot.partition.close()
            worker._reader.close()
        shop.log.close()
