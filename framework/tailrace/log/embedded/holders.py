"""Names the processes that hold a lock of a log. Tailrace ends none of them: the operator decides.

The kernel's list of locks names a file by its inode, which another device may have, too. So a process is
named only if it has the file open; and none is if ``/proc`` is that of another pid namespace.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LOCKS = Path("/proc/locks")


class Locker(NamedTuple):
    """A process that has locked a file."""

    pid: int
    is_stopped: bool
    """Whether a signal or a debugger has stopped it. It does not run until it is continued."""


def lockers(path: Path) -> list[Locker]:
    """The processes that have locked a file (``flock``), as far as this user may look."""
    try:
        file = path.stat()
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return []
        lines = _LOCKS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []
    found: list[Locker] = []
    for fields in map(str.split, lines):
        if len(fields) == 8 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(file.st_ino):
            pid = int(fields[4])
            with suppress(OSError):  # it has ended, or is another user's
                if _has_open(pid, file):
                    found.append(Locker(pid, _is_stopped(pid)))
    return found


def boot() -> bytes:
    """The current boot id of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()[:36]
    except OSError:
        return bytes(36)


def _has_open(pid: int, file: os.stat_result) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.path.samestat(descriptor.stat(), file):
                return True
    return False


def _is_stopped(pid: int) -> bool:
    # The name, in parentheses, may contain anything. The state is the next field.
    line = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    return line.rpartition(")")[2].split()[0] in "Tt"
