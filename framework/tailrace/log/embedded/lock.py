"""The append lock: only its holder may append, and only its holder copies the WAL into the database.

It is a lock on a file, so the death of its holder frees it at once. It also covers what SQLite's own write lock does
not: the note, and the time between two transactions. A holder keeps it for one commit, which takes milliseconds. A
stopped holder (SIGSTOP, a debugger) does not release it: a process that has waited for ``patience_s`` raises an error
that names the holder, and the operator continues or ends it. If it is ended, SQLite drops its open transaction.

The file has a note: what the last holder knew of the log. See ``Note``.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from weakref import WeakSet

from tailrace.core.errors import LogUnavailableError
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.holders import boot, lockers

LOCK = "lock"
_NOTE = Struct("<36sQQ?I")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.005


class Note(NamedTuple):
    """What the last holder knew. It is not synced: after a power loss it may be old, and never too new."""

    boot: bytes = b""
    """Boot id of the machine at that time; empty if nothing is known."""
    commits: int = 0
    """Number of commits in the log."""
    synced: int = 0
    """How many of them are known to be on the disk."""
    in_doubt: bool = False
    """Whether a sync has failed, so that bytes which the kernel takes for synced may not be on the disk."""

    @classmethod
    def parsed(cls, data: bytes) -> Note:
        """The note in a file; an empty one if there is none, or it is damaged."""
        if len(data) != _NOTE.size or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return cls()
        return cls(*_NOTE.unpack(data)[:-1])

    def packed(self) -> bytes:
        """The bytes of the file."""
        data = _NOTE.pack(*self, 0)[:-4]
        return data + zlib.crc32(data).to_bytes(4, "little")


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

    def acquire(self) -> bool:
        """Lock the file, without waiting. Returns False if another process has locked it. Raises OSError."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_open_at_its_path(self) -> bool:
        """Whether this process has the file open, and it was not deleted or replaced."""
        try:
            return self._descriptor is not None and os.path.samestat(
                os.fstat(self._descriptor), self.path.stat()
            )
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock, and keep the file open."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

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


class AppendLock:
    """The lock of one log, for one thread at a time. ``patience_s``: how long to wait for another holder."""

    def __init__(self, folder: Path, *, patience_s: float = 60.0) -> None:
        self.patience_s = patience_s
        self.note = Note()
        """While the lock is held: the note, which the holder may replace."""
        self._folder = folder
        self._file = FileLock(folder / LOCK)

    def last_note(self) -> Note:
        """The note, without the lock. An empty one if there is none that can be read."""
        try:
            return Note.parsed(self._file.path.read_bytes())
        except OSError:
            return Note()

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock inside the block.

        Raises:
            LogUnavailableError: The holder did not release the lock in time; or the folder cannot be written.
        """
        process = os.getpid()
        with failing(self._folder, "taking the append lock"):
            self._acquire()
        self.note = before = Note()
        try:
            with failing(self._folder, "taking the append lock"):
                self.note = before = Note.parsed(os.pread(self._file.descriptor, _NOTE.size, 0))
            yield
        finally:
            if process == os.getpid():  # the lock is not that of a child that was forked inside the block
                if self.note != before:
                    # The file has its length, so no full disk: after an error only less is checked.
                    with suppress(OSError):
                        os.pwrite(self._file.descriptor, self.note.packed(), 0)
                self._file.release()

    def keep_note(self) -> None:
        """While the lock is held: wait until the file has a note on the disk."""
        self.note = self.note._replace(boot=self.note.boot or boot())
        os.pwrite(self._file.descriptor, self.note.packed(), 0)
        os.fsync(self._file.descriptor)

    def close(self) -> None:
        """Close the file. It is opened again on demand."""
        self._file.close()

    def _acquire(self) -> None:
        deadline_s, nap_s = time.monotonic() + self.patience_s, _FIRST_NAP_S
        while not self._file.acquire():
            if time.monotonic() > deadline_s:
                raise self._not_free()
            time.sleep(nap_s)
            nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)

    def _not_free(self) -> LogUnavailableError:
        found = lockers(self._file.path)
        holder, hint = "a process of another user or container", "Look at that process; end it if it hangs."
        if found:
            holder = f"process {found[0].pid}"
            if found[0].is_stopped:
                holder += ", which is stopped,"
                hint = f"Continue it (`kill -CONT {found[0].pid}`) or end it (`kill -KILL {found[0].pid}`)."
        return LogUnavailableError(
            f"{holder} holds the append lock of {str(self._folder)!r}, which was not free for {self.patience_s:g} s",
            hint=f"{hint} Until then nobody can append. Nothing committed is lost.",
        )
