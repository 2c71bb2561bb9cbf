"""Ownership of tasks on one machine: a file lock, which the death of its owner frees at once, and a lease.

A claim only decides which process works. Fencing protects the log. If an owner is stopped and its lease expires, another
process may take its task over. That process replaces the lock file, so the lock that the stopped process holds has no effect
any more, and then takes over the transactional id. When the stopped owner runs again, ``Claim.renew`` returns False, and the
log refuses its commit.

A stopped owner also holds things without a lease, such as its state folder. They are free when it is continued or ended.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from urllib.parse import quote

from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.holders import Holder, life_of, myself

OWNERS = "owners"
_GUARD = ".guard"
_STAMP = Struct("<Q36sIQQ")
"""The time of the last renewal, in ns of the monotonic clock, which all processes of a machine share; then the owner's
process."""


class Claim:
    """Ownership of a task, until ``release`` or for ``lease_s`` after the last ``renew``. Not valid in forked children."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._mutex = threading.Lock()
        self._owner = myself()

    def renew(self) -> bool:
        """Renew the lease; must be called several times per lease. Returns whether this process is still the owner."""
        if self._descriptor is None:
            return False
        if not _is_at(self._path, self._descriptor):
            self.release()
            return False
        _stamp(self._descriptor, self._owner)
        return True

    def holds(self) -> bool:
        """Whether this process is still the owner. Can be called from another thread than ``renew``."""
        with self._mutex:
            return self._descriptor is not None and _is_at(self._path, self._descriptor)

    def release(self) -> None:
        """Release the task for other processes. Can be called repeatedly."""
        with self._mutex:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


class Owner(NamedTuple):
    """The current owner of a task, as far as this process can find out."""

    pid: int
    """Process id, in the owner's own pid namespace; 0 if not known."""
    is_stopped: bool
    """Whether the process is stopped by a signal or a debugger."""


def owner_of(log_folder: Path, name: str) -> Owner | None:
    """The owner of ``name``; None if there is none. Changes nothing, and needs no write permission.

    Raises:
        LogUnavailableError: The folder cannot be read.
    """
    with failing(log_folder, f"looking who owns {name!r}"):
        try:
            descriptor = os.open(_path(log_folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Held only for a moment. A process that wants to claim it meanwhile retries.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            stamp = os.pread(descriptor, _STAMP.size, 0)
        finally:
            os.close(descriptor)
    if len(stamp) != _STAMP.size:
        return Owner(0, is_stopped=False)
    holder = Holder(*_STAMP.unpack(stamp)[1:])
    life = life_of(holder)
    return Owner(holder.pid, is_stopped=life is not None and life.is_stopped)


def claim(log_folder: Path, name: str, *, lease_s: float = 10.0) -> Claim | None:
    """Claim ``name``. Returns None if another process owns it and is alive and not stopped. Never waits.

    Raises:
        LogUnavailableError: The folder cannot be written.
    """
    folder = log_folder / OWNERS
    path = _path(log_folder, name)
    with failing(log_folder, f"claiming {name!r}"):
        folder.mkdir(exist_ok=True)
        guard = os.open(folder / _GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Held for microseconds during a claim. A process stopped here delays the claims of others, but not their work.
            if not _locked(guard):
                return None
            return _claimed(path, lease_s)
        finally:
            os.close(guard)


def _claimed(path: Path, lease_s: float) -> Claim | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if not _locked(descriptor):
        stamp = os.pread(descriptor, _STAMP.size, 0)
        renewed_ns = _STAMP.unpack(stamp)[0] if len(stamp) == _STAMP.size else time.monotonic_ns()
        os.close(descriptor)
        if time.monotonic_ns() - renewed_ns < lease_s * 1e9:
            return None
        path.unlink()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _stamp(descriptor, myself())
    return Claim(path, descriptor)


def _path(log_folder: Path, name: str) -> Path:
    return log_folder / OWNERS / (quote(name, safe="") + ".lock")


def _stamp(descriptor: int, owner: Holder) -> None:
    os.pwrite(descriptor, _STAMP.pack(time.monotonic_ns(), *owner), 0)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
