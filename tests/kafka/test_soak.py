"""Two chained services on a real broker, in several processes, under a few faults; the rest is ``python -m tests.kafka.soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.broker.cluster import Cluster
from tests.kafka.soak import BROKER_SETTINGS, Plan, Round


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_lost_doubled_or_late_whatever_strikes(tmp_path: Path, seed: int) -> None:
    (tmp_path / "broker").mkdir()
    plan = Plan(seed, 3, rich=bool(seed), consumer_protocol=bool(seed), pause_s=0.3)
    with Cluster(tmp_path / "broker", settings=BROKER_SETTINGS) as cluster:
        report = Round(tmp_path, cluster, plan).run()
    assert report.faults.total() == 3
    assert report.figures.events
    assert report.figures.timers
