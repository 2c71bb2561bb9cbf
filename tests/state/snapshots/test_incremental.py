"""An incremental snapshot says what changed since its parent; read through its parents it is the whole."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core import rows
from tailrace.core.errors import AlteredSnapshotError, SnapshotError, UnknownSnapshotError, UsageError
from tailrace.state.snapshots import Manifest, Place, Snapshots
from tailrace.state.snapshots.arrow import compute
from tailrace.state.snapshots.reading import overlaid
from tests.state.snapshots.making import manifest_of, published, some_rows, state_rows


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(str(tmp_path), "flights")


def upon(snapshots: Snapshots, parent: Manifest, task: dict[bytes, bytes], gone=(), **about) -> Manifest:
    return published(snapshots, [task], deleted=sorted(gone), kind="incremental", parent=parent.id, **about)


# Which rows each level deletes is drawn as places in the rows there are; a row that no parent has may be named too.
levels = st.lists(st.tuples(state_rows, st.sets(st.integers(0, 30))), max_size=4)


@given(state_rows, levels)
def test_a_chain_is_read_as_the_whole_that_it_stands_for(first, changes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Snapshots(folder, "flights")
        parent, model = published(snapshots, [first]), dict(first)
        for changed, places in changes:
            there = sorted(model)
            gone = {there[place] for place in places if place < len(there)} - changed.keys() | {
                b"sZ\0never\0\0"
            }
            parent = upon(snapshots, parent, changed, gone)
            model = {row: value for row, value in model.items() if row not in gone} | changed
        snapshot = snapshots.open(parent.id)
        assert list(snapshot.rows(0)) == sorted(model.items())
        counted = sum(batch.num_rows for table in ("state", "timers") for batch in snapshot.batches(table))
        inside = [
            rows.timers_inside(value) for row, value in model.items() if not rows.read_state_row(row).rest
        ]
        assert counted == len(model) + sum(map(len, inside))
        assert len(snapshot.chain) == 1 + len(changes)
        assert snapshot.verify() == []


@given(
    st.dictionaries(st.binary(max_size=2), st.binary(max_size=1), max_size=30),
    st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=1), max_size=30),
    st.integers(1, 7),
    st.integers(1, 7),
    st.booleans(),
)
def test_overlaying_is_updating_a_dict(base, changes, base_size, change_size, keep_deleted) -> None:
    found = overlaid(cut_up(base, base_size), cut_up(changes, change_size), keep_deleted=keep_deleted)
    pairs = [pair for keys, values in found for pair in zip(keys, values, strict=True)]
    assert pairs == sorted(
        (row, value) for row, value in (base | changes).items() if keep_deleted or value is not None
    )


def cut_up(rows, size):
    pairs = sorted(rows.items())
    for start in range(0, len(pairs), size):
        keys, values = zip(*pairs[start : start + size], strict=True)
        yield list(keys), list(values)


def test_a_changed_table_is_filtered_as_the_whole(snapshots: Snapshots) -> None:
    parent = published(snapshots, [some_rows(4)])
    changed = {row: b"\x31other" for row in some_rows(4) if row[-8:] == b"N00002\0\0"}
    upon(snapshots, parent, changed, [row for row in some_rows(4) if b"N00003" in row])
    found = snapshots.open().batches(
        "state", columns=["key", "value"], filter=compute.field("kind") == "value"
    )
    wanted = [(b"N00000", b"\x31value"), (b"N00001", b"\x31value"), (b"N00002", b"\x31other")]
    assert [tuple(row.values()) for batch in found for row in batch.to_pylist()] == wanted


# --- what a chain must be ---


def test_an_incremental_snapshot_without_its_parent_is_refused(snapshots: Snapshots) -> None:
    with pytest.raises(AlteredSnapshotError, match="'gone'"):
        published(snapshots, kind="incremental", parent="gone")
    with pytest.raises(UsageError):
        published(snapshots, kind="incremental")
    with pytest.raises(UsageError):
        published(snapshots, parent=published(snapshots).id)
    assert len(snapshots.list()) == 1


def test_a_parent_of_another_number_of_partitions_is_refused(snapshots: Snapshots) -> None:
    parent = published(snapshots, [{}, {}])
    with pytest.raises(SnapshotError, match="2 partitions, not 1"):
        upon(snapshots, parent, some_rows())


def test_a_chain_that_lost_its_middle_is_told(snapshots: Snapshots, tmp_path: Path) -> None:
    first = published(snapshots)
    second = upon(snapshots, first, some_rows(1))
    third = upon(snapshots, second, some_rows(1))
    (tmp_path / "flights" / second.id / "manifest.json").unlink()
    with pytest.raises(AlteredSnapshotError, match=second.id):
        snapshots.open(third.id)
    assert snapshots.open(first.id).manifest == first


def test_a_snapshot_that_others_build_upon_is_deleted_only_with_them(snapshots: Snapshots) -> None:
    first = published(snapshots)
    second = upon(snapshots, first, some_rows(1))
    third = upon(snapshots, second, some_rows(1))
    with pytest.raises(SnapshotError, match=second.id):
        snapshots.delete(first.id)
    assert [each.id for each in snapshots.list()] == [first.id, second.id, third.id]
    assert list(snapshots.open(third.id).rows(0)) == list(some_rows().items())
    assert snapshots.delete(first.id, dependants=True) == [third.id, second.id, first.id]
    assert snapshots.list() == []
    with pytest.raises(UnknownSnapshotError):
        snapshots.delete(first.id)


def test_a_child_published_while_its_parent_is_deleted_keeps_it_or_is_withdrawn(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = published(snapshots)
    child = manifest_of(snapshots, "child", 5, parent.tasks, kind="incremental", parent=parent.id)
    folder = Path(snapshots.begin("child").folder_uri)

    def draft() -> None:
        for file in parent.tasks[0].files:
            shutil.copy(folder.parent / parent.id / file.name, folder)

    draft()
    remove = Place.remove

    def removed_as_the_child_appears(place):
        monkeypatch.undo()
        published_manifest = snapshots.publish(child)  # its look at the parent comes before the parent goes
        assert published_manifest.parent == parent.id
        return remove(place)

    monkeypatch.setattr(Place, "remove", removed_as_the_child_appears)
    with pytest.raises(SnapshotError, match="'child'"):
        snapshots.delete(parent.id)
    assert list(snapshots.open("child").rows(0)) == list(some_rows().items())

    # And the other way round: the parent goes after the child has looked for it, before the child's manifest is there.
    snapshots.delete("child")
    folder.mkdir()
    draft()
    settle = Place.settle

    def settled_after_a_deletion(place):
        monkeypatch.undo()
        snapshots.delete(parent.id)
        settle(place)

    monkeypatch.setattr(Place, "settle", settled_after_a_deletion)
    with pytest.raises(AlteredSnapshotError, match=parent.id):
        snapshots.publish(child)
    assert snapshots.list() == []


def test_an_incremental_snapshot_is_newer_than_its_parent_whatever_the_clocks_said(
    snapshots: Snapshots,
) -> None:
    first = published(snapshots, id="b", created_ms=9)
    second = upon(snapshots, first, some_rows(1), id="a", created_ms=9)
    third = upon(snapshots, second, some_rows(1), id="0", created_ms=3)
    assert snapshots.list() == [first, second, third]
    assert snapshots.open().manifest == third


# --- retention ---


def test_retention_keeps_the_newest_automatic_ones_what_they_build_upon_and_savepoints(
    snapshots: Snapshots,
) -> None:
    def automatic(number: int, parent: Manifest | None = None, **about) -> Manifest:
        if parent is not None:
            about |= {"kind": "incremental", "parent": parent.id}
        return published(
            snapshots, [some_rows(1)], id=f"s{number}", created_ms=number, automatic=True, **about
        )

    one = automatic(1)
    two = automatic(2, one)
    automatic(3, two)
    four = automatic(4)
    published(snapshots, id="s5", created_ms=5)
    automatic(6, name="v1", parent=four)
    automatic(7)
    automatic(8, automatic(9))
    assert snapshots.keep(2) == ["s7", "s3", "s2", "s1"]
    assert [each.id for each in snapshots.list()] == ["s4", "s5", "s6", "s9", "s8"]
    assert snapshots.keep(2) == []
    assert snapshots.keep(0) == ["s8", "s9"]
    assert [each.id for each in snapshots.list()] == ["s4", "s5", "s6"]


def test_retention_does_not_delete_what_is_made_after_a_clock_that_was_ahead_was_set_right(
    snapshots: Snapshots,
) -> None:
    now_ms, day_ms = time.time_ns() // 1_000_000, 86_400_000
    for number, created_ms in enumerate([now_ms + day_ms, now_ms + day_ms + 1, now_ms - 1, now_ms + 1_000]):
        published(snapshots, [some_rows(1)], id=f"s{number}", created_ms=created_ms, automatic=True)
    assert snapshots.keep(3) == ["s0"]
    assert snapshots.keep(2) == ["s1"]
    assert {each.id for each in snapshots.list()} == {"s2", "s3"}
