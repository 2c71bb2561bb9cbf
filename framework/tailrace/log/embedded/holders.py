"""Names the processes that hold a lock of a log. Tailrace ends none of them: the operator decides.

The kernel's list of locks names a file by its inode, which another device may have, too. So a process is
named only if it has the file open; and none is if ``/proc`` is that of another pid namespace.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tailrace.core.errors import LogUnavailableError

_LOCKS = Path("/proc/locks")
_WRITE_LOCK = "120"
"""The byte of SQLite's file of shared memory that the process which appends has locked (walformat.html)."""


class Locker(NamedTuple):
    """A process that has locked a file."""

    pid: int
    is_stopped: bool
    """Whether a signal or a debugger has stopped it. It does not run until it is continued."""


def appenders(shared_memory: Path) -> list[Locker]:
    """The process that appends to a log, by the file of its shared memory, as far as this user may look."""
    return lockers(shared_memory, "POSIX", _WRITE_LOCK)


def lockers(path: Path, kind: str = "FLOCK", first: str = "0") -> list[Locker]:
    """The processes that have locked a file, from the byte ``first`` on, as far as this user may look."""
    try:
        file = path.stat()
        inode = str(file.st_ino)
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return []
        lines = _LOCKS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return []
    found: list[Locker] = []
    for fields in map(str.split, lines):
        if len(fields) == 8 and (kind, inode, first) == (fields[1], fields[5].rpartition(":")[2], fields[6]):
            pid = int(fields[4])
            with suppress(OSError):  # it has ended, or is another user's
                if _has_open(pid, file):
                    found.append(Locker(pid, _is_stopped(pid)))
    return found


def not_free(folder: Path, found: list[Locker], patience_s: float) -> LogUnavailableError:
    """The error for a log that could not be locked. ``found``: the holders of the lock."""
    holder, hint = "a process of another user or container", "Look at that process; end it if it hangs."
    if found:
        holder = f"process {found[0].pid}"
        if found[0].is_stopped:
            holder += ", which is stopped,"
            hint = f"Continue it (`kill -CONT {found[0].pid}`) or end it (`kill -KILL {found[0].pid}`)."
    return LogUnavailableError(
        f"{holder} holds the append lock of {str(folder)!r}, which was not free for {patience_s:g} s",
        hint=f"{hint} Until then nobody can append. Nothing committed is lost.",
    )


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
