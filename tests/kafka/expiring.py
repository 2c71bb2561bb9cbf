"""Notes of a group that expire."""

from __future__ import annotations

from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog
from tests.history.tills import PARTITIONS


def expire(admin: AdminClient, log: KafkaLog, app: str) -> None:
    """Let the groups of an app lose their offsets, as after a week without a process."""
    prefix = log.place.rpartition("/")[2]
    places = [TopicPartition(name, number) for name in log.topics() for number in range(PARTITIONS)]
    for group in (app, f"{app}#begun"):
        for done in admin.delete_consumer_groups([f"{prefix}{group}"]).values():
            with suppress(KafkaException):  # it has no offsets
                done.result()
        assert not log.committed_offsets(group, places)
