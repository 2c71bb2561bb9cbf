"""Topics are listed by name at once; their settings are asked for when they are needed, and are those that the brokers have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.core.errors import UnknownTopicError
from tailrace.log import TopicSettings
from tailrace.log.kafka import KafkaLog
from tests.soak.processes import wait_until


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url)
    log.create_topic("a", TopicSettings(1))
    log.create_topic("b", TopicSettings(2, compacted=True))
    yield log
    log.close()


def test_a_topic_that_was_deleted_since_it_was_listed_is_named_and_does_not_hide_the_others(
    log: KafkaLog,
) -> None:
    topics = log.topics()
    log.admin.delete_topics(["a"])
    assert topics["b"] == TopicSettings(2, compacted=True)
    assert "a" in topics
    with pytest.raises(UnknownTopicError, match="'a'"):
        topics.get("a")


def test_a_topic_that_has_another_number_of_partitions_when_topics_are_listed_is_asked_for_again(
    log: KafkaLog,
) -> None:
    before = log.partitions("a")
    other = KafkaLog(log.place)
    other.admin.delete_topics(["a"])
    other.create_topic("a", TopicSettings(before + 1))
    assert log.partitions("a") == before
    wait_until(lambda: "a" in log.topics() and log.partitions("a") == before + 1, "it is known")
    other.close()
