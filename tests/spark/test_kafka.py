"""Spark reads from Kafka what Kafka's own consumer reads, and no more than it was asked for."""

from __future__ import annotations

from datetime import UTC
from random import Random
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession

from tailrace.core.errors import LogUnavailableError, OtherHistoryError, UnknownTopicError
from tailrace.log.kafka import log as kafka_log
from tailrace.spark.source import TailraceSource
from tests.kafka.outside import Outside, messages
from tests.spark.reading import answer

APP = "tests.spark.travel:app"
START_MS = 1_700_000_000_000
COUNT = 400
_ANSWER_S = 60.0
Row = dict[str, Any]


class Brokers(Outside):
    """The topics of one test, as programs without the framework write them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.plain = Producer({"bootstrap.servers": self.brokers, "partitioner": "murmur2"})

    def transactional(self) -> Producer:
        made = Producer({"bootstrap.servers": self.brokers, "transactional.id": f"{self.prefix}{id(self)}"})
        made.init_transactions(_ANSWER_S)
        return made

    def write(self, topic: str, producer: Producer, some: list[Any]) -> None:
        for partition, key, value, at_ms, headers in some:
            producer.produce(
                self.prefix + topic, value, key, partition, timestamp=at_ms, headers=headers or None
            )
        assert not producer.flush(_ANSWER_S)

    def rows(self, topic: str) -> list[Row]:
        """As Spark has them, by Kafka's own consumer."""
        return [
            _row(topic, one) for partition in messages(self.brokers, self.prefix + topic) for one in partition
        ]


def _row(topic: str, one: Message) -> Row:
    found: Any = one.headers() or ()
    headers = [{"key": name, "value": value or b""} for name, value in found]
    return {
        "topic": topic,
        "partition": one.partition(),
        "offset": one.offset(),
        "timestamp": one.timestamp()[1],
        "key": one.key(),
        "value": one.value(),
        "headers": headers,
    }


def plain_rows(rows: list[Any]) -> list[Row]:
    """Rows of Spark, or of a batch, with their times in milliseconds."""
    found: list[Row] = []
    for one in rows:
        row: Row = one if isinstance(one, dict) else one.asDict(recursive=True)
        at = row["timestamp"].replace(tzinfo=row["timestamp"].tzinfo or UTC)
        bytes_: Row = {
            name: None if row[name] is None else bytes(row[name]) for name in ("key", "value") if name in row
        }
        headers = [{"key": header["key"], "value": bytes(header["value"])} for header in row["headers"] or ()]
        found.append({**row, **bytes_, "timestamp": round(at.timestamp() * 1_000), "headers": headers})
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


@pytest.fixture
def brokers(kafka_url: str) -> Brokers:
    return Brokers(kafka_url)


def mixed(brokers: Brokers, topic: str) -> set[bytes]:
    """Write all kinds of records to partitions 0 to 3 of 5: by a program without transactions, and in transactions that are committed or
    aborted. Returns the values of the aborted ones.
    """
    random, aborted = Random(topic), set[bytes]()
    brokers.create(topic, 5, retention_ms="-1")
    producer = brokers.transactional()
    for number in range(60):
        some: list[Any] = [
            (
                random.randrange(4),
                random.choice((None, b"", b"a", b"b", b"\xff\0")),
                random.choice((None, b"%d" % number, b"%d.%d" % (number, count))),
                START_MS + number * 1_000 + random.randrange(-20_000, 20_000),
                random.choice(
                    ([], [("h", b"1")], [("h", b"1"), ("h", b""), ("none", None), ("\u00e4", b"\0")])
                ),
            )
            for count in range(random.randrange(1, 12))
        ]
        how = number % 3
        if how == 0:
            brokers.write(topic, brokers.plain, some)
            continue
        if how == 1:
            some = [(*one[:2], b"aborted %d" % number, *one[3:]) for one in some]
            aborted |= {value for _, _, value, *_ in some}
        producer.begin_transaction()
        brokers.write(topic, producer, some)
        (producer.abort_transaction if how == 1 else producer.commit_transaction)(_ANSWER_S)
    return aborted


