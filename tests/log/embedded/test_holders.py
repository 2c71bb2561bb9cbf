"""The kernel's list of locks names a file by its inode: only a process that has the file itself open is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.log.embedded import holders
from tailrace.log.embedded.holders import Locker, lockers, myself, stopped_readers
from tests.log.embedded.processes import Process, running, until

PROGRAM = """
file = open(folder / "file")
say("open")
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Process]:
    """A stopped process that has ``file`` open."""
    (tmp_path / "file").touch()
    (tmp_path / "other").touch()
    with running(PROGRAM, tmp_path) as process:
        assert process.line() == "open"
        until(process.is_stopped)
        yield process


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Process) -> Callable[[str], Path]:
    """Lists locks of the process on a file of this name, or on one with its inode number on another device."""

    def listed(name: str) -> Path:
        at = f"{holder.process.pid} 00:99:{(tmp_path / name).stat().st_ino}"
        (tmp_path / "locks").write_text(
            f"1: FLOCK  ADVISORY  WRITE {at} 0 EOF\n2: POSIX  ADVISORY  READ {at} 123 123\n"
        )
        monkeypatch.setattr(holders, "_LOCKS", tmp_path / "locks")
        return tmp_path / name

    return listed


def test_a_process_that_has_locked_a_file_with_the_same_inode_number_is_not_named(locked) -> None:
    other = locked("other")
    assert lockers(other, "FLOCK") == []
    assert stopped_readers(other) == []


def test_a_stopped_process_that_has_locked_the_file_itself_is_named(holder, locked) -> None:
    file = locked("file")
    assert stopped_readers(file) == [holder.process.pid]
    assert lockers(file, "FLOCK") == [Locker(holder.process.pid, 0, is_stopped=True)]


def test_a_process_that_this_user_may_not_look_into_is_not_named(locked, monkeypatch) -> None:
    file = locked("file")

    def forbidden(_: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)
    assert lockers(file, "FLOCK") == []


def test_with_the_proc_of_another_pid_namespace_nobody_is_named(locked, monkeypatch) -> None:
    file = locked("file")
    monkeypatch.setattr(Path, "readlink", lambda _: Path(str(os.getpid() + 1)))
    assert lockers(file, "FLOCK") == []
    assert myself().started == 0
