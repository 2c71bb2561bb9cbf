"""A topic that has too few replicas in sync takes no records: a service waits, says why, and continues when the broker is back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.kafka.bad_input.shop import serving
from tests.kafka.broker.cluster import Cluster
from tests.soak.processes import wait_until


def test_a_service_waits_for_replicas_in_sync_and_names_the_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(tmp_path, 3) as cluster, serving(f"kafka://{cluster.bootstrap}/few.") as shop:
        shop.configure("shop.changelog", min_insync_replicas="3")
        shop.order(100)
        shop.work()
        lost = cluster.nodes[2]
        lost.kill()
        shop.order(100)
        working = threading.Thread(target=shop.work)
        working.start()
        wait_until(lambda: "2 of 3 replicas in sync, and needs 3" in caplog.text, "it says why it waits")
        assert "'shop.changelog' partition" in caplog.text
        lost.start()
        working.join()
        assert shop.counts() == {f"k{n}": 40 for n in range(5)}
