"""Every query of a DataFrame reads the one cut that its ``load()`` fixed, whatever was asked before or written since.

The oracle is a list of all rows, read without Spark, and a few lines of Python for each condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that PySpark's users know)

from tailrace.core.errors import OffsetGoneError, UsageError
from tailrace.log.archive import Archive, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicPartition
from tailrace.spark import cut
from tailrace.spark.source import TailraceSource
from tests.spark import travel
from tests.spark.reading import answer

APP = "tests.spark.travel:app"
COUNT = 120
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

Row = dict[str, Any]


class Asked(NamedTuple):
    """A condition in SQL, and the rows that it is true of: null makes it neither true nor false."""

    sql: str | None
    holds: Callable[[Row], bool]


EVERY = Asked(None, lambda row: True)
OF_EVENTS = (
    Asked("_partition = 0", lambda row: row["_partition"] == 0),
    Asked(
        "_partition IN (1, 3) AND _offset < 9", lambda row: row["_partition"] in (1, 3) and row["_offset"] < 9
    ),
    Asked("_key = 'N103' OR _offset >= 12", lambda row: row["_key"] == "N103" or row["_offset"] >= 12),
    Asked("NOT (_partition = 2)", lambda row: row["_partition"] != 2),
    Asked("_key IN ('N101', 'N107', 'nobody')", lambda row: row["_key"] in ("N101", "N107")),
    Asked("note IS NULL AND _partition <=> 1", lambda row: row["note"] is None and row["_partition"] == 1),
    Asked("note IS NOT NULL", lambda row: row["note"] is not None),
    Asked("_timestamp < '2013-01-01 00:30:00'", lambda row: row["miles"] < 30),
    Asked("note <> 'note 5'", lambda row: row["note"] not in (None, "note 5")),
    Asked("_partition = 77", lambda row: row["_partition"] == 77),
)
OF_STATE = (
    Asked("key = 'N103'", lambda row: row["key"] == "N103"),
    Asked("key IN ('N101', 'N107')", lambda row: row["key"] in ("N101", "N107")),
    Asked("key = 'N103' OR miles > 300", lambda row: row["key"] == "N103" or row["miles"] > 300),
    Asked("NOT (key = 'N103')", lambda row: row["key"] != "N103"),
    Asked(
        "last.note IS NULL AND miles > 200", lambda row: row["last"]["note"] is None and row["miles"] > 200
    ),
    Asked("key = 'nobody'", lambda row: row["key"] == "nobody"),
)


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Spark offers the filters of each query to the data source, and plans anew for them."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.fixture
def lived(tmp_path: Path) -> Iterator[travel.Lived]:
    found = travel.Lived(tmp_path, COUNT)
    found.run()
    found.take()
    yield found
    found.log.close()


def reading(spark: SparkSession, **options: object) -> Any:
    return spark.read.format("tailrace").options(**{name: str(one) for name, one in options.items()})


def more(log: EmbeddedLog, count: int, start: int = COUNT) -> None:
    trips = map(travel.trip, range(start, start + count))
    log.append_all([travel.output(travel.trips, one, travel.ms(one.at)) for one in trips])


def events_in(folder: Path) -> list[Row]:
    """Every record of the topic, read as a program in Python would."""
    log = EmbeddedLog(folder, create=False)
    found: list[Row] = []
    for number in range(4):
        place = TopicPartition("trips", number)
        for record in log.reader({place: 0}).fetch(*place, 1_000_000).records:
            one = travel.trips.decode(record.value or b"")
            key = (record.key or b"").decode()
            found.append(
                {
                    "_partition": number,
                    "_offset": record.offset,
                    "_key": key,
                    "note": one.note,
                    "miles": one.miles,
                }
            )
    log.close()
    return found


def counted(frame: DataFrame, asked: Asked) -> int:
    return (frame if asked.sql is None else frame.where(asked.sql)).count()


def check(frame: DataFrame, rows: list[Row], *conditions: Asked) -> None:
    assert rows
    for asked in conditions:
        assert counted(frame, asked) == sum(map(asked.holds, rows)), asked.sql


def test_no_query_reads_by_the_filter_of_another(spark, lived, pushdown):
    events = reading(spark, log=lived.folder / "log", topic="trips", app=APP).load()
    planes = reading(spark, snapshot=lived.uri, app="travel", actor="Plane").load()
    rows = events_in(lived.folder / "log")
    state = answer(snapshot=lived.uri, app="travel", actor="Plane").rows
    assert {row["key"]: row["miles"] for row in state} == {
        tail: sum(row["miles"] for row in rows if row["_key"] == tail) for tail in travel.PLANES
    }
    check(events, rows, *OF_EVENTS[:5], EVERY, *OF_EVENTS[5:], EVERY)
    check(planes, state, EVERY, *OF_STATE[:3], EVERY, *OF_STATE[3:], EVERY)


@pytest.mark.usefixtures("pushdown")
def test_a_view_a_join_and_a_union_read_all_that_they_ask_for(spark, lived):
    rows = events_in(lived.folder / "log")
    frame = reading(spark, log=lived.folder / "log", topic="trips", app=APP).load()
    first, others = frame.where("_partition = 0"), frame.where("NOT (_partition = 0)")
    assert first.union(others).count() == len(rows)
    assert first.union(frame).count() == len(rows) + sum(row["_partition"] == 0 for row in rows)
    place = ["_partition", "_offset"]
    assert frame.alias("a").join(frame.alias("b"), place).count() == len(rows)
    assert first.join(frame.select(*place, "miles"), place).count() == first.count()
    assert frame.join(first.select(*place), place, "left_anti").count() == others.count()
    frame.createOrReplaceTempView("trips")
    sql = "SELECT count(*) FROM trips"
    counts = [spark.sql(one).first()[0] for one in (sql, f"{sql} WHERE _partition = 0", sql)]
    assert counts == [len(rows), first.count(), len(rows)]
    both = "SELECT (SELECT count(*) FROM trips WHERE _key = 'N103'), (SELECT count(*) FROM trips)"
    assert tuple(spark.sql(both).first()) == (sum(row["_key"] == "N103" for row in rows), len(rows))


@pytest.mark.usefixtures("pushdown")
def test_a_table_is_what_the_log_held_when_it_was_loaded(spark, lived):
    options = {"log": lived.folder / "log", "topic": "trips", "app": APP}
    before = events_in(lived.folder / "log")
    asked, unasked = reading(spark, **options).load(), reading(spark, **options).load()
    cached = reading(spark, **options).load().cache()
    check(asked, before, OF_EVENTS[0])
    assert cached.count() == len(before)
    more(lived.log, 50)
    after = events_in(lived.folder / "log")
    assert len(after) == len(before) + 50
    for frame in (unasked, asked, cached):
        check(frame, before, OF_EVENTS[2], EVERY)
    newest = reading(spark, **options).load()
    check(newest, after, OF_EVENTS[2], EVERY)
    assert unasked.join(newest, ["_partition", "_offset"], "right").count() == len(after)
    assert unasked.union(newest).count() == len(before) + len(after)
    given = ", ".join(f"{name} '{one}'" for name, one in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING tailrace OPTIONS ({given})")
    more(lived.log, 10, COUNT + 50)
    for where in ("WHERE _partition >= 0", ""):
        assert spark.sql(f"SELECT count(*) FROM seen {where}").first()[0] == len(after)
    cached.unpersist()


def test_a_table_of_state_is_the_snapshot_that_was_the_latest_when_it_was_loaded_and_is_written_upon_it(
    spark, lived
):
    options = {"snapshot": lived.uri, "app": "travel", "actor": "Plane"}
    frame = reading(spark, **options).load()
    older = lived.snapshot().manifest.id
    more(lived.log, 1)
    lived.run()
    lived.take()
    newest = reading(spark, **options).load()
    total = sum(range(COUNT))
    assert [one.agg(F.sum("miles")).first()[0] for one in (frame, newest)] == [total, total + COUNT]
    ids = [older, lived.snapshot().manifest.id]
    assert [cut(one) for one in (frame, newest)] == [{"app": "travel", "id": one} for one in ids]
    changed = frame.where("key = 'N103'").selectExpr("key", "miles + 1 as miles")
    written = {"snapshot": lived.uri, "app": APP, "actor": "Plane"}
    changed.write.format("tailrace").mode("append").options(**written, name="changed").save()
    assert lived.snapshot("changed").manifest.parent == older
    changed.write.format("tailrace").mode("append").options(**written, id=ids[1], name="upon").save()
    assert lived.snapshot("upon").manifest.parent == ids[1]


def test_the_cut_of_a_table_is_told_and_read_again_by_its_options(spark, lived):
    options = {"log": lived.folder / "log", "topic": "trips", "app": APP}
    frame = reading(spark, **options, startingOffsets='{"1": 3}').load()
    rows = [row for row in events_in(lived.folder / "log") if row["_partition"] != 1 or row["_offset"] >= 3]
    ends = [lived.log.end_offset("trips", number) for number in range(4)]
    assert cut(frame) == {
        "topic": "trips",
        "startingOffsets": '{"0":0,"1":3,"2":0,"3":0}',
        "endingOffsets": "{" + ",".join(f'"{number}":{end}' for number, end in enumerate(ends)) + "}",
    }
    more(lived.log, 20)
    again = reading(spark, **{**options, **cut(frame)}).load()
    assert frame.count() == again.count() == len(rows)
    assert cut(again) == cut(frame) != cut(reading(spark, **options).load())
    assert reading(spark, **options).schema(frame.schema).load().count() == len(rows)
    with pytest.raises(UsageError, match="has no cut"):
        cut(frame.select("miles").drop("tail"))


def test_a_schema_that_names_no_cut_or_that_of_another_topic_is_refused(spark, lived):
    options = {"log": lived.folder / "log", "topic": "trips", "app": APP}
    schema = reading(spark, **options).load().schema
    for given, topic, said in (
        ("miles bigint", "trips", "Leave the schema out. Select columns by the option columns"),
        (schema, "moves", "belongs to the topic 'trips'"),
    ):
        with pytest.raises(Exception, match=said):
            reading(spark, **{**options, "topic": topic}).schema(given).load().count()


def test_records_that_were_deleted_since_the_load_are_an_error(lived):
    source = TailraceSource({"log": str(lived.folder / "log"), "topic": "trips"})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    lived.log.delete_before("trips", 2, 4)
    for late in (reader.partitions, lambda: [*map(len, map(list, map(reader.read, parts)))]):
        with pytest.raises(OffsetGoneError, match="Load the table again"):
            late()


def test_a_log_that_lost_its_end_since_the_load_is_an_error(lived, tmp_path):
    """As when a backup is put in its place: a part of the rows would be missing in silence."""
    source = TailraceSource({"log": str(lived.folder / "log"), "topic": "trips"})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    travel.filled(tmp_path / "short", 40).close()
    lived.log.close()
    (lived.folder / "log").rename(tmp_path / "away")
    (tmp_path / "short").rename(lived.folder / "log")
    for late in (reader.partitions, lambda: [*map(len, map(list, map(reader.read, parts)))]):
        with pytest.raises(OffsetGoneError, match="Load the table again"):
            late()


def test_an_archive_that_grows_is_read_up_to_where_it_was_whole(lived, tmp_path):
    archive = Archive.at(str(tmp_path / "archive"))
    archive_log(lived.log, archive, records_per_chunk=20)
    options = {"archive": str(tmp_path / "archive"), "topic": "trips"}
    source = TailraceSource(options)
    schema = source.schema()
    more(lived.log, 30)
    archive_log(lived.log, archive, records_per_chunk=20)
    reader = source.reader(schema)
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = sum(batch.num_rows for batch in batches)
    assert (rows, len(answer(**options).rows)) == (COUNT, COUNT + 30)
