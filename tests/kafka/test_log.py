"""What is particular to a log on Kafka: times, deleted records, backlogs and buffers, prefixes, open transactions, and clients that are lost."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as At

from tailrace.core import errors
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka import cluster as cluster_
from tailrace.log.kafka import log as log_
from tailrace.log.kafka import reader as reader_
from tailrace.log.kafka import writer as writer_
from tailrace.log.kafka.connection import Connection
from tailrace.log.options import LogOptions
from tests.cli.commands import run
from tests.kafka import apps
from tests.kafka.outside import Outside, Stuck, await_written
from tests.log.contract import A, read_all, visible
from tests.runtime.processes import wait_until

B = TopicPartition("b", 0)


@pytest.fixture
def log(log: KafkaLog) -> KafkaLog:
    for name in ("a", "b"):
        log.create_topic(name, TopicSettings(1))
    return log


def write(log: KafkaLog, topic: str, *values: bytes, at: int = 7) -> None:
    log.append_all([Output(topic, b"k", value, at) for value in values])


def test_every_time_comes_back_and_the_one_that_kafka_cannot_hold_is_refused(log: KafkaLog) -> None:
    times = [0, 1, -1_000, 253_402_300_799_000, 0]
    log.append_all([Output("a", b"k", b"v", at) for at in times])
    assert [one.timestamp_ms for one in read_all(log, log.reader({A: 0}), A)] == times
    with pytest.raises(errors.EventValueError, match="1 ms before 1970"):
        log.append_all([Output("a", b"k", b"v", -1)])
    assert log.offset_at("a", 0, 0) == 0


def test_records_come_in_order_through_a_queue_that_is_always_full(kafka_url: str) -> None:
    settings = {"producer.queue.buffering.max.messages": "50"}
    log = KafkaLog(kafka_url, LogOptions(settings=settings))
    log.create_topic("a", TopicSettings(1))
    headers = ((), (("one", b"1"),), (("one", b"1"), ("none", b""), ("one", b"")))
    written = [Output("a", b"%d" % (n // 3), b"%d" % n, n % 7, headers[n % 3]) for n in range(1_000)]
    assert log.append_all(written) == {A: len(written)}
    found = read_all(log, log.reader({A: 0}), A)
    assert [tuple(one) for one in found] == [
        (at, one.timestamp_ms, one.key, one.value, one.headers) for at, one in enumerate(written)
    ]
    log.close()


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
    other = KafkaLog(f"kafka://{kafka}/other-{Outside(log.place).prefix}")
    assert set(log.topics()) == {"a", "b"}
    assert set(other.topics()) == set()
    with pytest.raises(errors.UnknownTopicError):
        other.partitions("a")
    other.close()


def test_an_answer_without_an_offset_is_asked_for_again(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may give one, and no error: -1001 was taken for the start of a changelog."""
    write(log, "a", b"1")
    asked, unknown = log._cluster._ask, [-1001, -1001]

    class Unknown:
        def result(self, _timeout_s: float) -> At:
            return At("a", 0, unknown.pop())

    def ask(specs: Mapping[TopicPartition, Any], *, committed: bool = False) -> dict[TopicPartition, Any]:
        return {A: Unknown()} if unknown else asked(specs, committed=committed)

    monkeypatch.setattr(log._cluster, "_ask", ask)
    assert log.start_offset("a", 0) == 0
    assert not unknown
    assert log.end_offset("a", 0) > 0


