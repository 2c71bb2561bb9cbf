"""What is particular to a log on Kafka: times, deleted records, backlogs, prefixes, moments, and brokers that do not answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.core.errors import (
    EventValueError,
    ForeignLogError,
    LogUnavailableError,
    OffsetGoneError,
    RecordTooLargeError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog, KafkaOptions
from tailrace.log.kafka.reader import KafkaReader
from tests.kafka.broker.cluster import Cluster
from tests.log.contract import A, read_all, visible

B = TopicPartition("b", 0)


@pytest.fixture
def log(kafka_url: str) -> Iterator[KafkaLog]:
    log = KafkaLog(kafka_url)
    log.create_topic("a", TopicSettings(1))
    log.create_topic("b", TopicSettings(1))
    yield log
    log.close()


def write(log: KafkaLog, topic: str, *values: bytes, at: int = 7) -> None:
    log.append_all([Output(topic, b"k", value, at) for value in values])


def test_every_time_comes_back_and_the_one_that_kafka_cannot_hold_is_refused(log: KafkaLog) -> None:
    times = [0, 1, -1_000, 253_402_300_799_000, 0]
    log.append_all([Output("a", b"k", b"v", at) for at in times])
    assert [one.timestamp_ms for one in read_all(log, log.reader({A: 0}), A)] == times
    with pytest.raises(EventValueError, match="1 ms before 1970"):
        log.append_all([Output("a", b"k", b"v", -1)])
    assert log.offset_at("a", 0, 0) == 0


def test_a_position_whose_records_were_deleted_is_an_error_that_says_where_the_rest_begins(
    log: KafkaLog, kafka: str
) -> None:
    write(log, "a", *[b"%d" % number for number in range(10)])
    admin, name = AdminClient({"bootstrap.servers": kafka}), full(log, "a")
    admin.delete_records([At(name, 0, 4)])[At(name, 0)].result()
    assert log.start_offset("a", 0) == 4
    with pytest.raises(OffsetGoneError, match="the log holds offsets 4 to ") as raised:
        read_all(log, log.reader({A: 1}), A)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("a", 0, 1)
    assert [one.value for one in read_all(log, log.reader({A: 4}), A)] == [
        b"%d" % number for number in range(4, 10)
    ]


def full(log: KafkaLog, topic: str) -> str:
    return str(log).rpartition("/")[2] + topic


def test_the_backlog_of_one_partition_starves_no_other_and_is_not_held_in_memory(log: KafkaLog) -> None:
    count = 60_000
    log.append_all([Output("a", b"k", b"x" * 100, 7)] * count)
    write(log, "b", b"b")
    reader = log.reader({A: 0, B: 0}, live=True)
    deadline = time.monotonic() + 30
    while not reader.fetch("b", 0, 10).records:
        assert time.monotonic() < deadline
        reader.wait(0.1)
    for _ in range(50):
        reader.wait(0.01)
        reader.published("b", 0)
    assert buffered(reader) <= 30_000
    assert len(read_all(log, reader, A, 7_000)) == count


def buffered(reader: KafkaReader) -> int:
    return max(len(part.buffer) for part in reader._parts.values())


def test_a_seek_back_reads_the_same_records_again_and_none_twice(log: KafkaLog) -> None:
    write(log, "a", *[b"%d" % number for number in range(2_000)])
    reader = log.reader({A: 0})
    everything = read_all(log, reader, A)
    for position in (1_500, 3, 1_999, 0):
        reader.seek("a", 0, position)
        reader.fetch("a", 0, 5)
        reader.seek("a", 0, position)
        assert read_all(log, reader, A) == everything[position:]


def test_a_log_with_a_prefix_sees_its_own_topics_only(log: KafkaLog, kafka: str) -> None:
    other = KafkaLog(f"kafka://{kafka}/other-{full(log, '')}")
    assert set(log.topics()) == {"a", "b"}
    assert set(other.topics()) == set()
    with pytest.raises(UnknownTopicError):
        other.partitions("a")
    other.close()


def test_the_topics_of_watermarks_are_not_listed_and_their_names_are_refused(log: KafkaLog) -> None:
    writer = log.writer("w")
    writer.commit(None, "", {"a": 5, "a#part": 7, "b": None})
    writer.close()
    assert set(log.topics()) == {"a", "b"}
    assert log.publications() == {("a", "w"): 5, ("a#part", "w"): 7, ("b", "w"): None}
    with pytest.raises(UsageError, match="watermarks"):
        log.create_topic("c.watermarks", TopicSettings(1))


def test_a_record_among_the_watermarks_that_is_none_is_an_error(log: KafkaLog) -> None:
    log.writer("w").commit(None, "", {"a": 5})
    writer = log.writer("x")
    writer.append([Output("a.watermarks", b"k", b"no watermark", 7)])
    writer.commit()
    with pytest.raises(ForeignLogError, match="no watermark"):
        log.publications()


def test_the_ends_of_several_topics_are_of_one_moment_or_an_error(kafka_url: str, log: KafkaLog) -> None:
    hasty = KafkaLog(kafka_url, KafkaOptions(patience_s=1))
    write(log, "a", b"1", b"2")
    before = hasty.ends(["a", "b"])
    assert before.offsets == {"a": [log.end_offset("a", 0)], "b": [0]}
    writer = log.writer("w")
    writer.append([Output("b", b"k", b"open", 7)])
    deadline = time.monotonic() + 30
    while not log.end_offset("b", 0):
        assert time.monotonic() < deadline
        writer.append([])
        time.sleep(0.05)
    with pytest.raises(LogUnavailableError, match="no moment"):
        hasty.ends(["a", "b"])
    writer.commit()
    after = KafkaLog(kafka_url).ends(["a", "b"])
    assert after.position > before.position
    assert after.offsets["b"][0] > 0
    hasty.close()


def test_a_record_that_the_topic_does_not_take_is_named_and_the_writer_goes_on(
    log: KafkaLog, kafka: str
) -> None:
    name = full(log, "small")
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(name, 1, config={"max.message.bytes": "2000"})])[name].result()
    writer = log.writer("w")
    with pytest.raises(RecordTooLargeError, match="small"):
        writer.append([Output("small", b"k", os.urandom(5_000), 7)])
        writer.commit()
    writer.abort()
    writer.append([Output("a", b"k", b"kept", 7)])
    writer.commit()
    assert visible(log, A) == [b"kept"]


def test_without_a_broker_every_call_says_so_in_time() -> None:
    log = KafkaLog("kafka://127.0.0.1:1", KafkaOptions(patience_s=0.5))
    for call in (log.topics, lambda: log.end_offset("a", 0), lambda: log.writer("w")):
        with pytest.raises(LogUnavailableError, match="Kafka does not answer"):
            call()
    log.close()


def test_a_commit_that_a_stopped_broker_does_not_answer_is_sent_again_until_it_does(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        log = KafkaLog(f"kafka://{cluster.bootstrap}")
        log.create_topic("a", TopicSettings(1))
        writer = log.writer("w")
        writer.append([Output("a", b"k", b"1", 7)])
        (node,) = cluster.nodes
        node.pause()
        resumed = threading.Timer(12, node.resume)  # longer than one request is waited for
        resumed.start()
        ends = writer.commit({A: 5}, "group")
        resumed.join()
        assert ends == {A: 1}
        assert visible(log, A) == [b"1"]
        assert log.committed_offsets("group", [A]) == {A: 5}
        writer.append([Output("a", b"k", b"2", 7)])
        node.kill()
        cluster.start()
        writer.commit()
        assert visible(log, A) == [b"1", b"2"]
        log.close()
