from __future__ import annotations

from collections import Counter
from datetime import UTC, timedelta

import msgspec
import pytest
from pyspark.sql import functions as F  # noqa: N812 (the name that PySpark's users know)

from tailrace.core.errors import (
    BadRecordError,
    LogUnavailableError,
    OffsetGoneError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log.archive import Archive, archive_log
from tailrace.log.archive.files import ChunkRecords
from tailrace.log.embedded import EmbeddedLog
from tailrace.spark.source import TailraceSource
from tests.spark import travel
from tests.spark.reading import answer

APP = "tests.spark.travel:app"
COUNT = 400
BAD = Output("trips", b"N100", b'{"tail": "N100", "at": 17}', 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    travel.filled(path, COUNT).close()
    return path


def read(spark, **options):
    return spark.read.format("tailrace").options(**options).load()


def test_events_are_columns_of_their_types(spark, folder):
    frame = read(spark, log=folder, topic="trips", app=APP)
    assert dict(frame.dtypes) == {
        "tail": "string",
        "at": "timestamp",
        "miles": "bigint",
        "cabin": "string",
        "price": "string",
        "delay": "interval day to second",
        "seats": "array<struct<row:bigint,letter:string>>",
        "meals": "map<string,bigint>",
        "note": "string",
        "_topic": "string",
        "_partition": "int",
        "_offset": "bigint",
        "_timestamp": "timestamp",
        "_key": "string",
        "_headers": "array<struct<key:string,value:binary>>",
    }
    for row in frame.where(F.col("miles") < 20).collect():
        one = travel.trip(row.miles)
        assert (row.tail, row.at.replace(tzinfo=UTC), row.cabin) == (one.tail, one.at, one.cabin.value)
        assert (row.price, row.delay, row.note) == (str(one.price), one.delay, one.note)
        assert [(seat.row, seat.letter) for seat in row.seats] == [
            (seat.row, seat.letter) for seat in one.seats
        ]
        assert (row.meals, row._key) == (one.meals, one.tail)
    total = frame.groupBy("cabin").agg(F.sum("miles").alias("miles")).orderBy("cabin").collect()
    assert {row.cabin: row.miles for row in total} == {
        "eco": sum(number for number in range(COUNT) if number % 3),
        "first": sum(range(0, COUNT, 3)),
    }


def test_offsets_that_are_not_asked_for_are_not_read(folder):
    found = answer(log=folder, topic="trips", startingOffsets='{"0": 3, "1": 5}', endingOffsets='{"0": 7}')
    log = EmbeddedLog(folder)
    ends = [log.end_offset("trips", number) for number in range(4)]
    assert found.read == Counter({0: 4, 1: ends[1] - 5, 2: ends[2], 3: ends[3]})
    one = answer(
        log=folder,
        topic="trips",
        startingOffsets=msgspec.json.encode({0: ends[0], 1: ends[1], 2: 11, 3: ends[3]}).decode(),
        endingOffsets='{"2": 13}',
    )
    assert one.read == Counter({2: 2})
    assert [(row["partition"], row["offset"]) for row in one.rows] == [(2, 11), (2, 12)]


def test_partitions_without_a_key_that_is_asked_for_are_not_read(folder):
    tails = ["N103", "N111"]
    numbers = {partition_of(tail.encode(), 4) for tail in tails}
    assert len(numbers) < 4
    found = answer(log=folder, topic="trips", app=APP, keys=msgspec.json.encode(tails).decode())
    assert set(found.read) == numbers
    expected = [number for number in range(COUNT) if travel.trip(number).tail in tails]
    assert sorted(row["miles"] for row in found.rows) == expected
    undeclared = answer(log=folder, topic="trips", keys='["N103"]')
    assert (undeclared.read.total(), {row["key"] for row in undeclared.rows}) == (COUNT, {b"N103"})


def test_records_before_a_time_are_not_read_and_those_after_it_are_not_kept(folder):
    start, stop = travel.DAY + timedelta(minutes=300), travel.DAY + timedelta(minutes=310)
    options = {"log": folder, "topic": "trips", "app": APP}
    found = answer(startingTime=start.isoformat(), endingTime=stop.isoformat(), **options)
    assert sorted(row["miles"] for row in found.rows) == list(range(300, 310))
    assert sum(found.read.values()) == 100


def test_columns_that_nobody_wants_are_not_made_nor_values_decoded(tmp_path):
    travel.filled(tmp_path, 5, more=(BAD,)).close()
    options = {"log": tmp_path, "topic": "trips", "app": APP}
    found = answer(columns="_key,_offset", **options)
    assert len(found.rows) == 6
    assert set(found.rows[0]) == {"_key", "_offset"}
    with pytest.raises(BadRecordError):
        answer(columns="_key,miles", **options)


def test_an_event_that_cannot_be_decoded_is_named_or_kept_with_its_reason(tmp_path):
    travel.filled(tmp_path, 8, more=(BAD,)).close()
    options = {"log": tmp_path, "topic": "trips", "app": APP}
    with pytest.raises(
        BadRecordError, match=r"cannot be decoded.*'trips', partition \d, offset \d+, key b'N100'"
    ):
        answer(**options)
    found = answer(undecodable="keep", **options)
    bad = [row for row in found.rows if row["_error"] is not None]
    assert len(found.rows) == 9
    assert [row["_value"] for row in bad] == [BAD.value]
    assert "at" in bad[0]["_error"]
    assert bad[0]["miles"] is None


def test_a_deletion_is_a_row_without_fields(tmp_path):
    travel.filled(tmp_path, 0, more=(Output("trips", b"N100", None, 5),)).close()
    (row,) = answer(log=tmp_path, topic="trips", app=APP).rows
    assert row["_key"] == "N100"
    assert row["tail"] is None


def test_events_of_several_types_share_a_table(tmp_path):
    events = [travel.Left("N100", 3), travel.Landed("N101", "B7")]
    travel.filled(tmp_path, 0, more=tuple(travel.output(travel.moves, one, 0) for one in events)).close()
    found = answer(log=tmp_path, topic="moves", app=APP, columns="_type,tail,gate")
    assert sorted(found.rows, key=lambda row: row["tail"]) == [
        {"_type": "Left", "tail": "N100", "gate": "3"},
        {"_type": "Landed", "tail": "N101", "gate": '"B7"'},
    ]


def test_an_empty_answer_has_no_tasks_and_no_rows(spark, folder):
    options = {"log": folder, "topic": "trips", "startingTime": "2999-01-01"}
    found = answer(**options)
    assert (found.rows, found.tasks, found.read) == ([], 0, Counter())
    assert read(spark, **options, columns="offset,partition").count() == 0


def test_a_log_that_a_service_writes_to_is_read_up_to_where_it_stood(tmp_path):
    log = travel.filled(tmp_path, 10)
    writer = log.writer("another")
    writer.append([travel.output(travel.trips, travel.trip(10), 0)])
    assert len(answer(log=tmp_path, topic="trips").rows) == 10
    writer.commit()
    assert len(answer(log=tmp_path, topic="trips").rows) == 11


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, UsageError, "Give log and topic"),
        ({"log": "LOG"}, UsageError, "'topic' is missing"),
        (
            {"log": "LOG", "topic": "trips", "startingOfsets": "3"},
            UsageError,
            "Did you mean 'startingOffsets'",
        ),
        (
            {"log": "LOG", "topic": "trips", "startingOffsets": "latest"},
            UsageError,
            "startingOffsets is 'latest'",
        ),
        ({"log": "LOG", "topic": "trips", "endingOffsets": '{"0": -1}'}, UsageError, "number by partition"),
        ({"log": "LOG", "topic": "trips", "endingOffsets": '{"7": 1}'}, UsageError, "partition 7.*0 to 3"),
        ({"log": "LOG", "topic": "trips", "endingOffsets": "999999"}, OffsetGoneError, "which holds 0 to"),
        ({"log": "LOG", "topic": "trips", "startingTime": "noon"}, UsageError, "not an instant"),
        ({"log": "LOG", "topic": "trips", "startingTime": "2013-01-01T00:00"}, UsageError, "not an instant"),
        ({"log": "LOG", "topic": "trips", "startingTime": f"{2**63}ms"}, UsageError, "not an instant"),
        (
            {"log": "LOG", "topic": "trips", "columns": "ofset"},
            UsageError,
            "The columns are: topic, partition",
        ),
        ({"log": "LOG", "topic": "trips", "undecodable": "keep"}, UsageError, "read as bytes"),
        ({"log": "LOG", "topic": "trips", "app": APP, "undecodable": "drop"}, UsageError, "fail or keep"),
        (
            {"log": "LOG", "topic": "trips", "app": APP, "undecodable": "keep", "columns": "miles"},
            UsageError,
            "Add _error",
        ),
        ({"log": "LOG", "topic": "trips", "recordsPerTask": "0"}, UsageError, "at least 1"),
        ({"log": "LOG", "topic": "trips", "actor": "Plane"}, UsageError, "belongs to a snapshot"),
        ({"log": "LOG", "topic": "trips", "keys": "N100"}, UsageError, "JSON list"),
        ({"log": "LOG", "topic": "tripz"}, UnknownTopicError, "tripz"),
        ({"log": "LOG", "topic": "tripz", "app": APP}, UnknownTopicError, "declares moves, trips"),
        ({"log": "LOG/nothing", "topic": "trips"}, LogUnavailableError, "there is no log"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_the_mend(folder, options, error, said):
    given = {name: value.replace("LOG", str(folder)) for name, value in options.items()}
    with pytest.raises(error, match=said):
        answer(**given)


def test_a_stream_is_refused_with_the_source_to_use(folder):
    source = TailraceSource({"log": str(folder), "topic": "trips"})
    with pytest.raises(UsageError, match='Spark\'s format "kafka"'):
        source.streamReader(source.schema())


@pytest.fixture(scope="module")
def archived(tmp_path_factory):
    """Half of the trips are in an archive only, some in archive and log, the last in the log only."""
    path = tmp_path_factory.mktemp("archived")
    log = travel.filled(path / "log", COUNT * 3 // 4)
    archive_log(log, Archive.at(str(path / "archive")), records_per_chunk=20)
    for number in range(4):
        log.delete_before("trips", number, log.end_offset("trips", number) // 2)
    writer = log.writer("late")
    some = [travel.trip(number) for number in range(COUNT * 3 // 4, COUNT)]
    writer.append([travel.output(travel.trips, one, travel.ms(one.at)) for one in some])
    writer.commit()
    log.close()
    return {"log": path / "log", "archive": path / "archive", "topic": "trips", "app": APP}


def test_an_archive_and_its_log_are_one_table(spark, folder, archived):
    columns = {"columns": "miles,_partition,_offset"}
    rows = {tuple(row) for row in read(spark, **archived, **columns).collect()}
    assert rows == {
        tuple(row) for row in read(spark, log=folder, topic="trips", app=APP, **columns).collect()
    }
    alone = {name: value for name, value in archived.items() if name != "log"}
    assert {row["miles"] for row in answer(**alone).rows} == set(range(COUNT * 3 // 4))
    assert answer(**archived).rows == answer(log=folder, topic="trips", app=APP).rows


def test_of_an_archive_only_chunks_and_columns_that_can_matter_are_read(archived, monkeypatch):
    loaded: list[ChunkRecords] = []
    original = ChunkRecords.__init__

    def counted(self, *arguments, **named):
        original(self, *arguments, **named)
        loaded.append(self)

    monkeypatch.setattr(ChunkRecords, "__init__", counted)
    assert len(answer(**archived).rows) == COUNT
    whole = len({one.chunk for one in loaded})
    loaded.clear()
    start, stop = travel.DAY + timedelta(minutes=100), travel.DAY + timedelta(minutes=120)
    found = answer(
        startingTime=start.isoformat(), endingTime=stop.isoformat(), **archived, columns="_offset,_timestamp"
    )
    assert len(found.rows) == 20
    assert (
        sum(one.chunk.first_ms >= travel.ms(stop) or one.chunk.last_ms < travel.ms(start) for one in loaded)
        == 0
    )
    assert 0 < len({one.chunk for one in loaded}) < whole / 2
    assert {name for one in loaded for name in one._table.column_names} == {"offset", "timestamp"}
