"""The append lock: only its holder may append.

It is a lock on a file, so the death of its holder frees it at once. The file identifies the holder: its process id, and the
start time of the process, since ids are reused. A holder keeps the lock for one commit, which takes milliseconds. A stopped
holder (SIGSTOP, a debugger, a frozen container) would never release it. So a process that has waited for longer than the lease
checks the holder. If the holder is stopped, or sleeps and has not used the processor since, the waiting process kills it and
cuts off its incomplete frame. The killed process could not have continued anyway, as the new owner of its tasks fences it.

A holder that works, or waits for a processor or a disk, is left alone, however slow it is. Waiting for it ends with
LogUnavailableError.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from tailrace.core.errors import LogUnavailableError
from tailrace.log.embedded.failures import as_log_error
from tailrace.log.embedded.holders import Holder, Life, boot, end, life_of, myself

LOCK = "lock"
_LAYOUT = Struct("<36s36sIQQQ")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.005
_ABOUT_TO_GO_ON = "RD"
"""Process states: waiting for a processor (the machine is busy, or was suspended for a while), or for a disk."""


class _Record(NamedTuple):
    """The content of the lock's file: the current or last holder of the lock."""

    checked: bytes
    """Boot id of the machine when the end of the log was last known to be intact."""
    boot: bytes
    pid: int
    """Process id of the holder; 0: the lock is released."""
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
        self._path = folder / LOCK
        self._descriptor: int | None = None
        self._process = 0
        self._boot = boot()
        self._myself = Holder(self._boot, 0, 0, 0)

    def power_was_lost(self) -> bool:
        """Whether the machine was booted since the lock was last held. True if that is not known."""
        try:
            with self._path.open("rb") as file:
                before = file.read(_LAYOUT.size)
        except FileNotFoundError:
            return True
        return len(before) < _LAYOUT.size or _Record(*_LAYOUT.unpack(before)).checked != self._boot

    @contextmanager
    def held(self) -> Generator[bool]:
        """Hold the lock inside the block. Yields whether the machine was booted since the lock was last held.

        Raises:
            LogUnavailableError: The holder did not release the lock in time and was not killed; or the folder cannot be
                written.
        """
        descriptor = self._opened()
        self._acquire(descriptor)
        checked = b""
        try:
            before = self._record(descriptor)
            checked = before.checked if before else b""
            with _failing(self._path):
                self._sign(descriptor, checked, os.getpid())
            yield checked != self._boot
            checked = self._boot
        finally:
            try:
                self._sign(descriptor, checked, 0)
            except OSError:
                pass  # it only serves to identify a holder, and now there is none
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. It is opened again on demand."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # --- acquiring and releasing

    def _opened(self) -> int:
        if self._descriptor is not None and self._process == os.getpid():
            return self._descriptor
        # A forked child would share its parent's lock through the inherited descriptor. With its own it competes for it.
        self.close()
        with _failing(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._process = os.getpid()
        self._myself = myself()
        return self._descriptor

    def _acquire(self, descriptor: int) -> None:
        begun = time.monotonic()
        nap_s = _FIRST_NAP_S
        watched: tuple[_Record | None, Life | None, float] | None = None
        while not _locked(descriptor):
            now = time.monotonic()
            if now - begun > self.patience_s:
                holder = self._record(descriptor)
                raise LogUnavailableError(
                    f"the append lock of {str(self._path.parent)!r} was not free for {self.patience_s:.0f} s; process "
                    f"{holder.pid if holder else 'unknown'} holds it",
                    hint="Look at that process; end it if it hangs.",
                )
            holder = self._record(descriptor)
            if watched is None or watched[0] != holder:
                watched = holder, self._life(holder), now
            elif now - watched[2] > self.lease_s:
                if self._is_stopped(holder, watched[1]):
                    self._end(holder)
                watched = None
            time.sleep(nap_s)
            nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)

    def _sign(self, descriptor: int, checked: bytes, pid: int) -> None:
        record = _Record(checked, *self._myself._replace(pid=pid), time.monotonic_ns())
        os.pwrite(descriptor, _LAYOUT.pack(*record), 0)

    def _record(self, descriptor: int) -> _Record | None:
        data = os.pread(descriptor, _LAYOUT.size, 0)
        return _Record(*_LAYOUT.unpack(data)) if len(data) == _LAYOUT.size else None

    # --- a stopped holder

    def _life(self, record: _Record | None) -> Life | None:
        return None if record is None else life_of(record.holder)

    def _is_stopped(self, record: _Record | None, before: Life | None) -> bool:
        now = self._life(record)
        if now is None or before is None or now.state in _ABOUT_TO_GO_ON:
            return False
        return now.is_stopped or now.ticks == before.ticks

    def _end(self, record: _Record | None) -> None:
        assert record is not None
        try:
            end(record.holder)
        except PermissionError as error:
            raise LogUnavailableError(
                f"process {record.pid} holds the append lock of {str(self._path.parent)!r} and is stopped",
                hint="It belongs to another user: end it, or let it continue.",
            ) from error


@contextmanager
def _failing(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise as_log_error(error, path.parent, "taking the append lock") from error


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
