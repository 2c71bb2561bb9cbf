"""The append lock: only its holder may append, and only its holder copies the WAL into the database.

It is a lock on a file, so the death of its holder frees it at once. It also covers what SQLite's own write lock does not: the
note, and the time between two transactions. A holder keeps it for one commit, which takes milliseconds. A stopped holder (SIGSTOP, a debugger) does not release
it. Nobody ends such a process: after the lease the waiting process raises an error that names it, and the operator continues or
ends it. If it is ended, SQLite drops its open transaction. A holder that works, or waits for a processor or a disk, is waited
for longer (``patience_s``), and then named, too.

A forked child closes the lock's file. Otherwise it would hold its parent's lock, also after the death of the parent.

The file has a note: what the last holder knew of the log. See ``Note``.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager
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
    """What the last holder knew. The note is not synced: after a power loss it may be older, and never newer, than the truth."""

    boot: bytes = b""
    """Boot id of the machine at that time; empty if nothing is known."""
    commits: int = 0
    """Number of commits in the log."""
    synced: int = 0
    """How many of them are known to be on the disk."""
    in_doubt: bool = False
    """Whether a sync has failed, so that bytes which the kernel takes for synced may not be on the disk."""


class AppendLock:
    """The lock of one log, for one thread at a time. ``lease_s``: how long to wait for a stopped holder."""

    def __init__(self, folder: Path, *, lease_s: float = 10.0, patience_s: float = 60.0) -> None:
        self.lease_s = lease_s
        self.patience_s = patience_s
        self.note = Note()
        """While the lock is held: the note, which the holder may replace."""
        self._path = folder / LOCK
        self._descriptor: int | None = None
        _locks.add(self)

    def last_note(self) -> Note:
        """The note, without the lock. An empty one if there is none that can be read."""
        try:
            with self._path.open("rb") as file:
                return _noted(file.read())
        except OSError:
            return Note()

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock inside the block.

        Raises:
            LogUnavailableError: The holder did not release the lock in time; or the folder cannot be written.
        """
        descriptor, process = self._opened(), os.getpid()
        self._acquire(descriptor)
        self.note = before = Note()
        try:
            with failing(self._path.parent, "taking the append lock"):
                self.note = before = _noted(os.pread(descriptor, _NOTE.size, 0))
            yield
        finally:
            if process == os.getpid():  # the lock is not that of a child that was forked inside the block
                self._release(descriptor, before)

    def keep_note(self) -> None:
        """While the lock is held: wait until the file has a note on the disk."""
        descriptor = self._opened()
        self.note = self.note._replace(boot=self.note.boot or boot())
        os.pwrite(descriptor, _packed(self.note), 0)
        os.fsync(descriptor)

    def close(self) -> None:
        """Close the file. It is opened again on demand."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # --- acquiring and releasing

    def _opened(self) -> int:
        if self._descriptor is None:
            with failing(self._path.parent, "taking the append lock"):
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._descriptor

    def _acquire(self, descriptor: int) -> None:
        begun_s = looked_s = time.monotonic()
        nap_s = _FIRST_NAP_S
        while not locked(descriptor):
            now_s = time.monotonic()
            if now_s - looked_s > self.lease_s or now_s - begun_s > self.patience_s:
                looked_s = now_s
                self._look(now_s - begun_s)
            time.sleep(nap_s)
            nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)

    def _look(self, waited_s: float) -> None:
        """Raise an error that names the holder, if it is stopped or has been waited for long enough."""
        found, folder = lockers(self._path, "FLOCK"), str(self._path.parent)
        for one in found:
            if one.is_stopped:
                raise LogUnavailableError(
                    f"process {one.pid} holds the append lock of {folder!r} and is stopped",
                    hint=f"Continue it (`kill -CONT {one.pid}`) or end it (`kill -KILL {one.pid}`): until then nobody can "
                    "append. Nothing committed is lost.",
                )
        if waited_s > self.patience_s:
            holder = f"process {found[0].pid}" if found else "a process of another user or container"
            raise LogUnavailableError(
                f"the append lock of {folder!r} was not free for {self.patience_s:.0f} s; {holder} holds it",
                hint="Look at that process; end it if it hangs.",
            )

    def _release(self, descriptor: int, before: Note) -> None:
        try:
            if self.note != before:
                os.pwrite(descriptor, _packed(self.note), 0)
        except OSError:
            pass  # a log with a WAL has a note already, so this is no full disk: what is not noted is only not checked
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


_locks: WeakSet[AppendLock] = WeakSet()


def _close_inherited() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_inherited)


def _noted(data: bytes) -> Note:
    if len(data) != _NOTE.size:
        return Note()
    *fields, checksum = _NOTE.unpack(data)
    return Note(*fields) if zlib.crc32(data[:-4]) == checksum else Note()


def _packed(note: Note) -> bytes:
    data = _NOTE.pack(*note, 0)[:-4]
    return data + zlib.crc32(data).to_bytes(4, "little")


def locked(descriptor: int) -> bool:
    """Lock a file for this process alone, without waiting. Returns False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
