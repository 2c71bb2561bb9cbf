"""A topic that is deleted and created again, while a service runs or between two runs, is named: its offsets mean other records."""

from __future__ import annotations

import pytest

from tailrace.core.errors import CorruptStateError, TopicReplacedError, UnknownTopicError
from tailrace.core.records import Output
from tailrace.log import TopicPartition
from tailrace.log.kafka import KafkaLog, KafkaReader
from tests.kafka.bad_input.shop import Shop, serving
from tests.soak.processes import wait_until


@pytest.mark.parametrize("topic", ["orders", "shop.tape", "totals"])
def test_a_service_commits_nothing_once_a_topic_was_replaced(kafka_url: str, topic: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        before = committed(shop)
        shop.replace(topic)
        shop.order(60)  # more than the position in the old topic
        with pytest.raises(TopicReplacedError, match="deleted and created again") as raised:
            shop.work()
        assert raised.value.topic == topic
        assert {name: at for name, at in committed(shop).items() if name in before} == {
            name: at for name, at in before.items() if name in committed(shop)
        }


@pytest.mark.parametrize(
    ("topic", "keep_state"), [("orders", True), ("shop.inbox", False), ("shop.tape", True)]
)
def test_a_service_does_not_start_on_a_topic_that_was_replaced(
    kafka_url: str, topic: str, keep_state: bool
) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        shop.replace(topic)
        with serving(kafka_url) as later:
            later.stores = shop.stores if keep_state else {}
            later.order(60)
            with pytest.raises(TopicReplacedError, match="deleted and created again since") as raised:
                later.start()
            assert raised.value.topic == topic


def test_a_changelog_that_was_replaced_is_told_by_the_tape(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.stop()
        forget_offsets(shop)
        shop.replace("shop.changelog")
        with serving(kafka_url) as later, pytest.raises(CorruptStateError, match="the changelog was deleted"):
            later.start()


def test_a_topic_that_was_only_deleted_is_named(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        shop.delete("orders")
        with pytest.raises(UnknownTopicError, match="orders"):
            shop.work(lambda: False)


def test_a_service_starts_again_on_the_topics_that_it_knows(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        shop.order(20)
        shop.work()
        for keep_state in (True, False):
            shop.restart(keep_state=keep_state)
            shop.order(20)
            shop.work()
        assert shop.counts() == {f"k{n}": 12 for n in range(5)}


def committed(shop: Shop) -> dict[str, int]:
    """The offsets of the group. Kafka deletes those of a topic with the topic."""
    places = [TopicPartition(name, number) for name in ("orders", "shop.inbox") for number in range(2)]
    found = shop.log.committed_offsets("shop", places)
    return {f"{topic} {number}": at for (topic, number), at in found.items()}


def forget_offsets(shop: Shop) -> None:
    """As if they had expired."""
    for done in shop.admin.delete_consumer_groups([f"{shop.prefix}shop"]).values():
        done.result()


def test_watermarks_that_were_published_for_a_topic_that_was_replaced_do_not_count(kafka_url: str) -> None:
    with serving(kafka_url) as shop:
        publish(shop, "old-0", 900)
        shop.log.close()
        shop.replace("totals")
        shop.log = KafkaLog(kafka_url)
        assert ("totals", "old-0") not in shop.log.publications()
        assert shop.log.published("totals") == []
        reader = shop.log.reader({TopicPartition("totals", 0): 0}, live=True)
        try:
            assert found(reader) == {}
            shop.append("totals", b"k0", b"{}", 0)
            publish(shop, "new-0", 5)
            reader.fetch("totals", 0, 10)
            wait_until(lambda: reader.fetch("totals", 0, 10).idle, "all is read")
            assert found(reader) == {"new-0": 5}
        finally:
            reader.close()
        assert shop.log.publications()["totals", "new-0"] == 5
        assert [one.name for one in shop.log.published("totals")] == ["new-0"]


def publish(shop: Shop, publisher: str, watermark_ms: int) -> None:
    """A record in the topic, and a watermark."""
    writer = shop.log.writer(publisher)
    writer.append([Output("totals", b"k0", b"{}", 1)], 0)
    writer.commit(None, "", {"totals": watermark_ms})
    writer.close()


def found(reader: KafkaReader) -> dict[str, int | None]:
    """The publications that hold."""
    return {one.publisher: one.watermark_ms for one in reader.published("totals", 0)}
