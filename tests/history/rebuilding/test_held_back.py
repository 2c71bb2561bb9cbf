"""A rebuild of an app that follows another one says for which of its tasks event time waits at the end of the
history.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerSettings
from tailrace.state import MemoryStore
from tests.history.rebuilding import shops
from tests.history.rebuilding.lived import done

FOLLOWER = "tests.history.rebuilding.test_held_back:app"

app = tr.App("follower", partitions=2)
_totals = app.topic("totals", shops.Total, key="shop", watermark="upstream")


@app.actor
class Follower(tr.Actor):
    """Counts."""

    seen: int = 0

    @tr.process(_totals)
    def total(self, event: shops.Total, ctx: tr.Context[str]) -> None:
        """Count."""
        self.seen += 1


def serve_until_read(folder: Path, sales: list[Output]) -> None:
    """Nobody falls idle: the clock stands still."""
    plan, log = shops.app.plan(), EmbeddedLog(folder / "log")
    prepare_log(log, plan, create_declared=True)
    log.append_all(sales)
    settings = WorkerSettings(partition=PartitionSettings(commit_interval_ms=0))
    stores = [MemoryStore(), MemoryStore()]
    worker = Worker(plan, log, range(2), stores.__getitem__, settings=settings, clock=lambda: 1_000_000)
    worker.start()
    while worker.turn():
        pass
    worker.leave()
    log.close()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_task_without_a_watermark_is_named(tmp_path: Path, is_whole: bool) -> None:
    sales = [one for one in shops.sales(300) if is_whole or one.key == b"shop-1"]
    serve_until_read(tmp_path, sales)
    report, _ = done(tmp_path, FOLLOWER, order="canonical")
    said = [one for one in report.notes if "had no watermark" in one]
    if is_whole:
        assert said == []
    else:
        (one,) = said
        assert one.startswith(
            f"totals: shops-{1 - partition_of(b'shop-1', 2)} had no watermark at the end of this history"
        )
