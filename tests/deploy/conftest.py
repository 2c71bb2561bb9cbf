"""The broker of the tests with Kafka."""

from __future__ import annotations

from tests.kafka.conftest import kafka, kafka_url

__all__ = ["kafka", "kafka_url"]
