"""A folder is a snapshot from the moment its manifest is there, and is found by whatever names it."""

from pathlib import Path

import pytest

from tailrace.core import errors
from tailrace.state.snapshots import Snapshots, TaskEntry, which_where, write_task
from tailrace.state.snapshots.manifest import FORMAT
from tests.state.snapshots.making import manifest_of, published, some_rows


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(str(tmp_path), "flights")


def draft_of(snapshots: Snapshots, **about):
    draft = snapshots.begin()
    files = write_task(draft.folder_uri, 0, "a", some_rows().items())
    return manifest_of(snapshots, draft.id, draft.created_ms, (TaskEntry(0, b"cut", files=files),), **about)


def test_a_manifest_published_again_is_no_error_and_another_of_its_id_is(snapshots: Snapshots) -> None:
    manifest = draft_of(snapshots)
    assert snapshots.publish(manifest) == snapshots.publish(manifest)
    other = manifest_of(snapshots, manifest.id, manifest.created_ms, manifest.tasks, notes=("another",))
    with pytest.raises(errors.SnapshotError, match="already published"):
        snapshots.publish(other)
    assert snapshots.open().manifest.notes == ()


def test_a_file_that_is_missing_or_of_another_size_is_found_before_publication(snapshots: Snapshots) -> None:
    manifest = draft_of(snapshots)
    path = Path(snapshots.begin(manifest.id).folder_uri) / manifest.tasks[0].files[0].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(errors.AlteredSnapshotError, match="bytes, not"):
        snapshots.publish(manifest)
    path.unlink()
    with pytest.raises(errors.AlteredSnapshotError, match="missing"):
        snapshots.publish(manifest)
    assert snapshots.list() == []
    path.write_bytes(whole)
    snapshots.publish(manifest)


def test_a_snapshot_is_found_by_id_prefix_name_or_as_the_latest(snapshots: Snapshots) -> None:
    first = published(snapshots, id="2026-a1", created_ms=1, name="before-migration")
    second = published(snapshots, id="2026-a2", created_ms=3)
    third = published(snapshots, id="2025-zz", created_ms=2)
    assert snapshots.list() == [first, third, second]
    assert snapshots.open().manifest == snapshots.open("latest").manifest == second
    assert snapshots.open("before-migration").manifest == first
    assert snapshots.open("2026-a1").manifest == first
    assert snapshots.open("2025").manifest == third
    with pytest.raises(errors.UnknownSnapshotError, match="2 snapshots"):
        snapshots.open("2026")
    with pytest.raises(errors.UnknownSnapshotError, match="2026-a2"):
        snapshots.open("nothing")
    with pytest.raises(errors.UnknownSnapshotError):
        snapshots.open("../flights")


@pytest.mark.parametrize(
    ("reference", "place", "which"),
    [
        ("snaps", "snaps", "latest"),
        ("snaps#", "snaps", "latest"),
        ("snaps#before-release", "snaps", "before-release"),
        ("s#1/snaps#20260302T220000000-0a1b2c3d", "s#1/snaps", "20260302T220000000-0a1b2c3d"),
        ("a#b", "a", "b"),
        ("there#b#", "there#b", "latest"),
        ("s3://bucket/p?region=eu-central-1#x", "s3://bucket/p?region=eu-central-1", "x"),
    ],
)
def test_the_last_mark_separates_the_place_from_the_snapshot(reference: str, place: str, which: str) -> None:
    assert which_where(reference) == (place, which)


def test_those_that_are_there_are_named_with_their_names(snapshots: Snapshots) -> None:
    with pytest.raises(
        errors.UnknownSnapshotError, match=r"no snapshot yet .* take a snapshot \(tailrace snapshot create\)"
    ):
        snapshots.open()
    sealed = snapshots.publish(draft_of(snapshots, name="release"))
    with pytest.raises(errors.UnknownSnapshotError, match=rf"{sealed.id} \(release\)"):
        snapshots.open("relaese")


def test_the_name_of_a_savepoint_serves_once(snapshots: Snapshots) -> None:
    published(snapshots, name="v1")
    with pytest.raises(errors.SnapshotError, match="v1"):
        published(snapshots, name="v1")
    with pytest.raises(errors.UsageError):
        published(snapshots, name="latest")


def test_a_snapshot_of_another_app_is_refused(snapshots: Snapshots, tmp_path: Path) -> None:
    manifest = draft_of(snapshots)
    with pytest.raises(errors.SnapshotError, match="'flights'"):
        Snapshots(str(tmp_path), "trains").publish(manifest)
    snapshots.publish(manifest)
    (tmp_path / "flights").rename(tmp_path / "trains")
    with pytest.raises(errors.SnapshotError, match="'trains'"):
        Snapshots(str(tmp_path), "trains").open()


def test_tasks_that_are_not_those_of_the_app_are_refused(snapshots: Snapshots) -> None:
    with pytest.raises(errors.UsageError, match="partitions"):
        snapshots.publish(manifest_of(snapshots, "x", 1, (TaskEntry(1, b"cut"),)))


def test_another_format_is_refused_by_its_number(snapshots: Snapshots, tmp_path: Path) -> None:
    manifest = published(snapshots)
    path = tmp_path / "flights" / manifest.id / "manifest.json"
    for number in (FORMAT - 1, FORMAT + 1):
        path.write_text(f'{{"format": {number}, "tables": {{"state": "elsewhere"}}}}')
        for look in (snapshots.list, snapshots.open):
            with pytest.raises(errors.FormatError, match=f"format {number}"):
                look()


def test_no_byte_of_a_manifest_can_change_unnoticed(snapshots: Snapshots, tmp_path: Path) -> None:
    manifest = published(snapshots)
    path = tmp_path / "flights" / manifest.id / "manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :])
        with pytest.raises((errors.AlteredSnapshotError, errors.FormatError)):
            snapshots.list()
        path.write_bytes(whole[:place])
        with pytest.raises(errors.AlteredSnapshotError):
            snapshots.list()
    path.write_bytes(whole)
    assert snapshots.list() == [manifest]


def test_a_folder_that_is_not_ours_is_no_snapshot(snapshots: Snapshots, tmp_path: Path) -> None:
    published(snapshots)
    for name in ("_work", ".cache", "notes"):
        (tmp_path / "flights" / name).mkdir()
        (tmp_path / "flights" / name / "manifest.json.new").write_bytes(b"{")
    (tmp_path / "flights" / "README").write_text("a file")
    assert len(snapshots.list()) == 1


def test_an_app_whose_name_is_no_folder_has_no_snapshots(tmp_path: Path) -> None:
    for name in ("../flights", "_work", "", "a/b"):
        with pytest.raises(errors.UsageError):
            Snapshots(str(tmp_path), name)


def test_ids_sort_by_their_start_however_soon_one_follows_another(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path), "app")
    ids = [snapshots.begin().id for _ in range(200)]
    assert ids == sorted(ids)
