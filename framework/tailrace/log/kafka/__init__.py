"""The log on Apache Kafka. Needs the extra ``kafka``."""

from tailrace.log.kafka.connection import SCHEME
from tailrace.log.kafka.log import KafkaLog, KafkaOptions

__all__ = ["SCHEME", "KafkaLog", "KafkaOptions"]
