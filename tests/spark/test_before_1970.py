"""Times before 1970, and before the calendars changed, are in Spark's tables what they are in the log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that PySpark's users know)

import tailrace as tr
from tailrace.core.records import Output
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.archive import Archive, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots import Snapshots
from tests.history.rebuilding import lived
from tests.runtime.test_before_1970 import TIMES_MS, Event
from tests.spark.reading import answer

APP = "tests.spark.test_before_1970:app"

FAR_MS = 100 * 10**12

app = tr.App("old", partitions=1)
events = app.topic("events", Event, key="key", event_time="at", time_range=(TIMES_MS[0], TIMES_MS[-1]))


@app.actor
class Timers(tr.Actor):
    @tr.process(events)
    def take(self, event: Event, ctx: tr.Context[str]) -> None:
        ctx.set_processing_timer(2**60 + event.at)  # for ever, as it were
        ctx.set_processing_timer(event.at + FAR_MS, f"far:{event.at}")

    @tr.on_processing_timer("far")
    def far(self, ctx: tr.Context[str]) -> None: ...

    @tr.on_processing_timer
    def never(self, ctx: tr.Context[str]) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("old")
    records = [
        Output("events", b"a", msgspec.json.encode(Event("a", time_ms)), time_ms) for time_ms in TIMES_MS
    ]
    lived.append(path, records, {"events": 1})
    log = EmbeddedLog(path / "log", create=False)
    archive_log(log, Archive.at(str(path / "archive")), records_per_chunk=4)
    log.close()
    return path


@pytest.mark.parametrize("where", ["log", "archive"])
def test_the_timestamps_of_records_are_those_of_the_log(
    spark: SparkSession, folder: Path, where: str
) -> None:
    options = {where: str(folder / where), "topic": "events"}
    frame = spark.read.format("tailrace").options(**options).load()
    found = frame.orderBy("offset").select(F.unix_millis("timestamp").alias("ms")).collect()
    assert [row.ms for row in found] == list(TIMES_MS)
    early = frame.where(F.col("timestamp") < F.timestamp_millis(F.lit(-1))).select("offset").collect()
    assert sorted(row.offset for row in early) == [at for at, time_ms in enumerate(TIMES_MS) if time_ms < -1]
    for time_ms in TIMES_MS:
        rows = answer(**options, startingTime=f"{time_ms}ms", columns="offset").rows
        assert [row["offset"] for row in rows] == [at for at, one in enumerate(TIMES_MS) if one >= time_ms]


def test_the_timers_of_a_snapshot_are_a_table_though_some_are_beyond_its_calendar(folder: Path) -> None:
    lived.live_on(folder, APP)
    log = EmbeddedLog(folder / "log", create=False)
    try:
        take_snapshot(app.plan(), log, Snapshots(str(folder / "snapshots"), "old"), TakingOptions())
    finally:
        log.close()
    rows = answer(snapshot=folder / "snapshots", app="old", table="timers", actor="Timers").rows
    times = {row["name"]: row["time"] for row in rows if row["name"] is not None}
    assert {name: round(time.timestamp() * 1_000) for name, time in times.items()} == {
        f"far:{time_ms}": time_ms + FAR_MS for time_ms in TIMES_MS
    }
    assert [row["time"] for row in rows if row["name"] is None] == [None] * len(TIMES_MS)
