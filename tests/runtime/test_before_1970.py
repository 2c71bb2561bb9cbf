"""Event times before 1970 are carried exactly: by handlers, timers and messages, in log, archive and a rebuild's Parquet files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.stretches import scan
from tailrace.log.archive import Archive, ArchivedLog, archive_log
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import Log
from tailrace.state.snapshots import Place
from tailrace.state.snapshots.arrow import parquet
from tests.history.rebuilding import lived

APP = "tests.runtime.test_before_1970:app"


YEAR_MS = 31_556_952_000
FIRST_MS = -500 * YEAR_MS
TIMES_MS = (FIRST_MS, FIRST_MS + 1, -100 * YEAR_MS - 1, -86_400_001, -86_400_000, -1_001, -1, 0, 1)


class Event(msgspec.Struct, frozen=True):
    key: str
    at: int


class Seen(msgspec.Struct, frozen=True):
    key: str
    what: str
    event_time: int


app = tr.App("before-1970", partitions=1)
events = app.topic("events", Event, key="key", event_time="at", time_range=(FIRST_MS, YEAR_MS))
seen = app.topic("seen", Seen, key="key")


@app.actor
class Old(tr.Actor):
    @tr.process(events)
    def take(self, event: Event, ctx: tr.Context[str]) -> None:
        self.say("event", ctx)
        ctx.set_timer(ctx.event_time - 1)
        ctx.set_timer(FIRST_MS // 2, "half")
        ctx.set_processing_timer(ctx.now)
        ctx.send(Old, ctx.key, event)

    def say(self, what: str, ctx: tr.Context[str]) -> None:
        ctx.emit(seen, Seen(ctx.key, what, ctx.event_time))

    @tr.on_timer
    def due(self, ctx: tr.Context[str]) -> None:
        self.say("timer", ctx)

    @tr.on_timer("half")
    def half(self, ctx: tr.Context[str]) -> None:
        self.say("half", ctx)

    @tr.on_processing_timer
    def rang(self, ctx: tr.Context[str]) -> None:
        self.say("clock", ctx)

    @tr.on_message
    def told(self, message: Event, ctx: tr.Context[str]) -> None:
        self.say("message", ctx)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service has lived on events of these times."""
    path = tmp_path_factory.mktemp("old")
    records = [
        Output("events", b"a", msgspec.json.encode(Event("a", time_ms)), time_ms) for time_ms in TIMES_MS
    ]
    lived.append(path, records, {"events": 1})
    lived.live_on(path, APP)
    return path


def of_topic(log: Log, topic: str) -> list[InputRecord]:
    return list(scan(log, topic, 0))


def test_every_record_bears_the_event_time_of_its_cause(folder: Path) -> None:
    log = EmbeddedLog(folder / "log", create=False)
    try:
        records = of_topic(log, "seen")
        found = [(msgspec.json.decode(one.value or b"", type=Seen), one.timestamp_ms) for one in records]
        assert [event.event_time for event, _ in found] == [time_ms for _, time_ms in found]
        by_cause: dict[str, list[int]] = {}
        for event, time_ms in found:
            by_cause.setdefault(event.what, []).append(time_ms)
        assert by_cause == {
            "event": list(TIMES_MS),
            "timer": [time_ms - 1 for time_ms in TIMES_MS],
            "half": [FIRST_MS // 2] * 7,  # set again by each event that finds it fired
            "clock": list(TIMES_MS),  # the watermark is 1 ms before
            "message": list(TIMES_MS),
        }
    finally:
        log.close()


def test_an_offset_is_found_by_a_time_before_1970(folder: Path) -> None:
    log = EmbeddedLog(folder / "log", create=False)
    try:
        for offset, time_ms in enumerate(TIMES_MS):
            assert log.offset_at("events", 0, time_ms) == offset
    finally:
        log.close()


def test_an_archive_gives_them_back(folder: Path) -> None:
    log = EmbeddedLog(folder / "log", create=False)
    try:
        archive = Archive(Place.at(folder / "archive"))
        archive_log(log, archive, records_per_chunk=4)
        for topic in ("events", "seen"):
            assert of_topic(ArchivedLog(None, Archive(Place.at(folder / "archive"))), topic) == of_topic(
                log, topic
            )
        joined = ArchivedLog(log, Archive(Place.at(folder / "archive")))
        for offset, time_ms in enumerate(TIMES_MS):
            assert joined.offset_at("events", 0, time_ms) == offset
        days = {one.parent.name for one in (folder / "archive" / "topic=events").rglob("*.parquet")}
        assert {"date=1969-12-30", "date=1969-12-31", "date=1970-01-01"} <= days
    finally:
        log.close()


def test_a_rebuild_writes_them_as_parquet(folder: Path, tmp_path: Path) -> None:
    _, snapshot = lived.done(folder, APP, outputs=f"parquet:{tmp_path}")
    found: list[tuple[bytes, int]] = []
    for path in (tmp_path / "before-1970" / snapshot.manifest.id).glob("*.parquet"):
        table = parquet.read_table(path)
        rows = table.set_column(5, "timestamp", table["timestamp"].cast("int64")).to_pylist()
        found += [(row["value"], row["timestamp"]) for row in rows if row["topic"] == "seen"]
    log = EmbeddedLog(folder / "log", create=False)
    try:
        assert found == [(one.value, one.timestamp_ms) for one in of_topic(log, "seen")]
    finally:
        log.close()
