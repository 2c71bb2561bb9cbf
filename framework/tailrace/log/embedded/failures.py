"""Converts errors of the operating system and of SQLite to our errors, in one place."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from tailrace.core.errors import CorruptLogError, LogUnavailableError, TailraceError
from tailrace.core.outages import DISK_FAILS, DISK_FULL, OUTAGES

RESTORE = "To restore a copy, put its log.sqlite into a new, empty folder, not beside other files of a log."
DAMAGED = f"{RESTORE} Without a copy, load the data into a new log. docs/running.md says how to save what is left of this one."

_OF_SQLITE = {
    apsw.SQLITE_FULL: DISK_FULL,
    apsw.SQLITE_IOERR: DISK_FAILS,
    apsw.SQLITE_READONLY: ("the log may only be read", "Give this user the right to write the log's folder"),
    apsw.SQLITE_CANTOPEN: ("the log's file cannot be opened", "Look at the folder and its permissions"),
    apsw.SQLITE_BUSY: (
        "another program holds the log's file",
        "Look for a tool that has it open, and end it",
    ),
    apsw.SQLITE_PROTOCOL: ("other processes keep the log's file busy", "Retry"),
    apsw.SQLITE_NOMEM: ("there is not enough memory", "Give the process more of it"),
}
_NO_SHARED_MEMORY = (
    "the file for shared memory beside the log cannot grow: the disk is full, or a file has reached its allowed size",
    "Make room, or raise the limit",
)
_DAMAGE = (apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB, apsw.SQLITE_FORMAT, apsw.SQLITE_SCHEMA, apsw.SQLITE_ERROR)
"""Our statements are right for the tables of a log. So if SQLite refuses one, its tables are not those."""
_TELLS_BY_ERRNO = (apsw.SQLITE_IOERR, apsw.SQLITE_CANTOPEN, apsw.SQLITE_READONLY, apsw.SQLITE_FULL)

_NOT_COMMITTED = frozenset(
    {apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_NOMEM}
)


def outcome_is_open(error: apsw.Error) -> bool:
    """Whether a COMMIT that failed with this error may count later: its last page may be in the WAL.

    After an error of a write it does not: a part of the last page, which makes it valid, does not match its checksum.
    """
    return (
        getattr(error, "result", 0) == apsw.SQLITE_IOERR
        and getattr(error, "extendedresult", 0) not in _NOT_COMMITTED
    )


def is_failed_sync(error: apsw.Error) -> bool:
    """Whether a sync has failed, so that bytes which the kernel takes for synced may not be on the disk."""
    return getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)


def as_log_error(error: OSError, path: Path, doing: str) -> LogUnavailableError:
    """Our error for ``error``. ``doing`` completes "... while ...", for example "appending a commit"."""
    return _outage(_known(error), doing, path, error)


def of_sqlite(error: apsw.Error, path: Path, doing: str, number: int = 0) -> TailraceError:
    """Our error for an error of SQLite. ``number``: the error number of the operating system, if there is one."""
    if getattr(error, "result", 0) in _DAMAGE:
        said = f"the log is damaged, found while {doing}: {error}"
        return CorruptLogError(said, path=str(path), hint=DAMAGED)
    return _outage(_known(error, number), doing, path.parent, error)


def of_copy(error: apsw.Error | OSError, folder: Path, number: int = 0) -> LogUnavailableError:
    """Our error for a copy of a log that cannot be written to a folder. ``number``: see ``of_sqlite``."""
    known = _known(error, number)
    what, hint = known if known != DISK_FULL else (known[0], "Make room, or name a folder on another disk")
    return LogUnavailableError(
        f"the copy in {str(folder)!r} cannot be written: {what}",
        hint=f"{hint}. The incomplete copy is removed. The log is not affected.",
    )


def _known(error: apsw.Error | OSError, number: int = 0) -> tuple[str, str]:
    """What has failed, and what to do."""
    if isinstance(error, OSError):
        return OUTAGES.get(error.errno or 0, ("the folder failed", "Look at the folder and retry"))
    if getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP):
        return _NO_SHARED_MEMORY
    code = getattr(error, "result", 0)
    known = _OF_SQLITE.get(code, ("the log failed", "Look at the folder and retry"))
    return OUTAGES.get(number, known) if code in _TELLS_BY_ERRNO else known


def _outage(known: tuple[str, str], doing: str, folder: Path, error: Exception) -> LogUnavailableError:
    what, hint = known
    if known == DISK_FULL:
        hint += ": then the log takes commits again. To clean it, make as much room as log.sqlite-wal is long"
    return LogUnavailableError(
        f"{what}, while {doing} in {str(folder)!r}: {error}",
        hint=f"{hint}. Nothing committed is lost, and nothing of this is visible.",
    )


@contextmanager
def failing(path: Path, doing: str) -> Generator[None]:
    """Convert an ``OSError`` inside the block to a ``LogUnavailableError``."""
    try:
        yield
    except OSError as error:
        raise as_log_error(error, path, doing) from error
