"""Two chained services on a real broker, in several processes, under a few faults; the rest is ``python -m tests.kafka.soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.broker.cluster import Cluster
from tests.kafka.soak import BROKER_SETTINGS, Plan, Round


@pytest.mark.long
def test_nothing_is_lost_doubled_or_late_whatever_strikes(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    plan = Plan(1, 3, rich=True, consumer_protocol=True, pause_s=0.3)
    with Cluster(tmp_path / "broker", settings=BROKER_SETTINGS) as cluster:
        report = Round(tmp_path, cluster, plan).run()
    assert report.faults.total() == 3
    assert report.figures.events
    assert report.figures.timers
