"""What this process sees of the log: one connection that only reads, used by one thread at a time.

Whatever belongs together is read in one *moment*: a read transaction, which sees all of a commit or nothing
of it. No moment is longer than one fetch, since the WAL cannot begin again at its start while a process reads
from it. Readers need no lock. SQLite numbers the states of the database that a connection sees: as long as
the number is the same, the small rows that were read before are still valid.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from tailrace.core.errors import CorruptLogError
from tailrace.log.embedded.database import DATABASE, SHARED_MEMORY, WAL, connect, forked
from tailrace.log.embedded.failures import DAMAGED, of_sqlite
from tailrace.log.embedded.lock import Note
from tailrace.log.embedded.open_files import OpenFiles
from tailrace.log.embedded.rows import Rows

_log = logging.getLogger("tailrace.log")


class View:
    """Reads the log in ``folder``. ``check`` is called with the rows whenever the file was opened.

    ``look_s``: interval of the checks whether the log's files are still those that it has open.
    """

    def __init__(self, folder: Path, check: Callable[[Rows], object], *, look_s: float = 1.0) -> None:
        self.path = folder / DATABASE
        self.mutex = threading.RLock()
        self._folder = folder
        self._check = check
        self._rows: Rows | None = None
        self.seen = 0
        """The number of the state that the last moment saw."""
        self._openings = 0
        self._depth = 0
        self._files = OpenFiles(folder, (DATABASE, WAL, SHARED_MEMORY))
        self._interval_s = look_s
        self._next_look_s = 0.0
        self._process = os.getpid()

    @contextmanager
    def moment(self, doing: str = "reading the log") -> Generator[Rows]:
        """Read inside the block as of one moment. Moments of one thread may be nested.

        Raises:
            CorruptLogError: The log is damaged, or one of its files was replaced.
            LogUnavailableError: The file cannot be read.
        """
        with self.mutex, self.failing(doing):
            rows = self._opened()
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
            rows = self._opened()
            return self._refresh(rows)

    @contextmanager
    def failing(self, doing: str) -> Generator[None]:
        """Convert errors of SQLite inside the block to ours."""
        try:
            yield
        except apsw.Error as error:
            number = 0 if self._rows is None else self._rows.connection.system_errno
            raise of_sqlite(error, self.path, doing, number) from error

    def close(self) -> None:
        """Close the connection. It is opened again on demand."""
        with self.mutex:
            if self._rows is not None and self._process == os.getpid():
                self._rows.connection.close()
            self._rows = None
            self._files.forget()

    def _opened(self) -> Rows:
        if self._rows is not None:
            if self._process != os.getpid():
                raise forked(self._folder)
            return self._rows
        connection = connect(self._folder)
        rows = Rows(connection, self.path)
        try:
            connection.pragma("query_only", True)
            connection.execute("BEGIN")
            self._check(rows)
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        self._rows, self._process = rows, os.getpid()
        self._openings += 1
        self._files.check()
        return rows

    def _refresh(self, rows: Rows) -> int:
        if (now_s := time.monotonic()) >= self._next_look_s:
            self._files.check()
            self._next_look_s = now_s + self._interval_s
        # Two connections give the same number to different states, so a version contains the number of the connection.
        version: int = self._openings << 32 | rows.connection.pragma("data_version")
        if version != self.seen:
            rows.forget()
            self.seen = version
        return version


def warn_of_loss(commits: int, folder: Path) -> None:
    """Log how many commits a power loss has taken, if any."""
    if commits:
        _log.warning("a power loss has taken the last %d commits of the log in %s", commits, folder)


def check_note(rows: Rows, note: Note, this_boot: bytes, path: Path) -> int:
    """Compare the commits in the log with what its last writer knew. Returns how many a power loss has taken.

    Raises:
        CorruptLogError: Commits are missing that no power loss can have taken.
    """
    lost = note.commits - rows.state().commits
    if lost <= 0:
        return 0
    if note.boot == this_boot or rows.state().commits < note.synced:
        raise CorruptLogError(
            f"the last {lost:,} commits are missing: the database, or the WAL beside it, was damaged, deleted or replaced",
            path=str(path),
            hint=f"Stop all processes of the log. If the files are somewhere else, put them back. {DAMAGED}",
        )
    return lost
