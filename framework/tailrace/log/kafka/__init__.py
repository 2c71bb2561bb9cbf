"""The log on Apache Kafka. Needs the extra ``kafka``."""

from tailrace.log.kafka.administration import Administration, Member, TopicDetails
from tailrace.log.kafka.connection import SCHEME
from tailrace.log.kafka.log import KafkaLog
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.watermarks import PUBLISHERS, WATERMARKS

__all__ = [
    "PUBLISHERS",
    "SCHEME",
    "WATERMARKS",
    "Administration",
    "KafkaLog",
    "KafkaReader",
    "Member",
    "TopicDetails",
]
