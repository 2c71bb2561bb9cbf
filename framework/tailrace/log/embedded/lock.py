"""The append lock: who holds it may append, and nobody else.

It is a lock on a file, so the death of its holder frees it at once, and says who has it: process, and when that process
was started, since numbers are used again. A holder keeps it for one commit, which takes milliseconds. One that was
stopped (SIGSTOP, a debugger, a frozen container) would keep it for ever, so who has waited for longer than the lease
looks at the holder: if it is stopped, or has not used the processor since, it is ended, and what it had half written
is cut off. It could not have gone on anyway: whoever owns its tasks by then has fenced it.

A holder that works, however slowly, is left alone; waiting ends with LogUnavailableError.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from tailrace.core.errors import LogUnavailableError
from tailrace.log.embedded.failures import as_log_error

LOCK = "lock"
_RECORD = Struct("<36s36sIQQQ")
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.005
_UNINTERRUPTIBLE = "D"
_STOPPED = "Tt"


class _Holder(NamedTuple):
    checked: bytes
    """In which life of the machine the tail of the log was last known to be whole."""
    boot: bytes
    """The life of the machine that the process is of."""
    pid: int
    """0: it has let go of the lock."""
    started: int
    """In the kernel's ticks since the machine's start."""
    namespace: int
    """Of process numbers: those of another namespace say nothing here."""
    taken_ns: int


class _Life(NamedTuple):
    state: str
    ticks: int
    """Of processor time."""
    started: int


class AppendLock:
    """The lock of one log, for one thread at a time. ``lease_s``: for how long a stopped holder is waited for."""

    def __init__(self, folder: Path, *, lease_s: float = 10.0, patience_s: float = 60.0) -> None:
        self.lease_s = lease_s
        self.patience_s = patience_s
        self._path = folder / LOCK
        self._descriptor: int | None = None
        self._process = 0
        self._boot = _boot()
        self._started = 0
        self._namespace = _namespace()

    def power_was_lost(self) -> bool:
        """Whether the machine was started anew since the lock was last held. If nobody knows, it was."""
        try:
            with self._path.open("rb") as file:
                before = file.read(_RECORD.size)
        except FileNotFoundError:
            return True
        return len(before) < _RECORD.size or _Holder(*_RECORD.unpack(before)).checked != self._boot

    @contextmanager
    def held(self) -> Generator[bool]:
        """Hold the lock; gives whether the machine was started anew since it was last held.

        Raises:
            LogUnavailableError: Its holder did not let go in time and could not, or need not, be ended; or the folder
                cannot be written.
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
                pass  # it only serves to find a holder, and there is none
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. It is opened again when it is needed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # --- taking and letting go

    def _opened(self) -> int:
        if self._descriptor is not None and self._process == os.getpid():
            return self._descriptor
        # A forked child shares its parent's lock through an inherited descriptor; with its own it competes for it.
        self.close()
        with _failing(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._process = os.getpid()
        life = _life(self._process)
        self._started = life.started if life else 0
        return self._descriptor

    def _acquire(self, descriptor: int) -> None:
        begun = time.monotonic()
        nap_s = _FIRST_NAP_S
        watched: tuple[_Holder | None, _Life | None, float] | None = None
        while not _locked(descriptor):
            now = time.monotonic()
            if now - begun > self.patience_s:
                holder = self._record(descriptor)
                raise LogUnavailableError(
                    f"the append lock of {str(self._path.parent)!r} was not free for {self.patience_s:.0f} s; process "
                    f"{holder.pid if holder else 'unknown'} holds it",
                    mend="Look at that process; end it if it hangs.",
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
        record = (checked, self._boot, pid, self._started, self._namespace, time.monotonic_ns())
        os.pwrite(descriptor, _RECORD.pack(*record), 0)

    def _record(self, descriptor: int) -> _Holder | None:
        data = os.pread(descriptor, _RECORD.size, 0)
        return _Holder(*_RECORD.unpack(data)) if len(data) == _RECORD.size else None

    # --- a stopped holder

    def _life(self, holder: _Holder | None) -> _Life | None:
        """What is known of a holder's process; None if it cannot be told which process that is."""
        if holder is None or holder.pid in (0, os.getpid()):
            return None
        if holder.boot != self._boot or holder.namespace != self._namespace:
            return None
        life = _life(holder.pid)
        return life if life is not None and life.started == holder.started else None

    def _is_stopped(self, holder: _Holder | None, before: _Life | None) -> bool:
        now = self._life(holder)
        if now is None or before is None or now.state == _UNINTERRUPTIBLE:
            return False
        return now.state in _STOPPED or now.ticks == before.ticks

    def _end(self, holder: _Holder | None) -> None:
        assert holder is not None
        try:
            process = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            return
        try:
            # The descriptor is the process's for good; what it was opened for is looked at once more.
            if self._life(holder) is not None:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise LogUnavailableError(
                f"process {holder.pid} holds the append lock of {str(self._path.parent)!r} and is stopped",
                mend="It belongs to another user: end it, or let it go on.",
            ) from error
        finally:
            os.close(process)


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


def _life(pid: int) -> _Life | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; what follows is numbered from the state, the third field.
    fields = line.rpartition(")")[2].split()
    return _Life(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _boot() -> bytes:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return bytes(36)
