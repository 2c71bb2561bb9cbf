"""The comparison of messages with ``messages.txt`` finds what is missing, other, too much and stale."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.messages import Asked, plain, read, stale, write

ENTRIES = {
    "test_a.py::test_it": "A: one\n\n  two",
    "test_a.py::test_it #2": "",
    "test_a.py::test_it[x: y]": "B: é",
}


def asked(folder: Path, *, writes: bool = False) -> Asked:
    item: Any = SimpleNamespace(
        path=folder / "test_a.py",
        nodeid="x/test_a.py::test_it",
        config=SimpleNamespace(getoption=lambda _: writes),
    )
    return Asked(item, folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "messages.txt", ENTRIES)
    assert read(tmp_path / "messages.txt") == ENTRIES
    write(tmp_path / "messages.txt", {})
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_missing_or_other_and_an_entry_too_many_fail(tmp_path: Path) -> None:
    first = asked(tmp_path, writes=True)
    first.says(f"E: no {tmp_path}/file")
    first.says("E: 0x7f00deadbeef at 127.0.0.1:5000")
    first.finish()
    again = asked(tmp_path)
    again.says(f"E: no {tmp_path}/file")
    with pytest.raises(AssertionError, match="more entries"):
        again.finish()
    with pytest.raises(AssertionError, match="E: other"):
        again.says("E: other")
    with pytest.raises(AssertionError, match=r"E: third(.|\n)*no entry"):
        again.says("E: third")
    less = asked(tmp_path, writes=True)
    less.says("E: new")
    less.finish()
    assert read(tmp_path / "messages.txt") == {"test_a.py::test_it": "E: new"}


def test_entries_without_a_test_are_stale(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").touch()
    entries = ENTRIES | {"test_gone.py::test_it": "", "test_a.py::test_gone": ""}
    ids = {"test_a.py::test_it", "test_a.py::test_it[x: y]"}
    assert stale(entries, tmp_path, ids, {"test_a.py"}) == ["test_gone.py::test_it", "test_a.py::test_gone"]
    assert stale(entries, tmp_path, ids, set()) == ["test_gone.py::test_it"]


def test_what_differs_from_machine_to_machine_is_left_out(tmp_path: Path) -> None:
    said = f"{tmp_path}/x: <A object at 0x7f00deadbeef>, http://localhost:1234, {Path(__file__).parent}/x.py"
    assert plain(said, tmp_path) == "TMP/x: <A object at 0x…>, http://localhost:PORT, REPO/tests/x.py"
