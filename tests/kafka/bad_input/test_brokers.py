"""A broker that stops and wakes all the time, is down while a service restores, or is taken for dead, delays it and changes no result."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.bad_input.shop import serving
from tests.kafka.broker.cluster import Cluster
from tests.kafka.broker.node import Node
from tests.soak.processes import wait_until

RARE = {"broker.heartbeat.interval.ms": "15000", "broker.session.timeout.ms": "11000"}
"""The controller takes the broker for dead for four of fifteen seconds: the clients need some time to find it again."""


@contextmanager
def stumbling(node: Node, stop_s: float = 0.7, run_s: float = 0.5) -> Generator[None]:
    """A broker that is slow, and alive."""
    ended = threading.Event()

    def stumble() -> None:
        while not ended.wait(run_s):
            node.pause()
            ended.wait(stop_s)
            node.resume()

    thread = threading.Thread(target=stumble)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_slow_broker_and_one_that_is_down_change_no_result(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, serving(f"kafka://{cluster.bootstrap}/slow.") as shop:
        (node,) = cluster.nodes
        shop.order(100)
        shop.work()
        with stumbling(node):
            shop.order(100)
            shop.work()
            shop.restart(keep_state=False)
            shop.order(100)
            shop.work()
        shop.stop()
        shop.stores.clear()
        node.kill()
        starting = threading.Thread(target=shop.start)  # it restores while there is no broker
        starting.start()
        starting.join(2.0)
        cluster.start()
        starting.join()
        shop.order(100)
        shop.work()
        assert shop.counts() == {f"k{n}": 80 for n in range(5)}


def test_a_broker_that_is_taken_for_dead_delays_a_service(tmp_path: Path) -> None:
    """It lives, and says that there are no brokers: librdkafka believes it, and forgets the only one that it knows."""
    with Cluster(tmp_path, settings=RARE) as cluster, serving(f"kafka://{cluster.bootstrap}/dead.") as shop:
        (node,) = cluster.nodes
        shop.order(100)
        shop.work()
        for _ in range(2):
            shop.order(100)
            wait_for_line(node, "Fencing broker")
            shop.work(patience_s=600)  # each client that was made at a wrong moment costs some time
        assert shop.counts() == {f"k{n}": 60 for n in range(5)}


def wait_for_line(node: Node, text: str) -> None:
    """Until a node has logged it once more."""
    before = node.log.read_text(errors="replace").count(text)
    wait_until(lambda: node.log.read_text(errors="replace").count(text) > before, text)