def test_a_partition_is_not_idle_while_an_open_transaction_hides_records(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once."""
    monkeypatch.setattr(reader_, "_HIDDEN_S", 0.5)
    write(log, "a", b"1")
    reader = log.reader({A: 0}, live=True)
    writer = log.writer("w")
    writer.append([Output("a", b"k", b"2", 7)])
    await_written(log, "a", log.end_offset("a", 0), writer)
    seen: list[bytes | None] = []
    until_s = time.monotonic() + 1.5  # an answer about the end counts for a second
    fetched = reader.fetch("a", 0, 10)
    seen += [one.value for one in fetched.records]
    while time.monotonic() < until_s:
        fetched = reader.fetch("a", 0, 10)
        seen += [one.value for one in fetched.records]
        assert not fetched.idle
        reader.wait(0.02)
    assert seen == [b"1"]
    named = [one.message for one in caplog.records if "has been open" in one.message]
    assert len(named) == 1
    assert f"'a' partition 0 from offset {fetched.next_offset} on" in named[0]
    writer.commit()
    wait_until(lambda: reader.fetch("a", 0, 10).records, "the hidden record is read")
    wait_until(lambda: reader.fetch("a", 0, 10).idle, "the partition is idle")
    reader.close()


def test_the_status_names_a_transaction_that_hides_all_that_a_task_has_to_read(
    log: KafkaLog, kafka_url: str
) -> None:
    prepare_topics(log, apps.app.plan(), create_declared=True)
    writer = log.writer("w")
    writer.append([Output("seen", b"k", b'{"key":"k","at_ms":7}', 7)], 0)
    await_written(log, "seen")
    said = " ".join(run("status", "tests.kafka.apps:app", "--log", kafka_url).out.split())
    assert "a transaction that is open hides all from offset 0 of partition 0 on" in said, said
    writer.close()


def test_a_header_without_a_value_arrives_with_an_empty_one(
    log: KafkaLog, kafka: str, kafka_url: str
) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    topic = f"{kafka_url.rpartition('/')[2]}a"
    producer.produce(topic, b"v", b"k", 0, headers=[("none", None), ("empty", b""), ("one", b"1")])
    assert producer.flush(30) == 0
    reader = log.reader({A: 0})
    (record,) = read_all(log, reader, A)
    reader.close()
    assert record.headers == (("none", b""), ("empty", b""), ("one", b"1"))


@pytest.mark.parametrize("live", [True, False])
def test_a_reader_that_begins_behind_the_start_of_an_open_transaction_sees_what_follows(
    kafka_url: str, *, live: bool
) -> None:
    log = KafkaLog(kafka_url, LogOptions(hidden_s=0.1))
    log.create_topic("a", TopicSettings(1))
    writer = log.writer("w")
    writer.append([Output("a", b"k", b"open", 7)])
    await_written(log, "a")
    write(log, "a", b"1")
    reader = log.reader({A: 1}, live=live)
    fetched = reader.fetch("a", 0, 10)
    assert (fetched.records, fetched.next_offset, fetched.idle) == ([], 1, False)
    writer.abort()
    wait_until(lambda: [one.value for one in reader.fetch("a", 0, 10).records] == [b"1"], "it is read")
    reader.close()
    writer.close()
    log.close()


def test_the_ends_of_topics_wait_for_an_open_transaction_but_not_for_ever(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, "a", b"1", b"2")
    before = log.ends(["a", "b"])
    assert before.offsets["a"][0] >= 2
    assert before.offsets["b"] == [0]
    writer = log.writer("w")
    writer.append([Output("b", b"k", b"open", 7)])
    await_written(log, "b", writer=writer)
    with monkeypatch.context() as hasty:
        hasty.setattr(log_, "_HANGS_S", 0.5)
        with pytest.raises(errors.LogUnavailableError, match="open for more than"):
            log.ends(["a", "b"])
    threading.Timer(1, writer.commit).start()
    after = log.ends(["a", "b"])
    assert visible(log, B) == [b"open"]
    assert after.position > before.position
    assert after.offsets["b"][0] > 0


def test_a_record_that_the_topic_does_not_take_is_named_and_the_writer_goes_on(log: KafkaLog) -> None:
    Outside(log.place).create("small", max_message_bytes="2000")
    writer = log.writer("w")
    with pytest.raises(errors.RecordTooLargeError, match="small"):
        writer.append([Output("small", b"k", os.urandom(5_000), 7)])
        writer.commit()
    writer.abort()
    writer.append([Output("a", b"k", b"kept", 7)])
    writer.commit()
    assert visible(log, A) == [b"kept"]


def test_the_largest_event_fits_into_a_topic_with_the_settings_of_the_brokers(log: KafkaLog) -> None:
    Outside(log.place).create("plain")
    largest = os.urandom(LogOptions().max_record_bytes - 1)
    headers = (("tailrace-origin", b"o" * 200), ("traceparent", b"t" * 100))
    with closing(log.writer("w")) as writer:
        writer.append([Output("plain", b"k", largest, 7, headers)])
        writer.commit()
    assert visible(log, TopicPartition("plain", 0)) == [largest]


@pytest.mark.parametrize(
    ("policy", "output", "told"),
    [
        ("delete", (b"k", b"far", int(time.time() * 1_000) + 7_200_000), "message.timestamp.after.max.ms"),
        ("compact", (None, b"keyless", 7), "cleanup.policy"),
    ],
)
def test_a_record_that_the_topic_never_takes_is_no_outage_and_the_writer_goes_on(
    log: KafkaLog, policy: str, output: tuple[bytes | None, bytes, int], told: str
) -> None:
    """With the settings that brokers give a topic, it takes no record of more than an hour in the future."""
    Outside(log.place).create("strict", cleanup_policy=policy)
    writer = log.writer("w")
    with pytest.raises(errors.TopicMismatchError, match=f"strict.*{told}"):
        writer.append([Output("strict", b"k", b"other", 7), Output("strict", *output)], 0)
        writer.commit()
    writer.abort()
    writer.append([Output("a", b"k", b"kept", 7)])
    writer.commit()
    assert visible(log, A) == [b"kept"]


def test_without_a_broker_every_call_says_so_in_time() -> None:
    log = KafkaLog("kafka://127.0.0.1:1", LogOptions(patience_s=0.5))
    at = r"no broker was reached at 127\.0\.0\.1:1 within 0\.5 s.*--log"
    for call, told in ((log.topics, at), (lambda: log.end_offset("a", 0), at), (lambda: log.writer("w"), "")):
        with pytest.raises(errors.LogUnavailableError, match="Kafka does not answer") as raised:
            call()
        assert re.search(told, str(raised.value))
    log.close()


def test_a_library_that_never_returns_from_adding_offsets_costs_a_producer_and_nothing_else(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_, "_STUCK_S", 0.2)
    monkeypatch.setattr(writer_, "MOST_REQUEST_S", 0.2)
    writer = log.writer("w")
    producer: Any = writer._producer
    producer._producer = stuck = Stuck(producer._producer, "send_offsets_to_transaction")
    writer.append([Output("a", b"k", b"lost", 7)])
    with pytest.raises(errors.LogUnavailableError, match="does not come back"):
        writer.commit({A: 5}, "group")
    with pytest.raises(errors.LogUnavailableError, match="does not come back"):
        writer.append([Output("a", b"k", b"lost", 7)])
    writer.close()
    monkeypatch.undo()
    another = log.writer("w")
    another.append([Output("a", b"k", b"kept", 7)])
    another.commit({A: 6}, "group")
    stuck.released.set()
    assert visible(log, A) == [b"kept"]
    assert log.committed_offsets("group", [A]) == {A: 6}


def test_a_question_that_is_never_answered_is_asked_again_by_another_client(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, "a", b"1")
    asked, clients = log._cluster._ask, list[object]()

    def ask(specs: Mapping[TopicPartition, Any], *, committed: bool = False) -> dict[TopicPartition, Any]:
        clients.append(log._cluster.client())
        return {A: Future[Any]()} if len(clients) == 1 else asked(specs, committed=committed)

    monkeypatch.setattr(cluster_, "_STUCK_S", -4.0)  # beside a time-out of five seconds
    monkeypatch.setattr(log._cluster, "_ask", ask)
    assert log.start_offset("a", 0) == 0
    assert len({*map(id, clients)}) == len(clients) == 2


# --- buffers


def test_the_backlog_of_one_partition_starves_no_other_and_is_not_held_in_memory(log: KafkaLog) -> None:
    count = 60_000
    log.append_all([Output("a", b"k", b"x" * 100, 7)] * count)
    write(log, "b", b"b")
    with closing(log.reader({A: 0, B: 0}, live=True)) as reader:

        def other_is_read() -> bool:
            reader.wait(0.1)
            return bool(reader.fetch("b", 0, 10).records)

        wait_until(other_is_read, "the other partition is read", 60)
        for _ in range(50):
            reader.wait(0.01)
            reader.published("b", 0)
        assert max(part.buffer.count for part in reader._parts.values()) <= 30_000
        assert len(read_all(log, reader, A, 7_000)) == count


def test_the_memory_for_unread_records_does_not_grow_with_the_number_of_partitions(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.log.kafka.reader._FULL_BYTES", 16 << 20)
    log.create_topic("many", TopicSettings(8))
    places = [TopicPartition("many", number) for number in range(8)]
    with closing(log.writer("feed")) as writer:
        for place in places:
            writer.append([Output("many", b"k", b"x" * 1_000, 7)] * 8_000, partition=place.partition)
        writer.commit()
    with closing(log.reader(dict.fromkeys(places, 0), live=True)) as reader:
        for _ in range(100):
            reader.wait(0.01)
            reader.published("many", 0)
        held = sum(part.buffer.bytes for part in reader._parts.values())
        # Of 76 MiB: the shares of 16 MiB, the queue of librdkafka, which is as large, and the answers to a fetch.
        assert 1 << 20 < held < 60 << 20
        assert all(len(read_all(log, reader, place, 700)) == 8_000 for place in places)


def test_a_seek_in_the_middle_of_a_backlog_is_read_from(log: KafkaLog) -> None:
    log.append_all(
        [Output("a", b"k", b"v", 1)] * 30_000
    )  # more than a buffer takes, so the partition is paused
    with closing(log.reader({A: 0}, live=True)) as reader:
        for start in (5, 500, 0):
            wait_until(lambda: reader.fetch("a", 0, 1).records, "there is a backlog", 60)
            reader.seek("a", 0, start)
            assert reader.fetch("a", 0, 1).next_offset == start + 1


def test_a_consumer_that_finds_no_broker_any_more_is_replaced_and_reading_continues(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka#5301: it forgets the addresses of all brokers, as soon as one says that there are none."""
    monkeypatch.setattr(reader_, "_SILENT_S", 0.5)
    written = [b"%d" % number for number in range(10)]
    write(log, "a", *written)
    reader: Any = log.reader({A: 0, B: 0}, live=True)
    found: list[bytes | None] = []

    def read(count: int) -> bool:
        found.extend(one.value for one in reader.fetch(*A, 3).records)
        return len(found) >= count

    wait_until(lambda: read(4), "some are read")
    lost, reader._consumer = reader._consumer, Connection("kafka://127.0.0.1:1").consumer("lost")
    reader._consumer.incremental_assign(
        [reader._cluster.at(part.place, part.read_to) for part in reader._parts.values()]
    )
    lost.close()
    write(log, "a", *written)
    wait_until(lambda: read(20), "all are read")
    assert found == written * 2
    wait_until(lambda: reader.fetch(*A, 1).idle, "the partition is idle")
    reader.close()


# --- topics


def test_topics_are_listed_by_name_and_their_settings_are_those_that_the_brokers_have(log: KafkaLog) -> None:
    log.create_topic("c", TopicSettings(2, compacted=True))
    topics = log.topics()
    with closing(KafkaLog(log.place)) as other:
        other.admin.delete_topics(["a"])
        assert topics["c"] == TopicSettings(2, compacted=True)
        assert "a" in topics
        with pytest.raises(errors.UnknownTopicError, match="'a'"):
            topics.get("a")
        other.create_topic("a", TopicSettings(2))
    assert log.partitions("a") == 1
    wait_until(lambda: "a" in log.topics() and log.partitions("a") == 2, "it is asked for again")
