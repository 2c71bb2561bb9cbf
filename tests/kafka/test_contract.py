"""The log on Kafka is a log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.log import Log
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tests.log.contract import LogContract


class TestContract(LogContract):
    @pytest.fixture
    def log(self, kafka_url) -> Iterator[Log]:
        log = KafkaLog(kafka_url, LogOptions(hidden_s=1.0))
        yield log
        log.close()
