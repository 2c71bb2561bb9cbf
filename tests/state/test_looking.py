"""A state that is looked at while a store has it open: as it was written last, and nothing of it is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.core.errors import CorruptStateError
from tailrace.state import RocksStore, StateIdentity
from tailrace.state.folder import DATABASE
from tailrace.state.looking import StateView


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*")}


def test_a_state_that_is_open_shows_what_was_written_last(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "state", StateIdentity("app", 0))
    store.write({b"a%03d" % number: b"1" for number in range(300)}, b"first")
    before = files(tmp_path)
    view = StateView(tmp_path / "state")
    assert view.cut == b"first"
    store.write({b"a000": None, b"b": b"2"}, b"second")
    assert sum(1 for _ in view.scan(b"a", b"b")) == 300
    view.close()
    again = StateView(tmp_path / "state")
    assert again.cut == b"second"
    assert [row for row, _ in again.scan(b"a298", b"c")] == [b"a298", b"a299", b"b"]
    again.close()
    store.write({b"c": b"3"}, b"third")
    assert store.cut == b"third"
    assert files(tmp_path).keys() == before.keys()
    store.close()


def test_a_state_that_nobody_has_open_is_left_as_it_is(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "state", StateIdentity("app", 0))
    store.write({b"a": b"1"}, b"cut")
    store.close()
    before = files(tmp_path)
    view = StateView(tmp_path / "state")
    assert list(view.scan(b"a", b"b")) == [(b"a", b"1")]
    view.close()
    assert files(tmp_path) == before


def test_what_is_no_state_is_told(tmp_path: Path) -> None:
    with pytest.raises(CorruptStateError, match="there is no database"):
        StateView(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "state" / DATABASE).mkdir(parents=True)
    with pytest.raises(CorruptStateError, match="there is no database"):
        StateView(tmp_path / "state")
    assert list((tmp_path / "state" / DATABASE).iterdir()) == []
    (tmp_path / "state" / DATABASE / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(CorruptStateError, match="looking at the state"):
        StateView(tmp_path / "state")
