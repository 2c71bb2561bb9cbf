"""Locks on files, and the note beside the database.

A lock on a file is freed by the death of its holder. Commits need none of them: for these SQLite has its own.

SQLite takes a WAL that ends early, or is missing, for a whole one, and a sync that fails once for a sync that may be
repeated. But the kernel reports a failed write-back only once, and takes the bytes for synced then. So the note holds
what SQLite does not tell: how many commits there were, how many a sync has covered, and whether a sync has failed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from weakref import WeakSet

from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.holders import lockers, not_free

NOTE = "note"
_NOTE = Struct("<QQ?")
_NAP_S = 0.02


class FileLock:
    """A file that one process locks. A forked child closes it: the lock must not survive the parent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        _file_locks.add(self)

    @property
    def descriptor(self) -> int:
        """The open file. It is created if it is missing. Raises OSError."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._descriptor

    def acquire(self, patience_s: float = 0.0) -> bool:
        """Lock the file. Returns False if another process has locked it for so long. Raises OSError."""
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(_NAP_S)
            else:
                return True

    def is_open_at_its_path(self) -> bool:
        """Whether this process has the file open, and it was not deleted or replaced."""
        try:
            return self._descriptor is not None and os.path.samestat(
                os.fstat(self._descriptor), self.path.stat()
            )
        except OSError:
            return False

    def close(self) -> None:
        """Release the lock and close the file. It is opened again on demand."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_file_locks: WeakSet[FileLock] = WeakSet()


def _close_inherited() -> None:
    for lock in list(_file_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_inherited)


class Note(NamedTuple):
    """What is known of a log apart from its database. It is not synced: after a power loss it may be old, and never too new."""

    commits: int = 0
    """Number of commits in the log."""
    synced: int = 0
    """How many of them are known to be on the disk."""
    sync_failed: bool = False
    """Whether a sync has failed, so that bytes which the kernel takes for synced may not be on the disk."""


def last_note(folder: Path) -> Note:
    """The note of a log; an empty one if there is none that can be read."""
    try:
        return _parsed((folder / NOTE).read_bytes())
    except OSError:
        return Note()


class NoteFile(FileLock):
    """The note of a log, written by each process that appends; locked while one creates or opens the log."""

    def __init__(self, folder: Path, *, patience_s: float = 60.0) -> None:
        super().__init__(folder / NOTE)
        self.patience_s = patience_s

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock inside the block.
        Raises LogUnavailableError: the holder did not release the lock in time; or the folder cannot be written.
        """
        with closing(FileLock(self.path)) as lock:
            with failing(self.path.parent, "opening the log"):
                if not lock.acquire(self.patience_s):
                    raise not_free(self.path.parent, lockers(self.path), self.patience_s)
            yield

    def make(self) -> None:
        """Wait until the file is on the disk, in its whole length."""
        if os.fstat(self.descriptor).st_size < _NOTE.size:
            os.pwrite(self.descriptor, bytes(_NOTE.size), 0)
        os.fsync(self.descriptor)

    def read(self) -> Note:
        """The note."""
        return _parsed(os.pread(self.descriptor, _NOTE.size, 0))

    def committed(self, commits: int, *, synced: bool) -> None:
        """Note the number of commits. Another process may have noted a later one: then less is checked."""
        self._write(0, commits.to_bytes(8, "little") * (2 if synced else 1))

    def synced(self, commits: int) -> None:
        """Note that so many commits are on the disk."""
        with suppress(OSError):
            if self.read().synced < commits:
                self._write(8, commits.to_bytes(8, "little"))

    def sync_failed(self) -> None:
        """Note that a sync has failed. This is not taken back: the log is to be copied."""
        self._write(16, b"\1")

    def _write(self, at: int, data: bytes) -> None:
        with suppress(OSError):  # it has its length, so no full disk. After an error only less is checked
            os.pwrite(self.descriptor, data, at)


def _parsed(data: bytes) -> Note:
    return Note(*_NOTE.unpack(data[: _NOTE.size].ljust(_NOTE.size, b"\0")))
