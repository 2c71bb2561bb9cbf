"""The log on Kafka is a log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.log import Log
from tailrace.log.kafka import KafkaLog
from tests.log.contract import LogContract


class TestContract(LogContract):
    @pytest.fixture
    def log(self, kafka_url) -> Iterator[Log]:
        log = KafkaLog(kafka_url)
        yield log
        log.close()
