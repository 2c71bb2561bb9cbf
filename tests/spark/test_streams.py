"""Streams of a topic and of a state's changes, against plain Python over the whole log, with restarts in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace import spark as tr_spark
from tailrace.core import records as tr_records
from tailrace.core import rows
from tailrace.core.errors import OffsetGoneError, TopicReplacedError, UsageError
from tailrace.history.reading.opening import open_archive
from tailrace.history.reading.stretches import scan
from tailrace.log.archive import ArchiveOptions, archive_log
from tailrace.log.interface import TopicSettings
from tailrace.log.opening import open_log
from tailrace.runtime.preparing import prepare_log
from tailrace.spark.source import TailraceSource
from tailrace.spark.streams import TopicStream
from tailrace.state import MemoryStore
from tests.spark import travel
from tests.spark.reading import answer
from tests.spark.tally import Said, tally, words

APP = "tests.spark.travel:app"
COUNT = 60
Place = tuple[int, int]


TALLY = "tests.spark.tally:tally"


class Sink:
    """Takes batches, each by its number; fails once after it has read the batch ``fails_at``, as a driver that dies does."""

    def __init__(self, fails_at: int = -1) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.repeated: list[int] = []
        self._fails_at = fails_at

    def take(self, frame: Any, number: int) -> None:
        found = sorted(tuple(row) for row in frame.collect())
        if number in self.batches:
            assert found == self.batches[number]
            self.repeated.append(number)
        self.batches[number] = found
        if number == self._fails_at:
            self._fails_at = -1
            raise RuntimeError("the driver dies")

    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def drain(spark: SparkSession, sink: Sink, checkpoint: Path, **options: object) -> None:
    """A query that reads what is there, and ends."""
    frame = spark.readStream.format("tailrace").options(**{name: str(one) for name, one in options.items()})
    query = (
        frame.load()
        .writeStream.foreachBatch(sink.take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def add_trips(log: Any, first: int, count: int) -> None:
    writer = log.writer("trips")
    some = [travel.trip(number) for number in range(first, first + count)]
    writer.append([travel.output(travel.trips, one, travel.ms(one.at)) for one in some])
    writer.commit()
    writer.close()


def filled(place: str | Path, count: int) -> Any:
    log: Any = open_log(place, create=True)
    log.create_topic("trips", TopicSettings(4))
    add_trips(log, 0, count)
    return log


def everything(log: Any) -> list[tuple[int, int, bytes | None]]:
    return sorted((n, one.offset, one.value) for n in range(4) for one in scan(log, "trips", n))


@pytest.fixture(params=["embedded", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log on disk, and one on Kafka."""
    if request.param == "kafka":
        url: str = request.getfixturevalue("kafka_url")
        return url
    return str(tmp_path / "log")


