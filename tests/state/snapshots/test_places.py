"""A snapshot is the same wherever it lies: on a disk, or in an object store."""

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tailrace.core import errors
from tailrace.core.extras import ExtraModule
from tailrace.state.snapshots import Place, Snapshots, write_task
from tests.runtime.processes import ROOT
from tests.state.snapshots.making import published, some_rows
from tests.state.snapshots.object_store import ObjectStore, object_store


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def bucket(store: ObjectStore) -> str:
    name = f"b{uuid4().hex}"
    store.request("PUT", name)
    return name


@pytest.fixture(params=["path", "file", "s3"])
def uri(request, tmp_path: Path) -> str:
    match request.param:
        case "path":
            return str(tmp_path / "with space")
        case "file":
            return (tmp_path / "with space").as_uri()
        case _:
            store: ObjectStore = request.getfixturevalue("store")
            return store.uri(f"{request.getfixturevalue('bucket')}/some/prefix")


def test_everything_that_is_done_with_snapshots_is_done_anywhere(uri: str) -> None:
    snapshots = Snapshots(uri, "flights")
    assert snapshots.list() == []
    with pytest.raises(errors.UnknownSnapshotError):
        snapshots.open()
    first = published(snapshots, [some_rows(200), some_rows(3)], name="v1")
    gone = next(iter(some_rows(200)))
    second = published(
        snapshots,
        [some_rows(2, "X"), {}],
        deleted=[gone],
        kind="incremental",
        parent=first.id,
        automatic=True,
    )
    whole = {row: value for row, value in (some_rows(200) | some_rows(2, "X")).items() if row != gone}

    again = Snapshots(uri, "flights")
    assert again.list() == [first, second]
    assert list(again.open("v1").rows(0)) == list(some_rows(200).items())
    snapshot = pickle.loads(pickle.dumps(again.open()))
    assert list(snapshot.rows(0)) == sorted(whole.items())
    assert sum(batch.num_rows for batch in again.open("v1").batches("timers")) == 203
    assert snapshot.verify() == []

    with pytest.raises(errors.SnapshotError, match="builds on it"):
        again.delete(first.id)
    draft = again.begin()
    write_task(draft.folder_uri, 0, "a", some_rows(1).items())
    assert again.sweep(-1) == [draft.id]
    assert again.keep(0) == [second.id]
    assert again.delete(first.id) == [first.id]
    assert again.list() == []
    assert again.sweep(-1) == []


def test_a_file_that_is_gone_or_altered_is_noticed_anywhere(uri: str) -> None:
    snapshots = Snapshots(uri, "flights")
    manifest = published(snapshots)
    snapshot = snapshots.open()
    place = Place.at(uri) / "flights" / manifest.id / manifest.tasks[0].files[0].name
    whole = place.read()
    place.write(whole[:50] + bytes((whole[50] ^ 1,)) + whole[51:])
    with pytest.raises(errors.AlteredSnapshotError):
        list(snapshot.rows(0))
    assert place.remove()
    assert not place.remove()
    with pytest.raises(errors.AlteredSnapshotError):
        list(snapshot.rows(0))
    with pytest.raises(errors.AlteredSnapshotError):
        snapshots.open()


@pytest.mark.parametrize("large", [False, True])
def test_a_writer_that_dies_leaves_nothing_to_be_seen_in_an_object_store(store, bucket, large: bool) -> None:
    uri = store.uri(f"{bucket}/dying")
    published(Snapshots(uri, "flights"), [some_rows(5)], id="whole")
    program = """
import itertools, os, signal, sys
from tailrace.core.rows import PLAIN
from tailrace.state.snapshots import Snapshots, places
from tests.state.snapshots.making import published, some_rows

def dying(rows):
    yield from rows
    if sys.argv[2] == "rows":
        os.kill(os.getpid(), signal.SIGKILL)

class Rows(dict):
    def items(self):
        return dying(super().items())

    def __iter__(self):
        return dying(super().__iter__())

write = places.Place.write
def dying_write(place, data, **options):
    if sys.argv[2] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(place, data, **options)
    os.kill(os.getpid(), signal.SIGKILL)

places.Place.write = dying_write
value = {b"sA\\0%09d\\0\\0" % n: PLAIN + os.urandom(999) for n in range(int(sys.argv[3]))}
published(Snapshots(sys.argv[1], "flights"), [Rows(value)], id="doomed")
"""
    size = 20_000 if large else 20  # large enough for an upload in parts
    for point, seen in (("rows", ["whole"]), ("before", ["whole"]), ("after", ["whole", "doomed"])):
        died = subprocess.run([sys.executable, "-c", program, uri, point, str(size)], cwd=ROOT, check=False)
        assert died.returncode == -9
        snapshots = Snapshots(uri, "flights")
        assert [each.id for each in snapshots.list()] == seen
        assert snapshots.open().verify() == []
        snapshots.sweep(-1)
    assert len(list(snapshots.open("doomed").rows(0))) == size


def test_a_secret_in_a_uri_is_not_shown(store: ObjectStore, bucket: str) -> None:
    snapshots = Snapshots(store.uri(f"{bucket}/x", secret="hush"), "flights")
    published(snapshots)
    with pytest.raises(errors.UnknownSnapshotError) as caught:
        snapshots.open("nothing")
    assert f"s3://{bucket}/x/flights" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert b"hush" not in (Place.at(snapshots.open().uri) / "manifest.json").read()


def test_a_store_that_does_not_answer_or_has_no_such_bucket_is_unavailable(store: ObjectStore) -> None:
    for uri in (store.uri("nowhere/x"), ObjectStore(1).uri("b/x")):
        with pytest.raises(errors.SnapshotUnavailableError, match="no partial snapshot"):
            published(Snapshots(uri, "flights"))
    with pytest.raises(errors.SnapshotUnavailableError, match="colour") as caught:
        Snapshots(store.uri("b/x", secret="hush") + "&colour=red", "flights")
    assert "hush" not in str(caught.value)


def test_without_pyarrow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.feather", None)
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'tailrace\[parquet\]'"):
        ExtraModule("pyarrow.feather", "snapshots", "parquet").read_table  # asking for it is the failure


@pytest.mark.parametrize("path", ["/proc/snapshots", "{file}", "{file}/within"])
def test_a_folder_that_cannot_be_made_is_unavailable(path: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(errors.SnapshotUnavailableError, match="while making the folder"):
        Place.at(path.format(file=file)).make()
    with pytest.raises(errors.SnapshotUnavailableError, match="while writing"):
        (Place.at("/proc/snapshots") / "manifest.json").write(b"")


def test_a_folder_that_comes_and_goes_while_it_is_listed_is_there_or_not(tmp_path: Path) -> None:
    place, folder = Place.at(tmp_path / "moving"), tmp_path / "moving"
    done = threading.Event()

    def move() -> None:
        while not done.is_set():
            folder.mkdir()
            folder.rmdir()

    thread = threading.Thread(target=move)
    thread.start()
    try:
        assert [place.entries() for _ in range(5_000)] == [[]] * 5_000
    finally:
        done.set()
        thread.join()