def test_spark_reads_what_a_consumer_reads_however_it_is_shared_out(
    spark: SparkSession, brokers: Brokers
) -> None:
    aborted = mixed(brokers, "mixed")
    wanted = brokers.rows("mixed")
    whole = spark.read.format("tailrace").options(log=brokers.url, topic="mixed")
    shared = spark.read.format("tailrace").options(log=brokers.url, topic="mixed", recordsPerTask="17")
    assert plain_rows(whole.load().collect()) == wanted
    assert plain_rows(shared.load().collect()) == wanted
    assert {row["partition"] for row in wanted} == {0, 1, 2, 3}
    assert not aborted & {row["value"] for row in wanted}
    assert any(row["key"] is None for row in wanted)
    one = answer(log=brokers.url, topic="mixed", recordsPerTask=10)
    assert plain_rows(one.rows) == wanted
    assert one.tasks > len(wanted) // 10 + 5, "markers and aborted records have offsets, too"
    assert answer(log=brokers.url, topic="mixed").read.total() == len(wanted)


def test_times_and_keys_leave_out_what_need_not_be_read(brokers: Brokers) -> None:
    mixed(brokers, "mixed")
    wanted, random = brokers.rows("mixed"), Random(1)
    least = 0
    for _ in range(20):
        start, stop = sorted(START_MS + random.randrange(-30_000, 90_000) for _ in range(2))
        key = random.choice((None, "", "a"))
        bounds: dict[str, object] = {"startingTime": f"{start}ms", "endingTime": f"{stop}ms"}
        found = answer(
            log=brokers.url, topic="mixed", **bounds, **({} if key is None else {"keys": f'["{key}"]'})
        )
        assert plain_rows(found.rows) == [
            row
            for row in wanted
            if start <= row["timestamp"] < stop and (key is None or row["key"] == key.encode())
        ]
        # Kafka gives the first offset with this time or a later one; it counts aborted records, too.
        for partition, count in found.read.items():
            later = [row for row in wanted if row["partition"] == partition and row["timestamp"] >= start]
            first = min((row["offset"] for row in later), default=0)
            behind = [row for row in wanted if row["partition"] == partition and row["offset"] >= first]
            assert len(later) <= count
            least += len(behind) == count
    assert least > 20


def test_an_open_transaction_is_named_and_one_that_begins_after_the_load_changes_nothing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.create("open", 2, retention_ms="-1")
    producer = brokers.transactional()
    first: list[Any] = [(number % 2, b"k", b"%d" % number, START_MS + number, []) for number in range(10)]
    brokers.write("open", brokers.plain, first)
    source = TailraceSource({"log": brokers.url, "topic": "open"})
    reader = source.reader(source.schema())
    before = brokers.rows("open")
    producer.begin_transaction()
    brokers.write("open", producer, [(1, b"k", b"open", START_MS, [])])
    brokers.write("open", brokers.plain, [(1, b"k", b"hidden", START_MS, [])])
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert plain_rows([row for batch in batches for row in batch.to_pylist()]) == before
    monkeypatch.setattr(kafka_log, "_HANGS_S", 0.3)
    with pytest.raises(LogUnavailableError, match="a transaction in 'open' partition 1 has been open"):
        answer(log=brokers.url, topic="open")
    producer.commit_transaction(_ANSWER_S)
    found = plain_rows(answer(log=brokers.url, topic="open").rows)
    assert found == brokers.rows("open")
    assert {b"open", b"hidden"} < {row["value"] for row in found}


def _filled(brokers: Brokers, value: bytes) -> None:
    brokers.create("again", 2, retention_ms="-1")
    brokers.write("again", brokers.plain, [(n % 2, b"k", value, START_MS + n, []) for n in range(10)])


def test_a_topic_that_was_created_again_since_the_load_is_an_error(
    spark: SparkSession, brokers: Brokers
) -> None:
    """At the same offsets there are other records, which would be rows in silence."""
    _filled(brokers, b"old")
    frame = spark.read.format("tailrace").options(log=brokers.url, topic="again").load()
    source = TailraceSource({"log": brokers.url, "topic": "again"})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    assert frame.count() == 10
    brokers.delete("again")
    for late in (reader.partitions, lambda: [*map(len, map(list, map(reader.read, parts)))]):
        with pytest.raises(UnknownTopicError):
            late()
    _filled(brokers, b"new")
    for late in (reader.partitions, lambda: [*map(len, map(list, map(reader.read, parts)))]):
        with pytest.raises(OtherHistoryError, match="Load the table again"):
            late()
    with pytest.raises(Exception, match=r"deleted and created again since this DataFrame was loaded"):
        frame.collect()
    assert {row["value"] for row in answer(log=brokers.url, topic="again").rows} == {b"new"}
