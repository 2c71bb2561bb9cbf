"""Ownership of tasks on one machine: a file lock for each task, which the death of its owner frees at once, and a lease.

If an owner is suspended and its lease expires, another process may take its task. That process replaces the lock file, so
the lock that the suspended process holds has no effect any more, and then takes over the transactional id. When the suspended
owner runs again, ``check`` raises, and the log refuses its commit.

A thread renews the leases, since a slice or a restore may take longer than a lease. A suspended process does not run its threads
either. What else it holds, such as a state folder, has no lease: it is free when the process is continued or ended.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from struct import Struct
from urllib.parse import quote

from tailrace.core.errors import FencedError, TaskOwnedError
from tailrace.core.names import transactional_id
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.holders import Holder, life_of, myself
from tailrace.log.embedded.lock import locked
from tailrace.log.tasks import AppTasks, ClaimedTasks, OnAssigned, Owner, nothing

OWNERS = "owners"
_GUARD = ".guard"
_STAMP = Struct("<Q36sIQQ")
"""The time of the last renewal, in ns of the monotonic clock, which all processes of a machine share; then
the owner's process."""
_RENEWALS = 5
"""Per lease."""
_PATIENCE_S = 1.0
"""For how long a claim is retried: processes that start together may block each other for a moment."""
_NEVER_S = 1e9


class EmbeddedTasks(ClaimedTasks):
    """The tasks of a process, claimed when it is made.

    Raises:
        TaskOwnedError: Another process owns one of them; none is claimed then.
        LogUnavailableError: The log's folder cannot be written.
    """

    def __init__(self, folder: Path, tasks: AppTasks, on_assigned: OnAssigned = nothing) -> None:
        super().__init__(tasks, on_assigned)
        self._folder = folder
        self._folder_then = _identity(folder)
        self._claims: dict[int, Claim] = {}
        self._lost: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(tasks.lease_s / _RENEWALS,), daemon=True)
        try:
            for number in self.owned:
                self._claims[number] = _claimed(folder, tasks, number)
        except BaseException:
            self._release()
            raise
        self._thread.start()

    def check(self) -> None:
        """See ``Tasks.check``.

        Raises:
            FencedError: Another process has taken a task, or the log's folder was replaced.
        """
        if self._lost is None:
            # After a stop of the process, the renewing thread may not have run yet.
            self._lost = next((number for number, one in self._claims.items() if not one.holds()), None)
        if self._lost is None:
            return
        if _identity(self._folder) != self._folder_then:
            raise FencedError(
                f"the folder of the log, {str(self._folder)!r}, was replaced or removed while the task {self.app}/{self._lost} "
                "ran on it",
                hint="Stop the services of a log before its folder is replaced, and start them again afterwards.",
            )
        raise FencedError(
            f"the task {self.app}/{self._lost} was taken over by another process: this one did not run for "
            "longer than its lease",
            hint="Nothing is lost: the new owner continues from the last commit.",
        )

    def close(self) -> None:
        """See ``Tasks.close``."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._release()

    def _release(self) -> None:
        for one in self._claims.values():
            one.release()

    def _renew(self, every_s: float) -> None:
        while not self._done.wait(every_s):
            for number, one in self._claims.items():
                try:
                    is_ours = one.renew()
                except OSError:
                    continue  # such as a full disk: the lease lasts for several renewals
                if not is_ours:
                    self._lost = number
                    return


class Claim:
    """Ownership of a name, until ``release`` or for a lease after the last ``renew``. Not valid in forked children."""

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
        """Release the name for other processes. Can be called repeatedly."""
        with self._mutex:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def claim(folder: Path, name: str, *, lease_s: float) -> Claim | None:
    """Claim ``name``. Returns None if another process owns it and has renewed its lease in time. Never waits.

    Raises:
        LogUnavailableError: The folder cannot be written.
    """
    path = _path(folder, name)
    with failing(folder, f"claiming {name!r}"):
        path.parent.mkdir(exist_ok=True)
        guard = os.open(path.parent / _GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Held for microseconds during a claim. A process stopped here delays the claims of others, but not their work.
            if not locked(guard):
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not locked(descriptor):
                stamp = os.pread(descriptor, _STAMP.size, 0)
                os.close(descriptor)
                renewed_ns = _STAMP.unpack(stamp)[0] if len(stamp) == _STAMP.size else time.monotonic_ns()
                if time.monotonic_ns() - renewed_ns < lease_s * 1e9:
                    return None
                path.unlink()
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _stamp(descriptor, myself())
            return Claim(path, descriptor)
        finally:
            os.close(guard)


def owner_of(folder: Path, name: str) -> Owner | None:
    """The owner of ``name``; None if there is none. Changes nothing, and needs no write permission.

    Raises:
        LogUnavailableError: The folder cannot be read.
    """
    with failing(folder, f"looking who owns {name!r}"):
        try:
            descriptor = os.open(_path(folder, name), os.O_RDONLY | os.O_CLOEXEC)
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
        return Owner(0, stopped=False)
    holder = Holder(*_STAMP.unpack(stamp)[1:])
    life = life_of(holder)
    return Owner(holder.pid, stopped=life is not None and life.is_stopped)


def _claimed(folder: Path, tasks: AppTasks, number: int) -> Claim:
    name, deadline = transactional_id(tasks.app, number), time.monotonic() + _PATIENCE_S
    while True:
        found = claim(folder, name, lease_s=tasks.lease_s if tasks.from_suspended else _NEVER_S)
        if found is not None:
            return found
        if time.monotonic() > deadline:
            owner = owner_of(folder, name) or Owner(0, stopped=False)
            pid = f" ({owner.pid})" if owner.pid else ""
            end = f" (`kill -KILL {owner.pid}`)" if owner.stopped else ""
            raise TaskOwnedError(
                f"the task {tasks.app}/{number} is owned by another process{pid}, which is "
                f"{'stopped' if owner.stopped else 'alive'}",
                hint=f"Stop that worker first, or end it if it hangs{end}. If it was stopped or frozen, a worker with a --state of "
                f"its own takes its tasks over after its lease of {tasks.lease_s:g} s.",
            )
        time.sleep(0.02)


def _path(folder: Path, name: str) -> Path:
    return folder / OWNERS / (quote(name, safe="") + ".lock")


def _identity(folder: Path) -> tuple[int, int] | None:
    """The identity of the folder that is at this path now; None if there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stamp(descriptor: int, owner: Holder) -> None:
    os.pwrite(descriptor, _STAMP.pack(time.monotonic_ns(), *owner), 0)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
