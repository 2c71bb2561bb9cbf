"""Whose folder it is: another's is refused as it was found, damage is named, and one store holds it at a time."""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.core import errors
from tailrace.state import RocksStore, StateIdentity
from tailrace.state.folder import DATABASE, FORMAT, LABEL, LOCK

OURS = StateIdentity("flights", 3)


def written(path: Path, identity: StateIdentity = OURS) -> Path:
    with contextlib.closing(RocksStore(path, identity)) as store:
        store.write({b"a": b"1"}, b"cut")
    return path


def content(path: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")}


def reopened(path: Path, identity: StateIdentity = OURS) -> bytes | None:
    with contextlib.closing(RocksStore(path, identity)) as store:
        assert store.get(b"a") == (None if store.cut is None else b"1")
        return store.cut


def refused(
    path: Path, error: type[Exception] | tuple[type[Exception], ...], identity: StateIdentity = OURS
) -> str:
    """Opening raises that error, and changes nothing."""
    before = content(path)
    with pytest.raises(error) as caught:
        RocksStore(path, identity)
    assert content(path) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_folder_is_made_with_its_parents_and_found_again(tmp_path: Path) -> None:
    path = written(tmp_path / "states" / "flights" / "3")
    assert reopened(path) == b"cut"


def test_a_folder_that_cannot_be_created_is_named() -> None:
    with pytest.raises(
        errors.StateUnavailableError, match=r"the state folder cannot be created: .*No such file"
    ):
        RocksStore(Path("/proc/flights/3"), OURS)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert reopened(tmp_path) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (StateIdentity("trains", 3), "app 'flights', partition 3, not of app 'trains'"),
        (StateIdentity("flights", 4), "not of app 'flights', partition 4"),
    ],
)
def test_the_state_of_another_app_or_partition_is_refused(tmp_path: Path, other, says: str) -> None:
    assert says in refused(written(tmp_path), errors.StateFolderError, other)
    assert reopened(tmp_path) == b"cut"


@pytest.mark.parametrize("stranger", ["holiday.jpg", DATABASE, "CURRENT"])
def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path, stranger: str) -> None:
    (tmp_path / stranger).mkdir()
    assert stranger in refused(tmp_path, errors.StateFolderError)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("not a folder")
    assert "leads to a file" in refused(path, errors.StateFolderError)
    assert path.read_text() == "not a folder"


def test_another_format_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    for number in (FORMAT + 1, FORMAT - 1):
        (tmp_path / LABEL).write_text(f'{{"format": {number}, "shards": ["a"]}}')
        assert f"format {number}" in refused(tmp_path, errors.FormatError)


def test_no_byte_of_the_label_can_change_unnoticed(tmp_path: Path) -> None:
    label = written(tmp_path) / LABEL
    whole = label.read_bytes()
    for place in range(len(whole)):
        label.write_bytes(whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :])
        refused(tmp_path, (errors.CorruptStateError, errors.FormatError))
        label.write_bytes(whole[:place])
        assert "rebuilt from the changelog" in refused(tmp_path, errors.CorruptStateError)
    label.write_bytes(whole)
    assert reopened(tmp_path) == b"cut"


def test_a_labelled_folder_without_its_database_is_damage(tmp_path: Path) -> None:
    shutil.rmtree(written(tmp_path) / DATABASE)
    assert "rebuilt from the changelog" in refused(tmp_path, errors.CorruptStateError)


def test_what_an_interrupted_start_left_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("_hold", "_write_label", "complete"):
        path = tmp_path / step
        with monkeypatch.context() as broken:
            broken.setattr(f"tailrace.state.folder.StateFolder.{step}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                RocksStore(path, OURS)
        assert reopened(path) is None


def interrupted(*_args, **_kwargs) -> None:
    raise KeyboardInterrupt


def test_a_lock_and_half_a_label_are_no_strangers(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    (tmp_path / f"{LABEL}.new").write_bytes(b'{"form')
    assert reopened(tmp_path) is None


def test_a_folder_serves_one_store_at_a_time(tmp_path: Path) -> None:
    with contextlib.closing(RocksStore(tmp_path, OURS)) as store:
        store.write({b"a": b"1"}, b"cut")
        assert "in use" in refused(tmp_path, errors.StateInUseError)
        assert store.get(b"a") == b"1"
    assert reopened(tmp_path) == b"cut"


def test_a_folder_that_another_process_holds_is_refused_until_it_dies(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tailrace.state import RocksStore, StateIdentity\n"
        "store = RocksStore(Path(sys.argv[1]), StateIdentity('flights', 3))\n"
        "store.write({b'a': b'1'}, b'cut'); print('open', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        with pytest.raises(errors.StateInUseError):
            RocksStore(tmp_path, OURS)
        owner.kill()
    assert reopened(tmp_path) == b"cut"


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, OURS)
    store.write({b"a": b"1"} | {b"%d" % n: b"" for n in range(100)}, b"cut")
    scan = store.scan(b"", b"\xff")
    next(scan)
    store.close()
    assert reopened(tmp_path) == b"cut", "an open scan still holds the folder"
    with pytest.raises(errors.StateUnavailableError, match="closed"):
        list(scan)
    with pytest.raises(errors.StateUnavailableError, match="closed"):
        store.get(b"a")
    with pytest.raises(errors.StateUnavailableError, match="closed"):
        store.write({}, b"2")
    assert store.cut == b"cut"
