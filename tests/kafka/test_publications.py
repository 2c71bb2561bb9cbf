"""What is published for topics on Kafka, as a log and its readers see it.

A published watermark is valid for one topic only. If that topic, or the topic with its publications, was deleted and created again, readers
must not wait without end, and must not advance past a writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from confluent_kafka import Producer

from tailrace.core.errors import OtherHistoryError, UnknownAppError, UsageError
from tailrace.core.records import Output
from tailrace.history.retirement import retire
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.watermarks import encode
from tailrace.log.options import LogOptions
from tests.kafka.outside import Outside
from tests.log.contract import A
from tests.runtime.processes import wait_until


@pytest.fixture
def log(log: KafkaLog) -> KafkaLog:
    for name in ("a", "b"):
        log.create_topic(name, TopicSettings(1))
    return log


def test_the_topics_of_watermarks_are_not_listed_and_their_names_are_refused(log: KafkaLog) -> None:
    writer = log.writer("w")
    writer.commit(None, "", {"a": 5, "a#part": 7, "b": None})
    writer.close()
    assert set(log.topics()) == {"a", "b"}
    assert log.publications() == {("a", "w"): 5, ("a#part", "w"): 7, ("b", "w"): None}
    for name in ("c.watermarks", "c.publishers"):
        with pytest.raises(UsageError, match="watermarks"):
            log.create_topic(name, TopicSettings(1))


def test_publications_are_read_up_to_a_transaction_that_stays_open(kafka: str, kafka_url: str) -> None:
    with closing(KafkaLog(kafka_url, LogOptions(hidden_s=600.0, patience_s=30.0))) as log:
        log.create_topic("a", TopicSettings(1))
        log.writer("w").commit(None, "", {"a": 5})
        producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{kafka_url}-open"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for feed in ("a.watermarks", "a.publishers"):
            producer.produce(f"{kafka_url.rpartition('/')[2]}{feed}", b"open", b"k", 0)
        assert producer.flush(30) == 0
        assert log.publications() == {("a", "w"): 5}
        (one,) = log.reader({A: 0}).published("a", 0)
        assert (one.publisher, one.watermark_ms) == ("w", 5)
        producer.abort_transaction(30)


def test_publications_whose_markers_are_on_their_way_are_waited_for(
    log: KafkaLog, kafka: str, kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a commit that has just returned: the brokers write its markers afterwards."""
    log.writer("w").commit(None, "", {"a": 5})
    last = log._followed.last({"a.publishers": None}, 30)["a.publishers"].publications[0]
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{kafka_url}-on-its-way"})
    producer.init_transactions(30)
    producer.begin_transaction()
    key, value = encode(last._replace(watermark_ms=6))
    producer.produce(f"{kafka_url.rpartition('/')[2]}a.publishers", value, key, 0)
    assert producer.flush(30) == 0
    assert log.publications() == {("a", "w"): 5}
    stable_ends, asked = log._cluster.stable_ends, 0

    def answer(places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The markers come when it has been asked for the first time."""
        nonlocal asked
        found = stable_ends(places)
        asked += 1
        if asked == 1:
            producer.commit_transaction(30)
            wait_until(lambda: stable_ends(places) != found, "the markers are there")
        return found

    monkeypatch.setattr(log._cluster, "stable_ends", answer)
    assert log.publications() == {("a", "w"): 6}
    assert asked == 2


def test_a_log_that_sees_the_topics_of_another_prefix_leaves_out_what_its_apps_have_published(
    log: KafkaLog,
) -> None:
    inner = KafkaLog(f"{log.place}inner.")
    inner.create_topic("a", TopicSettings(1))
    inner.writer("app-0").commit(None, "", {"a": 5})
    assert "inner.a" in log.topics()
    assert inner.publications() == {("a", "app-0"): 5}
    assert log.publications() == {}
    with pytest.raises(UnknownAppError):
        retire(log, "app")
    reader = log.reader({TopicPartition("inner.a", 0): 0})
    (one,) = reader.published("inner.a", 0)
    assert (one.publisher, one.watermark_ms) == ("app-0", 5), "its readers go by it all the same"
    reader.close()
    retire(inner, "app")
    assert inner.publications() == {("a", "app-0"): None}
    inner.close()


def news(reader: KafkaReader) -> Iterator[tuple[str, int | None]]:
    for one in reader.published(*A):
        yield one.publisher, one.watermark_ms


# --- topics that were replaced


def write(url: str, writer: str, marks: list[int | None]) -> None:
    """A writer that appends a record with each watermark, in a process of its own."""
    with closing(KafkaLog(url)) as log:
        made = log.writer(writer)
        for mark in marks:
            made.append([Output("a", b"k", b"v", 0 if mark is None else mark)], 0)
            made.commit(None, "", {"a": mark})


def held(url: str, position: int) -> dict[str, int | None]:
    """What a new reader knows at a position."""
    with closing(KafkaLog(url)) as log, closing(log.reader({A: position})) as reader:
        return dict(news(reader))


def test_publications_of_a_topic_that_was_replaced_do_not_count(log: KafkaLog, kafka_url: str) -> None:
    assert held(kafka_url, 0) == {}
    write(kafka_url, "one-0", [1_000])
    first = log.end_offset(*A)
    write(kafka_url, "two-0", [2_000, 3_000])
    assert held(kafka_url, first) == {"one-0": 1_000}  # it is held only from where a writer has begun
    write(kafka_url, "left-0", [2_000, None])
    Outside(kafka_url).replace("a")
    assert held(kafka_url, 0) == {"left-0": None}  # what holds no reader back does not do so here either
    with closing(KafkaLog(kafka_url)) as other:
        assert other.publications() == {("a", "left-0"): None}
        assert [(one.name, one.watermark_ms, one.ends) for one in other.published("a")] == [
            ("left-0", None, [0])
        ]
    write(kafka_url, "one-0", [5, 6])
    with closing(KafkaLog(kafka_url)) as other:
        end = other.end_offset(*A)
    assert held(kafka_url, end) == {"left-0": None, "one-0": 6}
    assert held(kafka_url, 0) == {"left-0": None}


@pytest.mark.parametrize("topic", ["a.watermarks", "a.publishers"])
def test_publications_that_were_replaced_or_lost_in_part_stop_their_writers_and_readers(
    log: KafkaLog, kafka_url: str, topic: str
) -> None:
    """A reader that is behind would not wait for the writers that were lost."""
    outside, made = Outside(kafka_url), log.writer("one-0")
    made.append([Output("a", b"k", b"v", 10)], 0)
    made.commit(None, "", {"a": 10})
    outside.delete(topic)
    outside.create(topic, cleanup_policy="compact")
    made.append([Output("a", b"k", b"v", 20)], 0)
    with pytest.raises(OtherHistoryError, match="deleted and created again") as raised:
        made.commit(None, "", {"a": 20})
    assert raised.value.topic == topic
    assert "Start the service again" in raised.value.hint
    outside.delete(topic)
    with pytest.raises(OtherHistoryError, match="what was published about 'a'"):
        write(kafka_url, "one-0", [30])
    with pytest.raises(OtherHistoryError, match="delete both topics"):
        held(kafka_url, 0)
    outside.delete(*outside.names() & {"a.watermarks", "a.publishers"})
    write(kafka_url, "one-0", [30])
    with closing(KafkaLog(kafka_url)) as other:
        end = other.end_offset(*A)
    assert held(kafka_url, end) == {"one-0": 30}
