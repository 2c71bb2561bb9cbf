"""Copies a log while it is used: a consistent file that can be read anywhere. It has no WAL until it is written to.

The processes of a log share memory and locks, which file systems of a network do not carry from machine to machine.
So a log that is in use is refused there.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from tailrace.core.errors import ForeignLogError, LogUnavailableError
from tailrace.core.formats import FOLDER_MODE
from tailrace.log.embedded.database import DATABASE, MAKING, connect, opened, put_in_place
from tailrace.log.embedded.failures import of_copy, of_sqlite
from tailrace.log.embedded.rows import Rows

_OF_THE_SOURCE = frozenset(
    {apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB, apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ}
)
"""Errors that are not the target's, which is only written."""
_OF_A_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "fuse.sshfs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


def copy_log(log: Path, folder: Path) -> int:
    """See ``EmbeddedLog.copy_to``."""
    making = folder / MAKING
    if log.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise ForeignLogError(
            f"the folder for the copy is in the log's own folder {str(log)!r}, which must hold only the log",
            path=str(folder),
            hint="Name a folder outside of it, best on another disk.",
        )
    with _folder_for(folder), closing(connect(log)) as connection:
        try:
            connection.execute("VACUUM INTO ?", (str(making),))
        except apsw.Error as error:
            if _OF_THE_SOURCE & {getattr(error, "result", 0), getattr(error, "extendedresult", 0)}:
                raise of_sqlite(error, log / DATABASE, "copying the log") from error
            raise of_copy(error, folder, connection.system_errno) from error
        put_in_place(making)
    with closing(opened(folder / DATABASE)) as connection:
        return Rows(connection, folder / DATABASE).state().commits


@contextmanager
def _folder_for(folder: Path) -> Generator[None]:
    """The folder of a copy that the block makes. If the block fails, what it has written is removed."""
    parts = [folder / MAKING, folder / DATABASE]
    try:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        strangers = sorted(entry.name for entry in folder.iterdir() if entry != parts[0])
    except OSError as error:
        raise of_copy(error, folder) from error
    if strangers:
        raise ForeignLogError(
            f"the folder for the copy is not empty: {', '.join(strangers[:3])}",
            path=str(folder),
            hint="Name another one; nothing in this one was touched.",
        )
    try:
        parts[0].unlink(missing_ok=True)
        yield
    except BaseException as error:
        with suppress(OSError):
            for path in parts:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise of_copy(error, folder) from error
        raise


def check_machine(folder: Path) -> None:
    """Check that a log that is in use is on a file system of this machine.
    Raises LogUnavailableError: it is on a file system of a network.
    """
    kind = file_system_of(folder)
    if kind in _OF_A_NETWORK:
        raise LogUnavailableError(
            f"the log in {str(folder)!r} is on a network file system ({kind}), where processes of several machines cannot share it",
            hint="Keep the log on a local disk. To read it from other machines, copy it (`tailrace log copy`).",
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
