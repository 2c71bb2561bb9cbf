"""The append lock: only its holder may append, and only its holder copies the WAL into the database.

It is a lock on a file, so the death of its holder frees it at once. The file identifies the holder: its process id, and the
start time of the process, since ids are reused. SQLite's own write lock does not name its holder. A holder keeps the lock for
one commit, which takes milliseconds. A stopped holder (SIGSTOP, a debugger, a frozen container) would never release it. So a
process that has waited for longer than the lease checks the holder. If the holder is stopped, or sleeps and has not used the
processor since, the waiting process kills it; SQLite drops its open transaction. The killed process could not have continued
anyway, as the new owner of its tasks fences it.

A forked child closes the lock's file. Otherwise it would hold its parent's lock, also after the death of the parent.

A holder that works, or waits for a processor or a disk, is left alone, however slow it is. Waiting for it ends with
LogUnavailableError.

The file also has a note: what the last holder knew of the log. See ``Note``.
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
from tailrace.log.embedded.holders import Holder, Life, boot, end, end_locker, life_of, myself

LOCK = "lock"
_HOLDER = Struct("<36sIQQQ")
_NOTE = Struct("<36sQQ?I")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.005
_ABOUT_TO_GO_ON = "RD"
"""Process states: waiting for a processor (the machine is busy, or was suspended for a while), or for a disk."""


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


class _Record(NamedTuple):
    """The first part of the file: the current or last holder of the lock. Process id 0: the lock is released."""

    boot: bytes
    pid: int
    started: int
    namespace: int
    taken_ns: int

    @property
    def holder(self) -> Holder:
        """The identity of the holder's process."""
        return Holder(self.boot, self.pid, self.started, self.namespace)


class AppendLock:
    """The lock of one log, for one thread at a time. ``lease_s``: how long to wait for a stopped holder."""

    def __init__(self, folder: Path, *, lease_s: float = 10.0, patience_s: float = 60.0) -> None:
        self.lease_s = lease_s
        self.patience_s = patience_s
        self.note = Note()
        """While the lock is held: the note, which the holder may replace."""
        self._path = folder / LOCK
        self._descriptor: int | None = None
        self._myself = Holder(boot(), 0, 0, 0)
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
            LogUnavailableError: The holder did not release the lock in time and was not killed; or the folder cannot be
                written.
        """
        descriptor, process = self._opened(), os.getpid()
        self._acquire(descriptor)
        self.note = before = Note()
        try:
            with failing(self._path.parent, "taking the append lock"):
                self.note = before = _noted(os.pread(descriptor, _HOLDER.size + _NOTE.size, 0))
                os.pwrite(descriptor, self._signature(os.getpid()), 0)
            yield
        finally:
            if process == os.getpid():  # the lock is not that of a child that was forked inside the block
                self._release(descriptor, before)

    def keep_note(self) -> None:
        """While the lock is held: wait until the file has a note on the disk."""
        descriptor = self._opened()
        self.note = self.note._replace(boot=self.note.boot or boot())
        os.pwrite(descriptor, _packed(self.note), _HOLDER.size)
        os.fsync(descriptor)

    def forget(self) -> None:
        """While the lock is held: forget the note, as the log is another one now."""
        self.note = Note(b"forgotten")

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
            self._myself = myself()
        return self._descriptor

    def _acquire(self, descriptor: int) -> None:
        begun = time.monotonic()
        nap_s = _FIRST_NAP_S
        watched: tuple[_Record | None, Life | None, float] | None = None
        while not _locked(descriptor):
            now = time.monotonic()
            if now - begun > self.patience_s:
                holder = _holder(descriptor)
                raise LogUnavailableError(
                    f"the append lock of {str(self._path.parent)!r} was not free for {self.patience_s:.0f} s; process "
                    f"{holder.pid if holder else 'unknown'} holds it",
                    hint="Look at that process; end it if it hangs.",
                )
            holder = _holder(descriptor)
            if watched is None or watched[0] != holder:
                watched = holder, self._life(holder), now
            elif now - watched[2] > self.lease_s:
                if watched[1] is None or self._is_stopped(holder, watched[1]):
                    self._end(None if watched[1] is None else holder)
                watched = None
            time.sleep(nap_s)
            nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)

    def _release(self, descriptor: int, before: Note) -> None:
        try:
            if self.note != before:
                os.pwrite(descriptor, _packed(self.note), _HOLDER.size)
            os.pwrite(descriptor, self._signature(0), 0)
        except OSError:
            pass  # the file has its length already, so this is no full disk: what is not noted is only not checked
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _signature(self, pid: int) -> bytes:
        return _HOLDER.pack(*self._myself._replace(pid=pid), time.monotonic_ns())

    # --- a stopped holder

    def _life(self, record: _Record | None) -> Life | None:
        return None if record is None else life_of(record.holder)

    def _is_stopped(self, record: _Record | None, before: Life | None) -> bool:
        now = self._life(record)
        if now is None or before is None or now.state in _ABOUT_TO_GO_ON:
            return False
        return now.is_stopped or now.ticks == before.ticks

    def _end(self, record: _Record | None) -> None:
        """End a stopped holder. Without a record of it: one that was stopped before it could sign, if that is so."""
        try:
            end_locker(self._path) if record is None else end(record.holder)
        except PermissionError as error:
            raise LogUnavailableError(
                f"process {record.pid if record else 'of an unknown id'} holds the append lock of {str(self._path.parent)!r} and is "
                "stopped",
                hint="It belongs to another user: end it, or let it continue.",
            ) from error


_locks: WeakSet[AppendLock] = WeakSet()


def _close_inherited() -> None:
    for lock in list(_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_inherited)


def _holder(descriptor: int) -> _Record | None:
    data = os.pread(descriptor, _HOLDER.size, 0)
    return _Record(*_HOLDER.unpack(data)) if len(data) == _HOLDER.size else None


def _noted(data: bytes) -> Note:
    note = data[_HOLDER.size :]
    if len(note) != _NOTE.size:
        return Note()
    *fields, checksum = _NOTE.unpack(note)
    return Note(*fields) if zlib.crc32(note[:-4]) == checksum else Note()


def _packed(note: Note) -> bytes:
    data = _NOTE.pack(*note, 0)[:-4]
    return data + zlib.crc32(data).to_bytes(4, "little")


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
