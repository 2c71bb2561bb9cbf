"""A Kafka broker for the tests of this folder.

`make test` starts one for all tests and names it in TAILRACE_TEST_KAFKA=host:port. Where that is not set, each process of the tests
(each worker of pytest-xdist) has its own broker, started for the first test that asks for it and killed after the last one. Without
a broker the tests fail.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tailrace.log.kafka import KafkaLog
from tests.kafka.broker.artefacts import NoBrokerError
from tests.kafka.broker.cluster import Cluster
from tests.kafka.broker.node import known_nodes
from tests.kafka.processes import Members
from tests.kafka.shop import Shop, serving
from tests.kafka.visits import Visits

_ANSWER_S = 60.0


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap servers of a broker that all tests share. A test that kills or stops brokers makes a ``Cluster`` itself."""
    given = os.environ.get("TAILRACE_TEST_KAFKA")
    if given:
        if not known_nodes(given):
            raise NoBrokerError(f"TAILRACE_TEST_KAFKA is {given!r}, and no broker answers there.")
        yield given
        return
    with Cluster(tmp_path_factory.mktemp("kafka")) as cluster:
        yield cluster.bootstrap


@pytest.fixture
def kafka_url(kafka: str) -> Iterator[str]:
    """The URL of a log on the broker that has no topics yet. Its topics are deleted after the test."""
    prefix = f"{secrets.token_hex(6)}."
    yield f"kafka://{kafka}/{prefix}"
    admin = AdminClient({"bootstrap.servers": kafka})
    if names := [one for one in admin.list_topics(timeout=_ANSWER_S).topics if one.startswith(prefix)]:
        for deleted in admin.delete_topics(names).values():
            deleted.exception(_ANSWER_S)  # the test itself may just have deleted one


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    """The log that has no topics yet."""
    with closing(KafkaLog(kafka_url)) as made:
        yield made


@pytest.fixture
def shop(kafka_url: str) -> Iterator[Shop]:
    """The app ``shop`` on this log, with a worker in this process."""
    with serving(kafka_url) as made:
        yield made


@pytest.fixture
def visits(kafka_url: str) -> Iterator[Visits]:
    """What the app that counts visits gets on this log."""
    made = Visits(kafka_url)
    with closing(made.log):
        yield made


@pytest.fixture
def members(kafka_url: str, tmp_path: Path) -> Iterator[Members]:
    """Processes on this log, each with a state folder in ``tmp_path``."""
    with closing(Members(kafka_url, tmp_path)) as made:
        yield made


@pytest.fixture(autouse=True)
def _as_before(quiet_logs: None) -> None:
    """Commands run in this process."""
