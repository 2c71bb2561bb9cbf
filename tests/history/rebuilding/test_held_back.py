"""A rebuild of an app that follows another one says for which of its tasks event time waits at the end of the
history.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import tailrace as tr
from tailrace.core.values.partitioner import partition_of
from tailrace.log.embedded import EmbeddedLog
from tests.history.rebuilding import shops
from tests.history.rebuilding.lived import done
from tests.runtime.joining import Service

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


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_task_without_a_watermark_is_named(tmp_path: Path, is_whole: bool) -> None:
    sales = [one for one in shops.sales(300) if is_whole or one.key == b"shop-1"]
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        service = Service(shops.app, log)  # nobody falls idle: its clock stands still
        log.append_all(sales)
        service.settle()
        service.worker.leave()
    report, _ = done(tmp_path, FOLLOWER, order="canonical")
    said = [one for one in report.notes if "had no watermark" in one]
    if is_whole:
        assert said == []
    else:
        (one,) = said
        assert one.startswith(
            f"totals: shops-{1 - partition_of(b'shop-1', 2)} had no watermark at the end of this history"
        )
