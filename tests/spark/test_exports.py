"""Exports as Spark reads them: the types and sums that the other tools find."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession, functions
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType, TimestampType

from tailrace.lab.export import Destination, StateOptions, export_state, export_topics
from tests.lab import yard


def test_spark_reads_the_types_and_sums_of_an_export(tmp_path: Path, spark: SparkSession) -> None:
    h, events = yard.lived(seed=1)
    with h:
        export_state(h.plan, h.log, Destination(tmp_path / "state"), StateOptions())
        export_topics(h.plan, h.log, Destination(tmp_path / "topics"), ["moves"])
    slots = spark.read.parquet(str(tmp_path / "state" / "Slot"))
    types = {one.name: one.dataType for one in slots.schema}
    assert (types["key_1"], types["count"], types["last"]) == (StringType(), LongType(), TimestampType())
    assert types["spot"] == StructType(
        [StructField("row", LongType()), StructField("zone", StringType()), StructField("since", LongType())]
    )
    assert isinstance(types["gaps"], MapType)
    found = slots.agg(functions.sum("count"), functions.sum("took"), functions.sum("spot.row")).collect()[0]
    took = sum(one.took // timedelta(microseconds=1) for one in events)
    assert tuple(found) == (200, took, sum(one["spot"]["row"] for one in yard.expected(events).values()))
    moves = spark.read.parquet(str(tmp_path / "topics" / "moves"))
    assert moves.schema["_time"].dataType == TimestampType()
    by_kind = {row["kind"]: row["count"] for row in moves.groupBy("kind").count().collect()}
    assert by_kind == {one.value: sum(event.kind is one for event in events) for one in yard.Kind}
