"""Exports compared with plain Python over all events, and read by every tool that they are for."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
import polars as pl
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest
from filelock import FileLock

from tailrace.core.errors import ExportError, OptionError, UnknownTopicError, UsageError
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.lab import files
from tailrace.lab.export import Destination, StateOptions, export_state, export_topics
from tailrace.state.snapshots import Snapshots
from tailrace.testing import Harness
from tests.lab import yard

ALL = StateOptions()


@pytest.fixture(scope="module")
def life() -> Iterator[tuple[Harness, list[yard.Move]]]:
    h, events = yard.lived(seed=1)
    with h:
        yield h, events


def micros(took: timedelta) -> int:
    return took // timedelta(microseconds=1)


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return rows


def slots(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The exported fields of each key, with its map and its list."""
    found = {}
    for row in table(folder / "Slot"):
        del row["as_of"], row["share"]
        key = row.pop("key_1"), row.pop("key_2")
        told = {"weight": Decimal(row["weight"]), "ratio-of": yard.told(row["ratio-of"])}
        found[key] = {**row, **told, "by": {}, "recent": []}
    for row in table(folder / "Slot_by"):
        found[row["key_1"], row["key_2"]]["by"][row["entry_1"], row["entry_2"]] = row["value"]
    for row in table(folder / "Slot_recent"):
        of_key = found[row["key_1"], row["key_2"]]["recent"]
        assert row["position"] == len(of_key)
        of_key.append(row["value"])
    return found


