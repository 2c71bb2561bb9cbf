"""Converts errors of the operating system on the log's files to our errors."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tailrace.core.errors import LogUnavailableError

_OUTAGES = {
    errno.ENOSPC: ("the disk is full", "Make room; the log takes commits again then."),
    errno.EDQUOT: ("the disk quota is used up", "Raise it; the log takes commits again then."),
    errno.EFBIG: ("a file has reached the size that the process or the file system allows", "Raise it."),
    errno.EROFS: ("the file system is read-only", "Mount it for writing; it can be read as it is."),
    errno.EACCES: ("permission to the log's folder is denied", "Make this user its owner."),
    errno.EPERM: ("the operating system forbids writing the log's folder", "Allow it."),
    errno.EMFILE: ("the process has too many open files", "Raise its limit (ulimit -n)."),
    errno.ENFILE: ("the machine has too many open files", "Raise its limit."),
    errno.EIO: ("the disk fails", "Look at the kernel's log, and repair or replace the disk."),
}


def as_log_error(error: OSError, path: Path, doing: str) -> LogUnavailableError:
    """Our error for ``error``. ``doing`` completes "... while ...", for example "appending a commit"."""
    what, hint = _OUTAGES.get(error.errno or 0, ("the log's folder failed", "Look at the folder and retry."))
    return LogUnavailableError(
        f"{what}, while {doing} in {str(path)!r}: {error}",
        hint=f"{hint} Nothing committed is lost, and nothing of this is visible.",
    )


@contextmanager
def failing(path: Path, doing: str) -> Generator[None]:
    """Convert an ``OSError`` inside the block to a ``LogUnavailableError``."""
    try:
        yield
    except OSError as error:
        raise as_log_error(error, path, doing) from error
