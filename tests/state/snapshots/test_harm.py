"""What happens to the files of a snapshot is noticed before anything of it is believed."""

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import AlteredSnapshotError, SnapshotError, SnapshotUnavailableError
from tailrace.core.records import InputRecord
from tailrace.state.snapshots import Snapshots, arrow, manifest, reading
from tailrace.state.snapshots.arrow import pa, parquet
from tests.state.snapshots.making import published, some_rows

MESSAGE = InputRecord(7, 1_000, b"key", b"value", (("header", b"x"),))


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    snapshots = Snapshots(str(tmp_path), "flights")
    parent = published(snapshots, [some_rows(3), some_rows(2)], id="parent")
    gone = [next(iter(some_rows(3)))]
    published(
        snapshots, [some_rows(3, "X"), {}], id="child", kind="incremental",
        parent=parent.id, messages=[MESSAGE], deleted=gone,
    )  # fmt: skip
    return snapshots


def files(tmp_path: Path) -> list[Path]:
    found = sorted(tmp_path.glob("flights/*/*.parquet"))
    assert {path.name.split("-")[1] for path in found} == {"state", "timers", "messages", "deleted"}
    return found


def test_a_file_that_is_gone_is_missed_by_opening_reading_and_verifying(snapshots, tmp_path: Path) -> None:
    for path in files(tmp_path):
        snapshot, whole = snapshots.open("child"), path.read_bytes()
        path.unlink()
        with pytest.raises(AlteredSnapshotError, match=path.name):
            snapshots.open("child")
        (problem,) = snapshot.verify()
        assert (problem.snapshot, problem.file) == (path.parent.name, path.name)
        assert "missing" in problem.what
        with pytest.raises(AlteredSnapshotError, match=path.name):
            read(snapshot)
        path.write_bytes(whole)
    assert snapshots.open("child").verify() == []


def test_no_byte_of_a_file_can_change_unnoticed(snapshots, tmp_path: Path) -> None:
    snapshot = snapshots.open("child")
    for path in files(tmp_path):
        whole = path.read_bytes()
        for place in range(0, len(whole), 61):
            path.write_bytes(whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :])
            assert [problem.file for problem in snapshot.verify()] == [path.name]
        with pytest.raises(AlteredSnapshotError, match=path.name):
            read(snapshot)
        path.write_bytes(whole[:-1])
        with pytest.raises(AlteredSnapshotError, match="bytes, not"):
            snapshots.open("child")
        path.write_bytes(whole)
    assert snapshot.verify() == []


def read(snapshot) -> None:
    for partition in (0, 1):
        list(snapshot.rows(partition))
        list(snapshot.messages(partition))


def test_a_large_file_is_proven_before_its_first_row_too(snapshots, tmp_path: Path, monkeypatch) -> None:
    table = list(snapshots.open("parent").batches("state", 0))
    monkeypatch.setattr(reading, "_HELD_IN_MEMORY", 10)
    assert list(snapshots.open("parent").batches("state", 0)) == table
    snapshot = snapshots.open("child")
    before = list(snapshot.rows(0))
    path = tmp_path / "flights" / "parent" / "00000-state-a.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes((whole[-20] ^ 1,)) + whole[-19:])
    with pytest.raises(AlteredSnapshotError, match="sha256"):
        next(snapshot.rows(0))
    path.write_bytes(whole)
    assert list(snapshot.rows(0)) == before


def test_no_query_answers_from_a_file_that_was_altered(snapshots, tmp_path: Path) -> None:
    path = tmp_path / "flights" / "parent" / "00000-state-a.parquet"
    whole = path.read_bytes()
    snapshot = snapshots.open("parent")
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :])
        with pytest.raises(AlteredSnapshotError):
            next(snapshot.batches("state", 0))


def test_a_wrong_question_is_not_taken_for_damage(snapshots) -> None:
    with pytest.raises(arrow.pa.ArrowInvalid):
        list(snapshots.open("parent").batches("state", filter=arrow.compute.field("colour") == "red"))


def test_an_error_says_which_snapshot_and_what_to_do(snapshots, tmp_path: Path) -> None:
    (tmp_path / "flights" / "parent" / "00000-state-a.parquet").unlink()
    with pytest.raises(SnapshotError) as caught:
        snapshots.open("child")
    assert "snapshot 'parent'" in str(caught.value)
    assert "rebuild one from the log" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_file_that_is_no_file_is_not_waited_for(snapshots, tmp_path: Path) -> None:
    snapshot, parent = snapshots.open("child"), snapshots.open("parent")
    for path in files(tmp_path):
        whole = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(SnapshotUnavailableError, match="no regular file"):
            snapshot.verify()
        if path.parent.name == "parent":
            with pytest.raises(SnapshotUnavailableError, match="no regular file"):
                list(parent.batches(path.name.split("-")[1]))
        path.unlink()
        path.write_bytes(whole)


def sealed_again(place: Path, file: Path, rows: int | None = None) -> None:
    """The manifest, which has no key, says what the file is now."""
    known, data = manifest.decode((place / "manifest.json").read_bytes(), place.name, ""), file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()

    def renewed(one: manifest.FileInfo) -> manifest.FileInfo:
        given = {"rows": one.rows if rows is None else rows, "bytes": len(data), "sha256": digest}
        return msgspec.structs.replace(one, **given) if one.name == file.name else one

    tasks = tuple(
        msgspec.structs.replace(task, files=tuple(map(renewed, task.files))) for task in known.tasks
    )
    (place / "manifest.json").write_bytes(
        manifest.encode(manifest.sealed(msgspec.structs.replace(known, tasks=tasks)))
    )


def bomb(file: Path) -> None:
    """Some kB for 16 GB: each row has the same value, which is in the file once."""
    table = parquet.read_table(file).slice(0, 1)
    one = pa.array([bytes(8 << 20)], pa.binary())
    value = pa.DictionaryArray.from_arrays(pa.array([0] * 2_000, pa.int32()), one)
    columns = [
        value if name == "value" else pa.array(table.column(name).to_pylist() * 2_000, table.field(name).type)
        for name in table.column_names
    ]
    parquet.write_table(pa.table(columns, table.column_names), file, compression="zstd")


def narrow(file: Path) -> None:
    table = parquet.read_table(file)
    parquet.write_table(table.select(table.column_names[:1]), file)


@pytest.mark.parametrize(
    ("harm", "rows", "said"),
    [
        (bomb, 2_000, "has a part that is larger than any that is written"),
        (narrow, None, "has other columns, or another number of rows"),
        (lambda _: None, 10**18, "has other columns, or another number of rows"),
        (lambda file: file.write_bytes(b"PAR1" + bytes(500) + b"PAR1"), None, "cannot be read"),
    ],
)
def test_what_a_forged_manifest_vouches_for_is_refused_before_it_takes_memory(
    harm: Callable[[Path], Any], rows: int | None, said: str, snapshots, tmp_path: Path
) -> None:
    file = next(one for one in files(tmp_path) if one.parent.name == "parent" and "state" in one.name)
    harm(file)
    sealed_again(file.parent, file, rows)
    (problem,) = snapshots.open("parent").verify()
    assert problem.file == file.name
    assert said in problem.what
    with pytest.raises(AlteredSnapshotError, match=said):
        read(snapshots.open("parent"))
    with pytest.raises(AlteredSnapshotError, match=said):
        next(snapshots.open("parent").batches("state"))
