"""Copies a log while it is used: a consistent file that can be read anywhere.

The processes of a log share memory and locks, which file systems of a network do not carry from machine to machine. There a log
could be read without its newest commits, or be damaged. So it is refused there. A copy has no WAL until it is written to.
"""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.core.errors import ForeignLogError, LogUnavailableError
from tailrace.log.embedded.database import MAKING, opened, put_in_place
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.view import View

_PAGES_AT_ONCE = 4_096
_OF_A_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


def copy_log(view: View, folder: Path) -> None:
    """See ``EmbeddedLog.copy_to``."""
    with failing(folder, "copying the log"):
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / MAKING
        making.unlink(missing_ok=True)
        if strangers := sorted(entry.name for entry in folder.iterdir()):
            raise ForeignLogError(
                f"the folder for the copy is not empty: {', '.join(strangers[:3])}",
                path=str(folder),
                hint="Name another one; nothing in this one was touched.",
            )
        with view.moment("copying the log") as rows:
            copy = opened(making, create=True)
            try:
                copy.pragma("synchronous", 0)
                with copy.backup("main", rows.connection, "main") as backup:
                    while not backup.done:
                        backup.step(_PAGES_AT_ONCE)
                copy.pragma("journal_mode", "delete")
            finally:
                copy.close()
        put_in_place(making)


def check_machine(folder: Path) -> None:
    """Check that a log that is in use is on a file system of this machine.

    Raises:
        LogUnavailableError: It is on a file system of a network.
    """
    kind = file_system_of(folder)
    if kind in _OF_A_NETWORK:
        raise LogUnavailableError(
            f"the log in {str(folder)!r} is on a network file system ({kind}), where processes of several machines cannot share it",
            hint="Keep the log on a local disk. To read it from other machines, copy it (`tailrace log copy`), or archive it.",
        )


def file_system_of(folder: Path) -> str:
    """The type of the file system that a folder is on; empty if it is not known."""
    try:
        device = folder.stat().st_dev
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    found = [line for line in lines if line.split()[2:3] == [number]]
    return found[-1].partition(" - ")[2].split()[0] if found else ""
