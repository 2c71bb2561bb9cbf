"""Rows become tables and come back exactly, whatever bytes they are made of."""

import random
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError, UsageError
from tailrace.state.snapshots import Place, Snapshots, reading, write_task
from tailrace.state.snapshots.arrow import compute
from tests.state.snapshots.making import published, records, some_rows, state_rows


@given(state_rows, st.lists(records, max_size=5))
def test_rows_and_messages_come_back_as_they_were(task, messages) -> None:
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Snapshots(folder, "flights")
        published(snapshots, [task], messages=messages)
        snapshot = snapshots.open()
        assert list(snapshot.rows(0)) == sorted(task.items())
        assert list(snapshot.messages(0)) == messages
        assert snapshot.verify() == []


@pytest.mark.parametrize("groups", [{"rows_in_a_group": 300}, {"bytes_in_a_group": 1000}])
def test_rows_of_many_groups_come_back_in_order(tmp_path: Path, groups: dict[str, int]) -> None:
    task = some_rows(2000)
    snapshots = Snapshots(str(tmp_path), "flights")
    published(snapshots, [task], groups=groups)
    assert len(list(snapshots.open().batches("state"))) > 10
    assert list(snapshots.open().rows(0)) == list(task.items())


def test_a_large_file_is_fetched_a_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_HELD_IN_MEMORY", 0)
    fetched: list[int] = []

    class Counting(FileIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(-1 if size is None else size) or b""
            fetched[-1] += len(found)
            return found

    @contextmanager
    def counted(place: Place) -> Generator[FileIO]:
        fetched.append(0)
        with Counting(place.path) as stream:
            yield stream

    task = {
        row: value + random.Random(row).randbytes(1000)
        for row, value in some_rows(1000).items()
        if not row.endswith(b"overdue")
    }
    snapshots = Snapshots(str(tmp_path), "flights")
    manifest = published(snapshots, [task], groups={"bytes_in_a_group": 1000})
    snapshot = snapshots.open()
    monkeypatch.setattr(Place, "open", counted)
    chunks = snapshot.chunks(0)
    first, _ = next(chunks)
    (file,) = manifest.tasks[0].files
    assert fetched[0] == file.bytes  # for its checksum
    assert 0 < fetched[1] < file.bytes / 2
    assert [*first, *(row for rows, _ in chunks for row in rows)] == list(task)


def test_index_rows_and_own_rows_of_a_store_are_left_out(tmp_path: Path) -> None:
    task = some_rows(3)
    own = {rows.CUT_ROW: b"cut", rows.SCHEMA_ROW: b"schema", rows.index_row(0, 5, b"A", b"k", b"n"): b""}
    snapshots = Snapshots(str(tmp_path), "flights")
    published(snapshots, [task | own])
    assert list(snapshots.open().rows(0)) == list(task.items())


def test_a_task_without_rows_has_no_files(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path), "flights")
    manifest = published(snapshots, [{}, some_rows(1)])
    assert manifest.tasks[0].files == ()
    assert list(snapshots.open().rows(0)) == []
    assert list(snapshots.open().messages(0)) == []


