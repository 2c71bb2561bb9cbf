"""Tables of Delta Lake and Iceberg: the same rows and types as those of Parquet."""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest
from deltalake import DeltaTable

from tailrace.core.errors import ExportError, MissingExtraError, OptionError, UsageError
from tailrace.core.extras import ExtraModule
from tailrace.history.rebuilding.request import Source
from tailrace.lab import files, formats
from tailrace.lab.export import Destination, ExportReport, History, StateOptions, export_state, export_topics
from tailrace.lab.points import export_points
from tailrace.testing import Harness
from tests.history.rebuilding import lived
from tests.lab import yard

NAMES = ["Slot", "Slot_by", "Slot_recent", "timers"]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Readers of Iceberg open catalogues of their own, which nobody closes: they are collected here, and not in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def life() -> Iterator[Harness]:
    h, _ = yard.lived(seed=1)
    with h:
        yield h


def export(h: Harness, folder: Path, format: formats.Format) -> ExportReport:
    return export_state(h.plan, h.log, Destination(folder, format), StateOptions(timers=True))


def rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def bare(type_: Any) -> str:
    """A type without the names of the parts of lists and maps, nor which may be null, nor sizes of offsets."""
    text = str(type_).replace("large_", "").replace(" not null", "")
    return re.sub(r" \('\w+'\)", "", text.replace("list<element:", "list<item:"))


def same(found: Any, expected: Any) -> None:
    assert found.column_names == expected.column_names
    assert [*map(bare, found.schema.types)] == [*map(bare, expected.schema.types)]
    assert rows(found) == rows(expected)


@pytest.fixture(scope="module")
def parquet(life: Harness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet") / "out"
    export(life, folder, "parquet")
    return folder


def test_delta_has_the_rows_and_types(tmp_path: Path, life: Harness, parquet: Path) -> None:
    report = export(life, tmp_path / "out", "delta")
    assert [one.name for one in report.tables] == NAMES
    for name in NAMES:
        found = DeltaTable(tmp_path / "out" / name)
        assert found.version() == 0
        same(pa.table(found.to_pyarrow_table()), pq.read_table(parquet / name))
    frame = pl.read_delta(str(tmp_path / "out" / "Slot"))
    assert frame["count"].sum() == 200
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [*NAMES[:3], "manifest.json", "timers"]


def test_iceberg_has_the_rows_and_types(tmp_path: Path, life: Harness, parquet: Path, monkeypatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    monkeypatch.setattr(files, "ROWS_IN_A_FILE", 7)
    tmp_path = tmp_path / "a ü"
    export(life, tmp_path / "out", "iceberg")
    assert [one.name for one in tmp_path.parent.iterdir()] == ["a ü"]
    from pyiceberg.catalog.sql import SqlCatalog  # takes two seconds, in each worker if it stood above

    with closing(SqlCatalog("tailrace", uri=f"sqlite:///{tmp_path}/out/catalog.db")) as catalogue:
        assert sorted(catalogue.list_tables("yard")) == [("yard", name) for name in NAMES]
        for name in NAMES:
            table = catalogue.load_table(("yard", name))
            same(table.scan().to_arrow(), pq.read_table(parquet / name))
        assert pl.scan_iceberg(catalogue.load_table(("yard", "Slot"))).collect()["count"].sum() == 200
    assert not (tmp_path / ".out.export").exists()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_topic_and_an_empty_one(tmp_path: Path, life: Harness, format: formats.Format) -> None:
    report = export_topics(life.plan, life.log, Destination(tmp_path / "out", format), ["moves", "moved"])
    assert [one.rows for one in report.tables] == [200, 200]
    assert (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_type_that_the_format_does_not_have_is_refused(tmp_path: Path, format: formats.Format) -> None:
    """A column of a file of points may have any type."""
    lived.append(tmp_path, [], {"moves": 3})
    history = History(app="tests.lab.yard:app", source=Source(log=str(tmp_path / "log")), workers=1)
    strange, time = pa.array([0], pa.time64("ns")), pa.array([0], pa.timestamp("ms"))
    pq.write_table(
        pa.table({"key_1": ["Riga"], "key_2": [1], "time": time, "odd": strange}), tmp_path / "points"
    )
    with pytest.raises(UsageError, match="Slot cannot be a table of"):
        export_points(
            yard.app.plan(), history, Destination(tmp_path / "out", format), (), tmp_path / "points"
        )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log", "points"]


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_path_that_would_be_read_as_a_uri_is_refused(
    tmp_path: Path, life: Harness, format: formats.Format, name: str
) -> None:
    with pytest.raises(OptionError, match="reads paths as URIs"):
        export(life, tmp_path / name, format)
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, life: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setattr(formats, "_deltalake", ExtraModule("deltalake", "Delta tables", "delta"))
    with pytest.raises(MissingExtraError, match=r"tailrace\[delta\]"):
        export(life, tmp_path / "out", "delta")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_iceberg_leaves_nothing(
    tmp_path: Path, life: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(formats, "_append", full)
    with pytest.raises(ExportError, match="the disk is full"):
        export(life, tmp_path / "out", "iceberg")
    assert list(tmp_path.iterdir()) == []