@pytest.mark.one_seed_in(10)
def test_the_state_is_that_of_all_events(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        h, events = yard.lived(seed, 120)
        with h:
            report = export_state(h.plan, h.log, Destination(tmp_path / str(seed)), ALL)
        assert slots(tmp_path / str(seed)) == yard.expected(events)
        wanted = {"Slot": ["note"], "Slot_by": [], "Slot_recent": []}
        assert {one.name: one.json_columns for one in report.tables} == wanted


def test_columns_have_the_types_of_their_fields(tmp_path: Path, life) -> None:
    h, _ = life
    report = export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    assert report.tables[0].columns == {
        "key_1": "string",
        "key_2": "int64",
        "as_of": "timestamp[us, tz=UTC]",
        "_kind": "int64",
        "amount": "string",
        "count": "int64",
        "gaps": "map<string, list<item: int64>>",
        "kind": "string",
        "last": "timestamp[us, tz=UTC]",
        "note": "string",
        "ratio-of": "double",
        "share": "double",
        "spot": "struct<row: int64, zone: string, since: int64>",
        "took": "int64",
        "weight": "string",
    }
    manifest = json.loads((tmp_path / "out" / files.MANIFEST).read_text())
    assert manifest == msgspec.to_builtins(report)


def test_all_tools_read_equal_types_and_sums(tmp_path: Path, life) -> None:
    h, events = life
    export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    path = f"{tmp_path}/out/Slot/*.parquet"
    moves = len(events)
    took = sum(micros(one.took) for one in events)
    last = max(one.at for one in events)
    frame = pd.read_parquet(tmp_path / "out" / "Slot")
    assert (frame["count"].sum(), frame.took.sum()) == (moves, took)
    assert str(frame["last"].dtype) == "datetime64[us, UTC]"
    polars = pl.read_parquet(path)
    wanted = (moves, took, frame["last"].max())
    assert (polars["count"].sum(), polars["took"].sum(), polars["last"].max()) == wanted
    assert polars.schema["spot"] == pl.Struct({"row": pl.Int64, "zone": pl.String, "since": pl.Int64})
    with duckdb.connect() as db:
        found = db.sql(
            f"select sum(\"count\"), sum(took), epoch_us(max(last)), sum(spot.row) from '{path}'"
        ).fetchall()[0]
        types = dict(
            db.sql(f"select column_name, column_type from (describe select * from '{path}')").fetchall()
        )
    rows = sum(one["spot"]["row"] for one in yard.expected(events).values())
    assert found == (moves, took, frame["last"].max().value // 1000, rows)
    assert frame["last"].max() <= pd.Timestamp(last)
    assert types["spot"] == 'STRUCT("row" BIGINT, "zone" VARCHAR, since BIGINT)'
    assert types["last"] == "TIMESTAMP WITH TIME ZONE"


def test_a_topic_has_a_row_for_each_record(tmp_path: Path, life) -> None:
    h, events = life
    report = export_topics(h.plan, h.log, Destination(tmp_path / "out"), ["moves", "moved"])
    assert [(one.name, one.rows) for one in report.tables] == [("moves", 200), ("moved", 200)]
    rows = table(tmp_path / "out" / "moves")
    places = [(row["_partition"], row["_offset"]) for row in rows]
    assert places == sorted(places)
    by_place: dict[int, list[yard.Move]] = {0: [], 1: [], 2: []}
    found = []
    for row in rows:
        assert (row["_key_1"], row["_key_2"]) == (row["yard"], row["slot"])
        assert row["_time"] == row["at"].replace(microsecond=row["at"].microsecond // 1000 * 1000)
        by_place[row["_partition"]].append(row["at"])
        found.append(
            (
                *(row["yard"], row["slot"], row["at"], row["kind"], Decimal(row["weight"])),
                *(row["took"], row["tags"], row["note"], row["ratio"], row["amount"]),
            )
        )
    expected = [
        (
            *msgspec.structs.astuple(one)[:3],
            one.kind.value,
            one.weight,
            micros(one.took),
            one.tags,
            yard.json_of(one.note),
            one.ratio,
            None if one.amount is None else str(one.amount),
        )
        for one in events
    ]

    def place_of(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return *row[:2], row[2].timestamp(), repr(row[3:])

    assert sorted(found, key=place_of) == sorted(expected, key=place_of)


def test_a_snapshot_is_exported_as_it_was(tmp_path: Path) -> None:
    h, events = yard.lived(seed=2)
    with h:
        snapshots = Snapshots(str(tmp_path / "snaps"), "yard")
        made = take_snapshot(h.plan, h.log, snapshots)
        h.send(yard.moves, *yard.history(3))
        h.commit()
        report = export_state(h.plan, f"{tmp_path}/snaps#{made.id}", Destination(tmp_path / "out"), ALL)
        assert report.source == f"snapshot {made.id}"
    assert slots(tmp_path / "out") == yard.expected(events)


def test_timers_are_exported_on_request(tmp_path: Path, life) -> None:
    h, events = life
    export_state(h.plan, h.log, Destination(tmp_path / "out"), StateOptions(timers=True))
    last = {
        json.dumps([*key], ensure_ascii=False, separators=(",", ":")): one["last"]
        for key, one in yard.expected(events).items()
    }
    rows = table(tmp_path / "out" / "timers")
    assert {row["key"]: row["time"] - timedelta(hours=1) for row in rows}.items() <= last.items()
    assert {(row["actor"], row["domain"], row["name"]) for row in rows} == {("Slot", "event", "quiet")}
    assert len(rows) == sum(row["share"] != -1.0 for row in table(tmp_path / "out" / "Slot")) > 0


def test_files_are_bounded_sorted_and_have_statistics(tmp_path: Path, life, monkeypatch) -> None:
    h, events = life
    monkeypatch.setattr(files, "ROWS_IN_A_FILE", 7)
    export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    parts = sorted((tmp_path / "out" / "Slot").iterdir())
    assert len(parts) >= 2
    for part in parts:
        read = pq.read_table(part)
        keys = list(zip(read["key_1"].to_pylist(), read["key_2"].to_pylist(), strict=True))
        assert 0 < len(keys) <= 7
        assert keys == sorted(keys)
        statistics = pq.ParquetFile(part).metadata.row_group(0).column(0).statistics
        assert (statistics.min, statistics.max) == (keys[0][0], keys[-1][0])
    assert slots(tmp_path / "out") == yard.expected(events)


def test_an_app_without_rows_has_the_columns(tmp_path: Path) -> None:
    with Harness(yard.app, partitions=3) as h:
        h.advance_watermark(5)
        h.commit()
        report = export_topics(h.plan, h.log, Destination(tmp_path / "out"), ["moved"])
    assert report.tables[0].rows == 0
    wanted = ["yard", "moves", "_key", "_partition", "_offset", "_time"]
    assert pq.read_table(tmp_path / "out" / "moved").column_names == wanted


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, life) -> None:
    h, _ = life
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(OptionError, match="something in"):
        export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    assert [one.name for one in tmp_path.rglob("*")] == ["out", "mine"]
    (tmp_path / "out" / "mine").unlink()
    export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    assert (tmp_path / "out" / files.MANIFEST).exists()


def test_an_export_that_runs_is_named_and_what_one_that_was_killed_has_left_is_removed(
    tmp_path: Path, life
) -> None:
    h, _ = life
    hidden = tmp_path / ".out.export"
    (hidden / "new" / "Slot").mkdir(parents=True)
    (hidden / "new" / "Slot" / "part-00000.parquet").write_text("half")
    with FileLock(hidden / "lock"), pytest.raises(OptionError, match="another command writes into"):
        export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    assert (hidden / "new" / "Slot").is_dir()
    export_state(h.plan, h.log, Destination(tmp_path / "out"), ALL)
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    assert "lock" not in {one.name for one in (tmp_path / "out").iterdir()}


def test_a_full_disk_publishes_nothing(tmp_path: Path, life, monkeypatch) -> None:
    h, _ = life

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match=r"the disk is full.*nothing was published"):
        export_topics(h.plan, h.log, Destination(tmp_path / "out"), ["moves"])
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_exist_is_named_before_anything_is_written(tmp_path: Path, life) -> None:
    h, _ = life
    with pytest.raises(UsageError, match=r"no actor 'Slots'. Did you mean 'Slot'"):
        export_state(h.plan, h.log, Destination(tmp_path / "out"), StateOptions(actors=("Slots",)))
    with pytest.raises(UnknownTopicError, match="no such topic"):
        export_topics(h.plan, h.log, Destination(tmp_path / "out"), ["yard.changelog"])
    assert list(tmp_path.iterdir()) == []


def test_records_that_cannot_be_decoded_are_counted(tmp_path: Path) -> None:
    h, _ = yard.lived(seed=4, count=20)
    with h:
        for value in (b"{}", b"no JSON"):
            h.send_raw(yard.moves, value, key=b'["Riga",1]')
        report = export_topics(h.plan, h.log, Destination(tmp_path / "out"), ["moves"])
        assert len(h.dead_letters()) == 2
    assert (report.tables[0].rows, report.skipped) == (20, 2)
    assert [one for one in report.notes if "left out: moves partition" in one]