def test_the_columns_say_what_a_row_is(tmp_path: Path) -> None:
    begin = rows.actor_prefix("Aircraft") + rows.escaped(b"a\0b")
    task = {
        begin: rows.value_head({(0, b"nsoon"): rows.Timer(4, b"7", 0, b"more")}) + b"value",
        begin + b"lseen\0": b"-bounds",
        begin + b"lseen\0" + b"\0\1": b"-item",
        begin + b"mper_port\0": b"-empty key",
        begin + b"mper_port\0JFK": rows.pack_entry(b"entry", 1, 1234),
        rows.timer_row(begin, 1, b"overdue"): rows.encode_timer(rows.Timer(5, b"\xff" * 16, 3, None, 9)),
    }
    snapshots = Snapshots(str(tmp_path), "flights")
    published(snapshots, [task])
    state = [row for batch in snapshots.open().batches("state") for row in batch.to_pylist()]
    assert {row["actor"] for row in state} == {"Aircraft"}
    assert {row["key"] for row in state} == {b"a\0b"}
    assert [(row["kind"], row["field"], row["entry"], row["value"], row["expiry_ms"]) for row in state] == [
        ("value", None, None, task[begin], None),
        ("list", "seen", None, b"-bounds", None),
        ("item", "seen", b"\0\1", b"-item", None),
        ("entry", "per_port", b"", b"-empty key", None),
        ("entry", "per_port", b"JFK", task[begin + b"mper_port\0JFK"], 1234),
    ]
    (timers,) = snapshots.open().batches("timers")
    assert timers.to_pylist() == [
        {
            "actor": "Aircraft",
            "key": b"a\0b",
            "domain": "event",
            "name": b"nsoon",
            "time_ms": 4,
            "cause": b"7",
            "depth": 0,
            "payload": b"more",
            "decided_ms": None,
            "inside": True,
        },
        {
            "actor": "Aircraft",
            "key": b"a\0b",
            "domain": "processing",
            "name": b"overdue",
            "time_ms": 5,
            "cause": b"\xff" * 16,
            "depth": 3,
            "payload": None,
            "decided_ms": 9,
            "inside": False,
        },
    ]


def test_columns_partitions_and_filters_narrow_what_is_read(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path), "flights")
    published(snapshots, [some_rows(5, "A"), some_rows(5, "B")])
    snapshot = snapshots.open()
    found = snapshot.batches("state", 1, ["key", "kind"], compute.field("kind") == "value")
    assert [row for batch in found for row in batch.to_pylist()] == [
        {"key": b"B%05d" % number, "kind": "value"} for number in range(5)
    ]
    later = snapshot.batches("timers", columns=["key"], filter=compute.field("time_ms") >= 1004)
    assert [row["key"] for batch in later for row in batch.to_pylist()] == [b"A00004", b"B00004"]


@pytest.mark.parametrize(
    "row",
    [
        *(b"x", b"sA", b"sA\0key", b"sA\0key\0", b"sA\0k\0\1ey\0\0", b"sA\0key\0\0?"),
        *(b"sA\0key\0\0lno-end", b"sA\0key\0\0t\2name", b"sA\0key\0\0t"),
    ],
)
def test_a_row_of_no_known_form_is_refused(tmp_path: Path, row: bytes) -> None:
    value = rows.encode_timer(rows.Timer(1, b"2"))
    with pytest.raises(CorruptStateError):
        write_task(str(tmp_path), 0, "a", [(row, value)])
    assert list(tmp_path.iterdir()) == []


def test_rows_out_of_order_are_refused_within_a_group_and_between_groups(tmp_path: Path) -> None:
    task = list(some_rows(300).items())
    for size in (100_000, 256):
        for wrong in ([*task[:256], task[255]], [*task, task[0]], [task[1], task[0]]):
            with pytest.raises(UsageError, match="ascending"):
                write_task(str(tmp_path), 0, "a", wrong, rows_in_a_group=size)
    with pytest.raises(UsageError, match="ascending"):
        write_task(str(tmp_path), 0, "a", [], deleted=[b"b", b"a"])
    assert list(tmp_path.iterdir()) == []


def test_the_same_rows_make_the_same_files(tmp_path: Path) -> None:
    task = list(some_rows(500).items())
    first, second = (write_task(str(tmp_path / name), 0, "a", task) for name in ("one", "two"))
    assert first == second


def test_two_attempts_at_a_task_touch_different_files(tmp_path: Path) -> None:
    task = list(some_rows().items())
    first, second = (write_task(str(tmp_path), 0, attempt, task) for attempt in ("a", "b"))
    assert not {file.name for file in first} & {file.name for file in second}
    with pytest.raises(UsageError):
        write_task(str(tmp_path), 0, "../a", task)
