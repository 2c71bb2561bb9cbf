"""What happens to the files of a snapshot is noticed before anything of it is believed."""

import pickle
from pathlib import Path

import pytest

from tailrace.core.errors import AlteredSnapshotError, SnapshotError
from tailrace.core.records import InputRecord
from tailrace.state.snapshots import Snapshots, arrow, reading
from tests.state.snapshots.making import published, some_rows

MESSAGE = InputRecord(7, 1_000, b"key", b"value", (("header", b"x"),))


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    snapshots = Snapshots(str(tmp_path), "flights")
    parent = published(snapshots, [some_rows(3), some_rows(2)], id="parent")
    gone = [next(iter(some_rows(3)))]
    published(
        snapshots,
        [some_rows(3, "X"), {}],
        id="child",
        kind="incremental",
        parent=parent.id,
        messages=[MESSAGE],
        deleted=gone,
    )
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
    monkeypatch.setattr(reading, "_HELD_IN_MEMORY", 10)
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
