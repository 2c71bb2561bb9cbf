"""What this process sees of the log: one connection that only reads, used by one thread at a time.

Whatever belongs together is read in one *moment*: a read transaction, which sees all of a commit or nothing
of it. No moment is longer than one fetch, since the WAL cannot begin again at its start while a process reads
from it. Readers need no lock. SQLite numbers the states of the database that a connection sees: as long as
the number is the same, the small rows that were read before are still valid.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import apsw

from tailrace.core.errors import CorruptLogError, TailraceError
from tailrace.log.embedded.database import DATABASE, SHARED_MEMORY, WAL, connect, forked
from tailrace.log.embedded.failures import DAMAGED, failing, of_sqlite
from tailrace.log.embedded.lock import last_note
from tailrace.log.embedded.rows import Rows

RowsT = TypeVar("RowsT", bound=Rows)


class OpenedLog(ABC, Generic[RowsT]):
    """The rows of the log in ``folder``, opened on demand. ``others``: files that belong to it, besides those of SQLite.

    A file of the log may be deleted or replaced. SQLite continues with the file that it has open, and what it writes to it is
    lost. So a writer looks in each turn, and a reader once a second.
    """

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


class View(OpenedLog[Rows]):
    """Reads the log in ``folder``.

    ``look_s``: interval of the checks whether the log's files are still those that it has open.
    """

    def __init__(self, folder: Path, *, look_s: float = 1.0) -> None:
        super().__init__(folder)
        self.mutex = threading.RLock()
        self.seen = 0
        """The number of the state that the last moment saw."""
        self._openings = 0
        self._depth = 0
        self._interval_s = look_s
        self._next_look_s = 0.0

    @contextmanager
    def moment(self, doing: str = "reading the log") -> Generator[Rows]:
        """Read inside the block as of one moment. Moments of one thread may be nested.

        Raises:
            CorruptLogError: The log is damaged, or one of its files was replaced.
            LogUnavailableError: The file cannot be read.
        """
        with self.mutex, self.failing(doing):
            rows = self.opened()
            if self._depth:
                yield rows
                return
            connection = rows.connection
            connection.execute("BEGIN")
            self._depth = 1
            try:
                self._refresh(rows)
                yield rows
            finally:
                self._depth = 0
                if connection.in_transaction:  # SQLite itself ends it after some errors
                    connection.execute("ROLLBACK")

    def version(self) -> int:
        """The number of the state that a moment would see now. It changes with each commit."""
        with self.mutex, self.failing("following the log"):
            rows = self.opened()
            return self._refresh(rows)

    @contextmanager
    def failing(self, doing: str) -> Generator[None]:
        """Convert errors of SQLite inside the block to ours."""
        try:
            yield
        except apsw.Error as error:
            raise self.error(error, doing) from error

    def close(self) -> None:
        """Close the connection. It is opened again on demand."""
        with self.mutex:
            self.disconnect()

    def _open(self) -> Rows:
        rows = Rows(connect(self.folder), self.path)
        try:
            rows.connection.pragma("query_only", True)
            lost_commits(rows)
        except BaseException:
            rows.connection.close()
            raise
        self._openings += 1
        return rows

    def _refresh(self, rows: Rows) -> int:
        if (now_s := time.monotonic()) >= self._next_look_s:
            self.check_files()
            self._next_look_s = now_s + self._interval_s
        # Two connections give the same number to different states, so a version contains the number of the connection.
        version: int = self._openings << 32 | rows.connection.pragma("data_version")
        if version != self.seen:
            rows.forget()
            self.seen = version
        return version


def lost_commits(rows: Rows) -> int:
    """How many commits a power loss has taken. They were not synced.
    Raises CorruptLogError: commits are missing that were synced.
    """
    note = last_note(rows.path.parent)  # before the rows are read: others commit meanwhile
    commits = rows.state().commits
    if commits < note.synced:
        raise CorruptLogError(
            f"the last {max(note.commits, note.synced) - commits:,} commits are missing: the database, or the WAL beside it, was damaged, deleted or "
            "replaced",
            path=str(rows.path),
            hint=f"Stop all processes of the log. If the files are somewhere else, put them back. {DAMAGED}",
        )
    return max(0, note.commits - commits)