def test_a_stream_gives_each_record_once_though_a_batch_fails_and_the_query_restarts(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    log, sink = filled(place, COUNT), Sink(fails_at=1)
    options = {"log": place, "topic": "trips", "columns": "partition,offset,value", "recordsPerBatch": 40}
    with pytest.raises(Exception, match="the driver dies"):
        drain(spark, sink, tmp_path / "checkpoint", **options)
    add_trips(log, COUNT, 10)
    drain(spark, sink, tmp_path / "checkpoint", **options)
    assert sink.repeated == [1]
    assert max(map(len, sink.batches.values())) <= 40
    assert sorted(sink.rows()) == everything(log)
    assert len(sink.rows()) == COUNT + 10
    log.close()


def test_the_events_of_a_stream_are_columns_and_begin_where_a_table_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, sink = filled(tmp_path / "log", COUNT), Sink()
    options = {"log": str(tmp_path / "log"), "topic": "trips", "app": APP, "columns": "miles,tail"}
    table = tr_spark.cut(spark.read.format("tailrace").options(**options).load())
    add_trips(log, COUNT, 10)
    drain(spark, sink, tmp_path / "checkpoint", startingOffsets=table["endingOffsets"], **options)
    assert sorted(sink.rows()) == [(n, travel.trip(n).tail) for n in range(COUNT, COUNT + 10)]
    log.close()


def stream(**options: object) -> TopicStream:
    source = TailraceSource({name: str(one) for name, one in options.items()})
    found = source.streamReader(source.schema())
    assert isinstance(found, TopicStream)
    return found


def read(made: TopicStream, start: Any, end: Any) -> list[Any]:
    found: list[Any] = [batch for part in made.partitions(start, end) for batch in made.read(part)]
    return [row for batch in found for row in batch.to_pylist()]


def test_what_retention_has_deleted_since_the_checkpoint_is_an_error_and_an_archive_has_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, sink = filled(tmp_path / "log", COUNT), Sink()
    options = {"log": tmp_path / "log", "topic": "trips", "columns": "partition,offset,value"}
    drain(spark, sink, tmp_path / "checkpoint", **options)
    add_trips(log, COUNT, 40)
    wanted = everything(log)
    archive_log(log, open_archive(str(tmp_path / "archive")), ArchiveOptions(records_per_chunk=20))
    for number in range(4):
        log.delete_before("trips", number, log.end_offset("trips", number) - 1)
    with pytest.raises(Exception, match=r"not in the log, which holds.*cannot continue from its checkpoint"):
        drain(spark, sink, tmp_path / "checkpoint", **options)
    drain(spark, sink, tmp_path / "checkpoint", archive=tmp_path / "archive", **options)
    assert sorted(sink.rows()) == wanted
    log.close()


def test_a_batch_is_whole_or_an_error(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", COUNT)
    made = stream(log=tmp_path / "log", topic="trips")
    begin, end = made.initialOffset(), made.reportLatestOffset()
    assert len(read(made, begin, end)) == COUNT
    parts = made.partitions(begin, end)
    log.delete_before("trips", 1, 2)
    for late in (lambda: made.partitions(begin, end), lambda: [*made.read(parts[1])]):
        with pytest.raises(OffsetGoneError, match="begin again with a new checkpoint") as error:
            late()
        assert error.value.partition == 1
    log.close()


def test_a_topic_that_was_created_again_since_the_checkpoint_is_an_error(kafka_url: str) -> None:
    log = filled(kafka_url, COUNT)
    made = stream(log=kafka_url, topic="trips")
    begin = made.initialOffset()
    log.admin.delete_topics(["trips"])
    log.create_topic("trips", TopicSettings(4))
    with pytest.raises(TopicReplacedError, match="cannot continue from its checkpoint"):
        made.partitions(begin, begin)
    log.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "trips", "endingOffsets": "3"}, "a stream has no end"),
        ({"topic": "trips", "endingTime": "2013-01-01"}, "a stream has no end"),
        ({"topic": "trips", "recordsPerBatch": "0"}, "at least 1"),
        ({"app": APP, "actor": "Plan"}, "no actor 'Plan'.*Plane"),
        ({"app": APP, "actor": "Plane", "field": "notes"}, "rows of fields"),
        ({"app": APP, "actor": "Plane", "recordsPerBatch": "3"}, "whole commits"),
    ],
)
def test_an_option_that_makes_no_sense_in_a_stream_is_refused(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    log = filled(tmp_path, COUNT)
    prepare_log(log, travel.app.plan(), create_declared=True)
    log.close()
    with pytest.raises(UsageError, match=said):
        stream(log=tmp_path, **options)


def test_a_table_has_no_batches(tmp_path: Path) -> None:
    filled(tmp_path, COUNT).close()
    with pytest.raises(UsageError, match="it belongs to a stream"):
        answer(log=tmp_path, topic="trips", recordsPerBatch=3)


# --- the changes of a state


class Counting:
    """The service lives on a log, a round of different words at a time; ``rows`` is what plain Python has by then."""

    def __init__(self, place: str | Path) -> None:
        self.log: Any = open_log(place, create=True)
        prepare_log(self.log, tally.plan(), create_declared=True)
        self.states = [MemoryStore() for _ in range(4)]
        self.counts: dict[str, int] = {}
        self.rows: list[tuple[str, int | None, str | None, bool]] = []

    def round(self, *some: str) -> None:
        writer = self.log.writer("words")
        writer.append([travel.output(words, Said(one), 0) for one in some])
        writer.commit()
        writer.close()
        travel.live(tally.plan(), self.log, self.states)
        for one in some:
            count = (self.counts.pop(one, 0) + 1) % 3
            if count:
                self.counts[one] = count
            self.rows.append((one, count, one.upper(), False) if count else (one, None, None, True))

    def rows_by_key(self, rows: Iterator[Any]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for row in rows:
            found.setdefault(row[0], []).append(tuple(row))
        return found


def test_a_stream_of_changes_gives_each_change_of_a_key_once_in_order_though_the_query_restarts(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    made, sink = Counting(place), Sink(fails_at=1)
    options = {"log": place, "app": TALLY, "actor": "Word"}
    take: Callable[[], None] = lambda: drain(spark, sink, tmp_path / "checkpoint", **options)  # noqa: E731
    made.round("a", "b", "c")
    made.round("a", "c")
    take()
    made.round("a", "d")
    with pytest.raises(Exception, match="the driver dies"):
        take()
    made.round("a", "e", "c")
    take()
    assert sink.repeated == [1]
    in_order = sorted(sink.rows(), key=lambda row: (row[5], row[6]))
    assert made.rows_by_key(iter(row[:4] for row in in_order)) == made.rows_by_key(iter(made.rows))
    cuts = {
        number: [
            one.offset
            for one in scan(made.log, tally.plan().changelog_topic, number)
            if one.key == rows.CUT_ROW
        ]
        for number in range(4)
    }
    for *_, commit, number, offset, _ in in_order:
        assert commit == min(cut for cut in cuts[number] if cut > offset)
    table = {(row["key"], row["_offset"]) for row in answer(**options).rows}
    assert table == {(row[0], row[6]) for row in in_order}
    assert {row["key"] for row in answer(keys='["a"]', **options).rows} == {"a"}
    made.log.close()


def test_changes_of_a_commit_that_has_not_ended_wait_for_its_cut(tmp_path: Path) -> None:
    made = Counting(tmp_path)
    made.round("a", "b")
    streamed = stream(log=tmp_path, app=TALLY, actor="Word")
    before = streamed.reportLatestOffset()
    writer = made.log.writer("half")
    row = next(one for one in scan(made.log, tally.plan().changelog_topic, 0) if one.key != rows.CUT_ROW)
    writer.append([tr_records.Output(tally.plan().changelog_topic, row.key, row.value, 0)], 0)
    writer.commit()
    assert streamed.reportLatestOffset() == before
    assert len(read(streamed, streamed.initialOffset(), before)) == 2
    made.log.close()
