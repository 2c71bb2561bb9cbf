"""Identifies processes, and names the stopped ones that hold a lock of a log. Nobody is ended: the operator decides.

A process id alone does not identify a process: ids are reused, start again after a boot, and mean something else in another
container. So a holder also has the start time of its process, the boot id of the machine, and the pid namespace. If these cannot
be verified, the process does not count as the holder. The same holds if ``/proc`` is that of another pid namespace.

The kernel's list of locks names a file by its inode, and devices have inodes of the same number. So a process that is found there
must also have the file open.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

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
    started: int

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped the process. It does not run until it is continued."""
        return self.state in "Tt"


class Locker(NamedTuple):
    """A process that has locked a file."""

    pid: int
    first_byte: int
    is_stopped: bool


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


def lockers(path: Path, kind: Literal["FLOCK", "POSIX"]) -> list[Locker]:
    """The processes that have locked a file, by the kernel's list, as far as this user may look."""
    try:
        file = path.stat()
        lines = _LOCKS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []
    found: list[Locker] = []
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[1] == kind and fields[5].rpartition(":")[2] == str(file.st_ino):
            pid = int(fields[4])
            life = _life(pid)
            if life is not None and _has_open(pid, file):
                found.append(Locker(pid, int(fields[6]), life.is_stopped))
    return found


def stopped_readers(shared_memory: Path) -> list[int]:
    """The stopped processes that hold back the WAL of a database, as they have begun to read from it: their process ids.

    Readers lock one byte each of the file for shared memory of SQLite.
    """
    found = lockers(shared_memory, "POSIX")
    return sorted({one.pid for one in found if one.is_stopped and one.first_byte in _READERS})


def boot() -> bytes:
    """The current boot id of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return bytes(36)


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Whether a process has a file open; False if this user may not look."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), file):
                    return True
    return False


def _life(pid: int) -> Life | None:
    try:
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return None  # the ids in /proc are those of another pid namespace
        line = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything. The fields after it start with the state, the third field.
    fields = line.rpartition(")")[2].split()
    return Life(fields[0], int(fields[19]))


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
