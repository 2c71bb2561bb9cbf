"""The kernel's list of locks names a file by its inode: only a process that has the file itself open is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.log.embedded import holders
from tailrace.log.embedded.holders import Locker, lockers


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Lists a lock of this process on a file of this name, or on one with its inode number on another device."""

    def listed(name: str) -> Path:
        at = f"{os.getpid()} 00:99:{(tmp_path / name).stat().st_ino}"
        (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE {at} 0 EOF\n")
        monkeypatch.setattr(holders, "_LOCKS", tmp_path / "locks")
        return tmp_path / name

    (tmp_path / "other").touch()
    with (tmp_path / "file").open("w"):
        yield listed


def test_only_a_process_that_has_the_file_itself_open_is_named(locked) -> None:
    assert lockers(locked("other")) == []
    assert lockers(locked("file")) == [Locker(os.getpid(), is_stopped=False)]


def test_a_process_that_this_user_may_not_look_into_is_not_named(locked, monkeypatch) -> None:
    file = locked("file")

    def forbidden(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert lockers(file) == []


def test_with_the_proc_of_another_pid_namespace_nobody_is_named(locked, monkeypatch) -> None:
    file = locked("file")
    monkeypatch.setattr(Path, "readlink", lambda _: Path(str(os.getpid() + 1)))
    assert lockers(file) == []
