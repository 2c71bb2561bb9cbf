"""A Kafka broker for the tests of this folder.

Each process of the tests (each worker of pytest-xdist) has its own broker, started for the first test that asks for it and
killed after the last one. TAILRACE_TEST_KAFKA=host:port names one to use instead. Without a broker the tests fail.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.broker.cluster import Cluster
from tests.kafka.broker.errors import NoBrokerError
from tests.kafka.broker.node import known_nodes
from tests.kafka.topics import Topics


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
def topics(kafka: str) -> Iterator[Topics]:
    """Topics of this test alone. They are deleted after it."""
    found = Topics(AdminClient({"bootstrap.servers": kafka}), secrets.token_hex(6))
    yield found
    found.delete()


@pytest.fixture
def kafka_url(kafka: str) -> str:
    """The URL of a log on the broker that has no topics yet."""
    return f"kafka://{kafka}/{secrets.token_hex(6)}."
