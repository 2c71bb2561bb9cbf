"""The log on Kafka is a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tailrace.log import Log
from tailrace.log.kafka import KafkaLog
from tailrace.log.options import LogOptions
from tests.log.contract import LogContract
from tests.log.tasks_contract import OpenLog, TasksContract


class TestContract(LogContract):
    @pytest.fixture
    def log(self, kafka_url) -> Iterator[Log]:
        log = KafkaLog(kafka_url, LogOptions(hidden_s=1.0))
        yield log
        log.close()


class TestTasks(TasksContract):
    @pytest.fixture
    def open_log(self, kafka_url) -> Iterator[OpenLog]:
        with ExitStack() as closing:

            def opened() -> KafkaLog:
                log = KafkaLog(kafka_url)
                closing.callback(log.close)
                return log

            yield opened
