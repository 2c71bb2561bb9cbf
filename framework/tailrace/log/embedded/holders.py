"""Identifies the process that holds a lock. The lock's file has its identity, so other processes can inspect and end it.

A process id alone is not enough: ids are reused, start again after a boot, and mean something else in another container. So
a holder also has the start time of its process, the boot id of the machine, and the pid namespace. If another process cannot
verify all of these, it leaves the process alone. The same holds if ``/proc`` is that of another pid namespace.

The kernel's list of locks names a file by its inode, and devices have inodes of the same number. So a process that is found there
must also have the file open.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import poll
from typing import NamedTuple

_DYING_MS = 10_000
_LOCKS = Path("/proc/locks")
_READERS = range(123, 128)
"""The bytes that readers lock, of the file for shared memory (``WAL_READ_LOCK`` of SQLite)."""


class Holder(NamedTuple):
    """The identity of a process, unique among all processes that ever ran on this machine."""

    boot: bytes
    """Boot id of the machine: 36 bytes."""
    pid: int
    """Process id; 0: no process."""
    started: int
    """Start time of the process, in kernel ticks since boot."""
    namespace: int
    """Pid namespace. Process ids of another namespace cannot be compared."""


class Life(NamedTuple):
    """The current state of a process, from the kernel."""

    state: str
    ticks: int
    """Processor time used so far, in kernel ticks."""
    started: int

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process. It does not run until it is continued."""
        return self.state in "Tt"


def myself() -> Holder:
    """The identity of this process."""
    life = _life(os.getpid())
    return Holder(boot(), os.getpid(), life.started if life else 0, _namespace())


def life_of(holder: Holder) -> Life | None:
    """The state of a holder's process; None if it has ended, is this process, or cannot be identified for sure."""
    if holder.pid in (0, os.getpid()) or holder.boot != boot() or holder.namespace != _namespace():
        return None
    life = _life(holder.pid)
    return life if life is not None and life.started == holder.started else None


def end(holder: Holder) -> bool:
    """Kill a holder's process, and wait for its end. Returns whether it has ended.

    Raises:
        PermissionError: The process belongs to another user.
    """
    return _killed(holder.pid, lambda: life_of(holder) is not None)


def stopped_readers(shared_memory: Path) -> list[int]:
    """The stopped processes that hold back the WAL of a database, as they have begun to read from it: their process ids.

    Readers lock one byte each of the file for shared memory of SQLite.
    """
    return sorted({pid for pid, first in _stopped_with(shared_memory, "POSIX") if int(first) in _READERS})


def end_reader(shared_memory: Path, pid: int) -> bool:
    """Kill a stopped reader, if it is still one. Returns whether it has ended."""
    try:
        return _killed(pid, lambda: pid in stopped_readers(shared_memory))
    except PermissionError:
        return False


def end_locker(path: Path) -> None:
    """Kill the stopped process that holds the lock of a file, if there is one: it was stopped before it could sign.

    Raises:
        PermissionError: It belongs to another user.
    """
    for pid, first in _stopped_with(path, "FLOCK"):
        _killed(pid, partial(_is_stopped_with, path, pid, first))


def _is_stopped_with(path: Path, pid: int, first: str) -> bool:
    return (pid, first) in _stopped_with(path, "FLOCK")


def _stopped_with(path: Path, kind: str) -> list[tuple[int, str]]:
    """The stopped processes that have locked a file, and the first byte of each lock. The kernel lists who holds which lock."""
    try:
        file = path.stat()
        lines = _LOCKS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []
    found: list[tuple[int, str]] = []
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[1] == kind and fields[5].rpartition(":")[2] == str(file.st_ino):
            pid = int(fields[4])
            life = _life(pid) if pid != os.getpid() else None
            if life is not None and life.is_stopped and _has_open(pid, file):
                found.append((pid, fields[6]))
    return found


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Whether a process has a file open; False if this user may not look."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), file):
                    return True
    return False


def _killed(pid: int, is_the_one: Callable[[], bool]) -> bool:
    """Kill a process and wait for its end, if a check says that the id is still that of the process that is meant."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        # From here on the descriptor refers to one process, even if its id is reused.
        if not is_the_one():
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        waiting = poll()
        waiting.register(process)
        return bool(waiting.poll(_DYING_MS))
    except ProcessLookupError:
        return True
    finally:
        os.close(process)


def processes_with_open(folder: Path, names: re.Pattern[str]) -> set[int]:
    """The other processes, as far as this user may look, that have a file of a folder open whose name matches."""
    found: set[int] = set()
    real = folder.resolve()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            path = descriptor.readlink()
        except OSError:
            continue
        if path.parent == real and names.fullmatch(path.name):
            found.add(int(descriptor.parts[2]))
    return found - {os.getpid()}


def boot() -> bytes:
    """The current boot id of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return bytes(36)


def _life(pid: int) -> Life | None:
    try:
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return None  # the ids in /proc are those of another pid namespace
        line = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything. The fields after it start with the state, the third field.
    fields = line.rpartition(")")[2].split()
    return Life(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
