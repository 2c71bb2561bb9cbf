"""A connection to a log that is opened on demand, for one process, and for the files that it has open.

A file of the log may be deleted or replaced. SQLite continues with the file that it has open, and what it writes to it is
lost. So a writer looks in each turn, and a reader once a second.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

import apsw

from tailrace.core.errors import CorruptLogError, TailraceError
from tailrace.log.embedded.database import DATABASE, SHARED_MEMORY, WAL, forked
from tailrace.log.embedded.failures import failing, of_sqlite
from tailrace.log.embedded.rows import Rows

RowsT = TypeVar("RowsT", bound=Rows)


class OpenedLog(ABC, Generic[RowsT]):
    """The rows of the log in ``folder``. ``others``: files that belong to it, besides those of SQLite."""

    def __init__(self, folder: Path, *others: str) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self._paths = [folder / name for name in (DATABASE, WAL, SHARED_MEMORY, *others)]
        self._inodes: dict[Path, int] = {}
        self._rows: RowsT | None = None
        self._process = os.getpid()

    @abstractmethod
    def _open(self) -> RowsT:
        """Open the log."""

    def opened(self) -> RowsT:
        """The rows, of the connection that is open, or of a new one.
        Raises LogUnavailableError: it was open when this process was forked.
        """
        if self._rows is None:
            self._rows, self._process, self._inodes = self._open(), os.getpid(), {}
            self.check_files()
        elif self._process != os.getpid():
            raise forked(self.folder)
        return self._rows

    def check_files(self) -> None:
        """Check that the files are still those of the log. The first check notes which they are.
        Raises CorruptLogError: one was deleted or replaced; LogUnavailableError: the folder cannot be read.
        """
        with failing(self.folder, "looking at the log's files"):
            found = {path: _inode(path) for path in self._paths}
        wrong = [path.name for path, inode in self._inodes.items() if inode not in (0, found[path])]
        if wrong:
            raise CorruptLogError(
                f"{', '.join(wrong)}: deleted or replaced while this process had the log open",
                path=str(self.folder),
                hint="End all processes of the log, and start them again. If commits are lost, the start reports it.",
            )
        self._inodes = found

    def error(self, error: apsw.Error, doing: str) -> TailraceError:
        """Our error for an error of SQLite."""
        number = 0 if self._rows is None else self._rows.connection.system_errno
        return of_sqlite(error, self.path, doing, number)

    def disconnect(self) -> None:
        """Close the connection. It is opened again on demand."""
        if self._rows is not None and self._process == os.getpid():
            self._rows.connection.close()
        self._rows = None


def _inode(path: Path) -> int:
    """The inode of a file; 0 if there is none yet: a copy of a log has no WAL before it is written to."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
