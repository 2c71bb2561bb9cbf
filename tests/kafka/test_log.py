"""What is particular to a log on Kafka: times, deleted records, backlogs, prefixes, moments, and brokers that do not answer."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.core.errors import (
    EventValueError,
    ForeignLogError,
    LogUnavailableError,
    OffsetGoneError,
    RecordTooLargeError,
    TailraceError,
    UnknownAppError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.records import Output
from tailrace.history.retirement import retire
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.kafka import KafkaLog, KafkaOptions, feeds
from tailrace.log.kafka import cluster as cluster_
from tailrace.log.kafka import log as log_
from tailrace.log.kafka import writer as writer_
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.watermarks import encode
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
    log = KafkaLog(kafka_url, KafkaOptions(settings=settings))
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
    return str(log).rpartition("/")[2] + topic


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


def test_a_broker_that_has_not_heard_of_a_new_topic_does_not_make_its_creation_fail(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = log._cluster.names
    answers: Iterator[dict[str, int] | None] = iter([{}, None, {}])

    def of_any_broker() -> dict[str, int]:
        """The first answer is that the topic is not there, the second comes from one that knows it, the third does not."""
        answer = next(answers, None)
        return names() if answer is None else answer

    monkeypatch.setattr(log._cluster, "names", of_any_broker)
    log.create_topic("new", TopicSettings(2))
    assert log.partitions("new") == 2
    assert not [*answers], "not all were asked for"


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
    log = KafkaLog(kafka_url, KafkaOptions(hidden_s=0.1))
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
    with closing(KafkaLog(kafka_url, KafkaOptions(hidden_s=600.0, patience_s=30.0))) as log:
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
    kafka: str, kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a commit that has just returned: the brokers write its markers afterwards."""
    with closing(KafkaLog(kafka_url)) as log:
        log.create_topic("a", TopicSettings(1))
        log.writer("w").commit(None, "", {"a": 5})
        last = log._followed.last({"a.publishers": None})["a.publishers"].publications[0]
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
    inner = KafkaLog(f"{log}inner.")
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


def test_a_record_among_the_watermarks_that_is_none_is_an_error(log: KafkaLog) -> None:
    log.writer("w").commit(None, "", {"a": 5})
    writer = log.writer("x")
    writer.append([Output("a.watermarks", b"k", b"no watermark", 7)])
    writer.append([Output("a.publishers", b"k", b"no watermark", 7)])
    writer.commit()
    with pytest.raises(ForeignLogError, match="no watermark"):
        log.publications()
    reader = log.reader({A: 0})
    with pytest.raises(ForeignLogError, match="no watermark"):
        reader.published(*A)
    reader.close()


def test_who_begins_to_follow_a_topic_gets_what_holds_at_its_position_however_old(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "STRETCH", 8)
    once, often = log.writer("once"), log.writer("often")
    once.commit(None, "", {"a": 1_000})
    for number in range(40):
        often.append([Output("a", b"k", b"v", number)], 0)
        often.commit(None, "", {"a": number})
    visible_at: dict[int, int] = {}
    probe = log.reader({A: 0})
    while len(visible_at) < 40:
        visible_at |= {record.timestamp_ms: record.offset + 1 for record in probe.fetch(*A, 100).records}
    for number in (39, 20, 3):
        reader = log.reader({A: visible_at[number]})
        # The two partitions of a reader share what is read of the feed.
        assert dict(news(reader)) == {"once": 1_000, "often": number}
        reader.seek("a", 0, visible_at[number - 1])
        assert dict(news(reader)) == {"once": 1_000, "often": number - 1}
        reader.close()
    probe.close()


def news(reader: KafkaReader) -> Iterator[tuple[str, int | None]]:
    for one in reader.published(*A):
        yield one.publisher, one.watermark_ms


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
    log = KafkaLog("kafka://127.0.0.1:1", KafkaOptions(patience_s=0.5))
    for call in (log.topics, lambda: log.end_offset("a", 0), lambda: log.writer("w")):
        with pytest.raises(LogUnavailableError, match="Kafka does not answer"):
            call()
    log.close()


def test_a_broker_that_was_never_reached_is_named_by_its_address() -> None:
    log = KafkaLog("kafka://127.0.0.1:1", KafkaOptions(patience_s=0.5))
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
