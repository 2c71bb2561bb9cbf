"""Two chained services on a real broker, in several processes, under a few faults; the rest is ``python -m tests.kafka.soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.broker.cluster import Cluster
from tests.kafka.soak import Round


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_lost_doubled_or_late_whatever_strikes(tmp_path: Path, seed: int) -> None:
    (tmp_path / "broker").mkdir()
    with Cluster(tmp_path / "broker") as cluster:
        report = Round(tmp_path, cluster, seed, 3, rich=bool(seed)).run()
    assert report.faults.total() == 3
    assert report.figures.events
    assert report.figures.timers
