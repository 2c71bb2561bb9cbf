"""What is particular to a log on Kafka: times, deleted records, backlogs, prefixes, moments, and brokers that do not answer."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.core.errors import (
    EventValueError,
    LogUnavailableError,
    OffsetGoneError,
    RecordTooLargeError,
    TailraceError,
    UnknownTopicError,
)
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog
from tailrace.log.kafka import cluster as cluster_
from tailrace.log.kafka import log as log_
from tailrace.log.kafka import writer as writer_
from tailrace.log.options import LogOptions
from tests.kafka.broker.cluster import Cluster
from tests.log.contract import A, read_all, visible
from tests.soak.processes import wait_until

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


def full(log: KafkaLog, topic: str) -> str:
    return log.place.rpartition("/")[2] + topic


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


def test_a_partition_is_not_idle_while_an_open_transaction_hides_records(log: KafkaLog) -> None:
    write(log, "a", b"1")
    reader = log.reader({A: 0}, live=True)
    writer = log.writer("w")
    writer.append([Output("a", b"k", b"2", 7)])
    before = log.end_offset("a", 0)

    def is_at_the_broker() -> bool:
        writer.append([])
        return log.end_offset("a", 0) > before

    wait_until(is_at_the_broker, "the record is at the broker")
    seen: list[bytes | None] = []
    until_s = time.monotonic() + 1.5  # an answer about the end counts for a second
    while time.monotonic() < until_s:
        fetched = reader.fetch("a", 0, 10)
        seen += [one.value for one in fetched.records]
        assert not fetched.idle
        reader.wait(0.02)
    assert seen == [b"1"]
    writer.commit()
    wait_until(lambda: reader.fetch("a", 0, 10).records, "the hidden record is read")
    wait_until(lambda: reader.fetch("a", 0, 10).idle, "the partition is idle")
    reader.close()


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
    wait_until(lambda: log.end_offset("a", 0) == 1, "the record is at the broker")
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

    def is_open() -> bool:
        writer.append([])
        return log.end_offset("b", 0) > 0

    wait_until(is_open, "the record is at the broker", 20)
    with monkeypatch.context() as hasty:
        hasty.setattr(log_, "_HANGS_S", 0.5)
        with pytest.raises(LogUnavailableError, match="open for more than"):
            log.ends(["a", "b"])
    threading.Timer(1, writer.commit).start()
    after = log.ends(["a", "b"])
    assert visible(log, B) == [b"open"]
    assert after.position > before.position
    assert after.offsets["b"][0] > 0


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
    log = KafkaLog("kafka://127.0.0.1:1", LogOptions(patience_s=0.5))
    for call in (log.topics, lambda: log.end_offset("a", 0), lambda: log.writer("w")):
        with pytest.raises(LogUnavailableError, match="Kafka does not answer"):
            call()
    log.close()


def test_a_broker_that_was_never_reached_is_named_by_its_address() -> None:
    log = KafkaLog("kafka://127.0.0.1:1", LogOptions(patience_s=0.5))
    with pytest.raises(
        LogUnavailableError, match=r"no broker was reached at 127\.0\.0\.1:1 within 0\.5 s.*--log"
    ):
        log.topics()
    log.close()


def test_a_writer_closes_soon_whatever_has_become_of_it_and_its_brokers(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        log = KafkaLog(f"kafka://{cluster.bootstrap}")
        log.create_topic("a", TopicSettings(1))
        fenced, cut_off = log.writer("fenced"), log.writer("cut off")
        for writer in (fenced, cut_off):
            writer.append([Output("a", b"k", b"committed", 7)])
            writer.commit()
        log.writer("fenced").close()
        fenced.append([Output("a", b"k", b"lost", 7)])
        fenced.close()
        cluster.nodes[0].pause()
        cut_off.append([Output("a", b"k", b"lost", 7)])
        begun_s = time.monotonic()
        cut_off.close()
        cut_off.close()
        assert time.monotonic() - begun_s < 20
        cluster.nodes[0].resume()
        assert visible(log, A) == [b"committed", b"committed"]
        log.close()


def test_commits_continue_after_a_broker_was_killed_in_the_middle_of_them(tmp_path: Path) -> None:
    """librdkafka could wait for its coordinator without an end, in the call that adds offsets to the transaction."""
    with Cluster(tmp_path) as cluster:
        log = KafkaLog(f"kafka://{cluster.bootstrap}")
        log.create_topic("a", TopicSettings(1))
        stop = threading.Event()
        begun_s = dict.fromkeys(range(6), 0.0)  # of the commit that each writer is about to do

        def commit_all_the_time(number: int) -> None:
            writer = None
            while not stop.is_set():
                begun_s[number] = time.monotonic()
                try:
                    writer = writer or log.writer(f"w{number}")
                    writer.append([Output("a", b"k", b"v", 7)])
                    writer.commit({A: 1}, "group")
                except TailraceError:
                    writer = None

        threads = [threading.Thread(target=commit_all_the_time, args=[one], daemon=True) for one in begun_s]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: log.end_offset("a", 0) > 30, "the writers are at work")
            cluster.nodes[0].kill()
            cluster.start()
            back_s = time.monotonic()
            wait_until(lambda: min(begun_s.values()) > back_s, "all writers have committed", 45)
        finally:
            stop.set()
        for thread in threads:
            thread.join(60)
        log.close()


def test_a_reader_keeps_no_processor_busy_while_the_broker_is_away(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        log = KafkaLog(f"kafka://{cluster.bootstrap}")
        log.create_topic("a", TopicSettings(1))
        reader = log.reader({A: 0}, live=True)
        wait_until(lambda: reader.fetch(*A, 10).idle, "the reader knows that there is nothing")
        cluster.nodes[0].kill()

        def is_calm() -> bool:
            # A question that waits for the broker wakes two threads in turn, some ten thousand times in a second.
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            until_s = time.monotonic() + 1
            while time.monotonic() < until_s:
                reader.fetch(*A, 10)
                time.sleep(0.02)
            return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 2_000

        wait_until(is_calm, "the reader waits and does nothing")
        cluster.start()
        wait_until(lambda: reader.fetch(*A, 10).idle, "the reader knows it again")
        reader.close()
        log.close()


def test_a_library_that_never_returns_from_adding_offsets_costs_a_producer_and_nothing_else(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_, "_STUCK_S", 0.2)
    monkeypatch.setattr(writer_, "MOST_REQUEST_S", 0.2)
    released = threading.Event()

    class Stuck:
        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def __len__(self) -> int:
            return len(self._producer)

        def send_offsets_to_transaction(self, *_given: Any) -> None:
            released.wait()

    writer = log.writer("w")
    producer: Any = writer._producer
    producer._producer = Stuck(producer._producer)
    writer.append([Output("a", b"k", b"lost", 7)])
    with pytest.raises(LogUnavailableError, match="does not come back"):
        writer.commit({A: 5}, "group")
    with pytest.raises(LogUnavailableError, match="does not come back"):
        writer.append([Output("a", b"k", b"lost", 7)])
    writer.close()
    monkeypatch.undo()
    another = log.writer("w")
    another.append([Output("a", b"k", b"kept", 7)])
    another.commit({A: 6}, "group")
    released.set()
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
