"""Who owns a task on this machine: a file lock, which death frees at once, and a lease, which a stopped owner loses.

A claim only decides who works; what protects the log is fencing. Who takes a stopped owner's task over makes a new
file in the place of the old one, so that the lock of the old one, held by a process that sleeps, is of no more use, and
then takes the transactional id over. The stopped owner learns of it when it wakes: from ``Claim.renew``, and from the
log, which refuses its commit.

A stopped owner also holds what no lease takes from it, such as its state folder. Who needs that, too, may end it
(``end_stopped``): it has lost its task already, and could do nothing with it any more.
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
from tailrace.log.embedded.holders import Holder, end, life_of, myself

_FOLDER = "owners"
_GUARD = ".guard"
_STAMP = Struct("<Q36sIQQ")
"""When the claim was last renewed, and by whom: the machine's monotonic clock, in ns, which all its processes share; then
the process."""


class Claim:
    """A task that is owned, until ``release`` or for ``lease_s`` after the last ``renew``. Not for forked children."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._mutex = threading.Lock()
        self._owner = myself()

    def renew(self) -> bool:
        """Say that the owner is at work, several times per lease; whether it still is the owner."""
        if self._descriptor is None:
            return False
        if not _is_at(self._path, self._descriptor):
            self.release()
            return False
        _stamp(self._descriptor, self._owner)
        return True

    def holds(self) -> bool:
        """Whether it still is the owner. May be asked from another thread than the one that renews."""
        with self._mutex:
            return self._descriptor is not None and _is_at(self._path, self._descriptor)

    def release(self) -> None:
        """Let others have it. May be called again."""
        with self._mutex:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def end_stopped(log_folder: Path, name: str, *, lease_s: float = 10.0) -> bool:
    """End the owner of ``name`` if it is stopped and has not renewed its claim for ``lease_s``; whether it has ended.

    Nothing happens to a process that runs, that belongs to another user, or of which it is not sure that it is the owner:
    one in another container, say.
    """
    try:
        stamp = _path(log_folder, name).read_bytes()
    except OSError:
        return False
    if len(stamp) != _STAMP.size:
        return False
    renewed_ns, *fields = _STAMP.unpack(stamp)
    owner = Holder(*fields)
    life = life_of(owner)
    if life is None or not life.is_stopped or time.monotonic_ns() - renewed_ns < lease_s * 1e9:
        return False
    try:
        return end(owner)
    except PermissionError:
        return False


class Owner(NamedTuple):
    """The process that owns a task now, as far as this one can tell."""

    pid: int
    """Its number, in the namespace of process numbers that it runs in."""
    is_stopped: bool
    """It was stopped by a signal or a debugger, and does nothing until it is let go on."""


def owner_of(log_folder: Path, name: str) -> Owner | None:
    """Who owns what ``name`` stands for; None if nobody does. Changes nothing, and needs no right to write.

    Raises:
        LogUnavailableError: The folder cannot be read.
    """
    with failing(log_folder, f"looking who owns {name!r}"):
        try:
            descriptor = os.open(_path(log_folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Held for a moment. Who wants to own it meanwhile asks again, as owners do when they start together.
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
    """Own what ``name`` stands for, unless another process does, and is alive and at work; never waits.

    Raises:
        LogUnavailableError: The folder cannot be written.
    """
    folder = log_folder / _FOLDER
    path = _path(log_folder, name)
    with failing(log_folder, f"claiming {name!r}"):
        folder.mkdir(exist_ok=True)
        guard = os.open(folder / _GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Held by who is claiming, for microseconds; who was stopped in here delays others' claims, not their work.
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
    return log_folder / _FOLDER / (quote(name, safe="") + ".lock")


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
