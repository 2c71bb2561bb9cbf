"""What this process sees of the log: one connection that only reads, used by one thread at a time.

Whatever belongs together is read in one *moment*: a read transaction, which sees all of a commit or nothing
of it. No moment is longer than one fetch, since the WAL cannot begin again at its start while a process reads
from it. Readers need no lock. SQLite numbers the states of the database that a connection sees: as long as
the number is the same, the small rows that were read before are still valid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from tailrace.core.errors import CorruptLogError
from tailrace.log.embedded.database import connect
from tailrace.log.embedded.failures import DAMAGED
from tailrace.log.embedded.lock import last_note
from tailrace.log.embedded.opened import OpenedLog
from tailrace.log.embedded.rows import Rows


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
