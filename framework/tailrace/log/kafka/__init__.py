"""The log on Apache Kafka. Needs the extra ``kafka``."""

from tailrace.log.kafka.connection import SCHEME
from tailrace.log.kafka.log import KafkaLog
from tailrace.log.kafka.reader import KafkaReader

__all__ = ["SCHEME", "KafkaLog", "KafkaReader"]
