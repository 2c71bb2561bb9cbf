"""An app with one input, whose records may be from the future."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

import tailrace as tr
from tailrace.core.records import Output
from tailrace.history.rebuilding.request import task_settings
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.history.rebuilding import lived

NOW_MS = time.time_ns() // 1_000_000
"""When this module was imported, by the clock of this machine."""
A_DAY_MS = 86_400_000
YEAR_2100_MS, YEAR_2150_MS = 4_102_444_800_000, 5_680_281_600_000


class Sale(msgspec.Struct, frozen=True):
    shop: str
    at: int


app = tr.App("future", partitions=2, on_error="dead-letter")
sales = app.topic("sales", Sale, key="shop", event_time="at")
totals = app.topic("totals", Sale, key="shop")


@app.actor
class Shop(tr.Actor):
    """Counts its sales, and those that were still to come when its timer fired."""

    count: int = 0
    closed: int = 0

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.set_timer(event.at + 100)
        ctx.set_processing_timer(YEAR_2100_MS, "far")

    @tr.on_processing_timer("far")
    def open_again(self, ctx: tr.Context[str]) -> None:
        self.closed = -1_000

    @tr.on_timer
    def close(self, ctx: tr.Context[str]) -> None:
        self.closed += 1
        ctx.emit(totals, Sale(ctx.key, self.count))


def live_days_ago(folder: Path, days: int) -> None:
    """Run the service to the end of what is there, when the clock was so many days before."""
    plan, log = app.plan(), EmbeddedLog(folder / "log")
    prepare_log(log, plan, create_declared=True)
    stores = [MemoryStore() for _ in range(plan.partitions)]
    settings = WorkerSettings(partition=PartitionSettings(real_clock=True, task=task_settings()))
    clock_ms = NOW_MS - days * A_DAY_MS
    worker = Worker(plan, log, range(2), stores.__getitem__, settings=settings, clock=lambda: clock_ms)
    worker.start()
    while worker.turn():
        pass
    worker.leave()
    log.close()


def sell(folder: Path, *sold: tuple[str, int]) -> None:
    """Append sales at times from now, by shop, with the time of their events as their timestamps."""
    lived.append(
        folder,
        [
            Output(
                "sales", shop.encode(), msgspec.json.encode(Sale(shop, NOW_MS + ahead_ms)), NOW_MS + ahead_ms
            )
            for shop, ahead_ms in sold
        ],
        {"sales": 2},
    )
