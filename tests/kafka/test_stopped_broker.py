"""A commit whose answer is missing is sent again, and never aborted."""

from __future__ import annotations

import threading
from pathlib import Path

from tailrace.core.records import Output
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.cluster import MOST_REQUEST_S
from tests.kafka.broker.cluster import Cluster
from tests.log.contract import A, visible


def test_a_commit_that_a_stopped_broker_does_not_answer_is_sent_again_until_it_does(tmp_path: Path) -> None:
    # If the controller took the broker for dead when it wakes, the producer might be cut off: see ``bad_input/test_brokers.py``.
    with Cluster(tmp_path, settings={"broker.session.timeout.ms": "20000"}) as cluster:
        log = KafkaLog(f"kafka://{cluster.bootstrap}")
        log.create_topic("a", TopicSettings(1))
        writer = log.writer("w")
        writer.append([Output("a", b"k", b"1", 7)])
        (node,) = cluster.nodes
        node.pause()
        resumed = threading.Timer(MOST_REQUEST_S + 2, node.resume)  # longer than one request is waited for
        resumed.start()
        ends = writer.commit({A: 5}, "group")
        resumed.join()
        assert ends == {A: 1}
        assert visible(log, A) == [b"1"]
        assert log.committed_offsets("group", [A]) == {A: 5}
        writer.append([Output("a", b"k", b"2", 7)])
        node.kill()
        cluster.start()
        writer.commit()
        assert visible(log, A) == [b"1", b"2"]
        log.close()
