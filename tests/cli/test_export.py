"""``tailrace export``: what it says, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
import pytest

from tests.cli import shop
from tests.cli.commands import SHOP, cleaned, done, run
from tests.cli.shop import Purchase


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A log that the shop has run on."""
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    lines = b"\n".join(map(shop.purchases.encode, [Purchase("a", 1, 4), Purchase("b", 2, 5)]))
    done("log", "append", "purchases", "--app", SHOP, "--log", tmp_path / "log", stdin=lines)
    run("run", SHOP, "--until-end", "--log", tmp_path / "log", "--state", tmp_path / "state")
    return tmp_path


def export(place: Path, *arguments: object, name: str = "out"):
    return run("export", SHOP, "--log", place / "log", "--to", "parquet", place / name, *arguments)


def test_it_says_what_it_has_written(place: Path) -> None:
    assert export(place).out == "Customer: 2 rows in 1 file\n"
    assert sorted(one.name for one in (place / "out").iterdir()) == ["Customer", "manifest.json"]
    done("snapshot", "create", SHOP, "--log", place / "log", "--snapshots", place / "snaps", "--name", "now")
    ended = export(place, "--snapshot", f"{place}/snaps#now", "--timers", name="then")
    assert ended.out == "Customer: 2 rows in 1 file\ntimers: 0 rows in 1 file\n"


def test_records_that_are_left_out_are_exit_code_3(place: Path) -> None:
    append = ("log", "append", "purchases", "--key", "customer", "--log", place / "log")
    done(*append, stdin=b'{"customer": "a"}\n')
    ended = export(place, "--topic", "purchases")
    assert ended.code == 3
    assert "purchases: 2 rows in 1 file\nnote: left out: purchases partition" in ended.out
    assert "1 record cannot be decoded" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--topic", "totals", "--timers"), 2, "--actor and --timers are about state"),
        (("--topic", "totals", "--as-of", "1ms"), 2, "Give one of --topic, --snapshot, --as-of and --at"),
        (("--actor", "Custumer"), 1, "has no actor 'Custumer'. Did you mean 'Customer'?"),
        (("--topic", "shop.tape"), 1, "declares no such topic"),
        (("--snapshot", "nowhere"), 1, "no snapshot"),
    ],
)
def test_what_makes_no_sense_is_refused(
    place: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = export(place, *arguments)
    assert (ended.code, said in ended.err) == (code, True), ended.err
    assert not (place / "out").exists()


def test_the_folder_of_the_log_is_refused(place: Path) -> None:
    ended = export(place, name="log/out")
    assert (ended.code, "in the log's folder" in ended.err) == (2, True)


def test_an_app_that_has_never_run_has_no_state(tmp_path: Path) -> None:
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    ended = export(tmp_path)
    assert (ended.code, "has never committed" in ended.err) == (1, True)
    assert [one.name for one in tmp_path.iterdir()] == ["log"]


def test_state_as_of_a_time_and_at_points(place: Path) -> None:
    ended = export(place, "--as-of", "1ms", "--workers", 1)
    note = "note: as of 1970-01-01T00:00:00.001Z: in stages, without events from after this time\n"
    assert ended.out == f"Customer: 1 row in 1 file\n{note}"
    times = pa.array([1, 1], pa.timestamp("ms"))
    pq.write_table(pa.table({"key": ["a", "b"], "time": times}), place / "points.parquet")
    ended = export(place, "--at", place / "points.parquet", "--workers", 1, name="at")
    without = "note: 1 row without state at the time: nulls\n"
    assert ended.out == f"Customer: 2 rows in 1 file\n{note}{without}"
    rows = pq.read_table(place / "at" / "Customer").to_pylist()
    assert [(row["key"], row["cents"]) for row in rows] == [("a", 4), ("b", None)]


def test_what_the_log_has_deleted_is_exported_from_its_archive(place: Path) -> None:
    as_of, topic = ("--as-of", "2026-01-01"), ("--topic", "purchases")
    expected = [export(place, *one, name=f"before-{one[1]}").out for one in (as_of, topic)]
    done("archive", "--log", place / "log", "--to", place / "archive")
    cleaned(place / "log", "purchases")
    assert export(place, *as_of, name="alone").code == 1
    assert not (place / "alone").exists()
    archive = ("--archive", place / "archive")
    assert [export(place, *one, *archive, name=one[1]).out for one in (as_of, topic)] == expected
    for table in ("2026-01-01/Customer", "purchases/purchases"):
        assert pq.read_table(place / table).equals(pq.read_table(place / f"before-{table}"))
    # The last state is in the log itself: an archive, even one that is not there, is not asked.
    assert export(place, "--archive", place / "nowhere").out == "Customer: 2 rows in 1 file\n"
    sql = ("sql", SHOP, "--log", place / "log", "select count(*) as n from purchases")
    assert (run(*sql).out, run(*sql, *archive).out) == ("n\n0\n", "n\n2\n")
