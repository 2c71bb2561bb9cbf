"""Writes to the log: one transaction of SQLite for each commit, completely or not at all.

The steps of a turn: begin a transaction, which waits for those of others; let the caller write rows; commit; note the
number of commits; copy the WAL into the database, if it has grown. After COMMIT the turn raises no error: what fails
then is logged, and tried again.

A process that is stopped in the middle of a turn (SIGSTOP, a debugger) keeps the lock of SQLite. Others that have waited
for ``patience_s`` raise an error that names it, and the operator continues or ends it. If it is ended, SQLite drops its
transaction.

**The disk.** With ``fsync="commit"`` SQLite syncs the WAL in each commit. With ``"interval"`` a thread syncs it. SQLite
syncs the WAL before it copies pages into the database, and the database before the WAL begins again. So a power loss
takes at most the end of the WAL.

**A failed sync.** The kernel reports a failed write-back only once, and takes the bytes for synced then: a later sync
that succeeds proves nothing, for no process. So nobody appends to the log any more. It can be read, and so be copied.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import apsw

from tailrace.core.errors import CommitUnknownError, CorruptLogError, TailraceError
from tailrace.log.embedded.copying import check_machine
from tailrace.log.embedded.database import SHARED_MEMORY, WAL, Connection, as_wal, connect
from tailrace.log.embedded.failures import failing, is_failed_sync, outcome_is_open
from tailrace.log.embedded.holders import appenders, not_free
from tailrace.log.embedded.lock import NOTE, NoteFile
from tailrace.log.embedded.rows import Changes
from tailrace.log.embedded.view import OpenedLog, View, lost_commits
from tailrace.log.options import FsyncPolicy

_CHECKPOINT_PAGES = 1024
"""Length of the WAL, in pages, from which on a commit copies it into the database: 16 MB."""
_URGENT_PAGES = 4 * _CHECKPOINT_PAGES
"""Length from which on it waits for readers, so that the WAL can begin again."""
_URGENT_S = 1.0
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.005

_log = logging.getLogger("tailrace.log")


class Appender(OpenedLog[Changes]):
    """Does all writes of one ``EmbeddedLog``. Many threads can use it; they take turns."""

    def __init__(self, view: View, note: NoteFile, *, fsync: FsyncPolicy, fsync_interval_s: float) -> None:
        super().__init__(view.folder, NOTE)
        self.view = view
        self._note = note
        self._fsync = fsync
        self._interval_s = fsync_interval_s
        self._mutex = threading.Lock()
        self._deadline_s = 0.0
        """Until when SQLite waits for the locks of others."""
        self._wal_pages = 0
        self._copied_pages = 0
        """Length of the WAL at the last time that it was copied."""
        self._commits = 0
        """Number of the last commit of this process."""
        self._sync_failed = False
        self._closing = threading.Event()
        self._syncing: threading.Thread | None = None

    @contextmanager
    def turn(self, doing: str = "appending a commit") -> Generator[Changes]:
        """A write transaction. It is committed at the end of the block, if something was changed.

        Raises:
            LogUnavailableError: Nothing was committed, and no reader will see any part of it.
            CommitUnknownError: It was written, but it could not be synced to the disk.
            CorruptLogError: A sync has failed before, or a file of the log was replaced.
        """
        with self._mutex, self._undone(doing):
            changes = self._begun()
            yield changes
            if not changes.changed:
                self._roll_back(changes)
                return
            commits = changes.end().commits
            self._commit(changes.connection)
            self._commits = commits
            self._note.committed(commits, synced=self._fsync == "commit")
            try:
                if self._wal_pages - self._copied_pages >= _CHECKPOINT_PAGES:
                    self._checkpoint(changes.connection)
                if self._fsync == "interval":
                    self._begin_syncing()
            except Exception as error:  # noqa: BLE001 (the commit counts, whatever fails after it)
                _log.error("after a commit to the log in %s, which counts: %s", self.folder, error)

    def checkpoint(self) -> None:
        """Copy the WAL into the database now, and wait until that is on the disk."""
        with self._mutex, self._undone("copying the WAL into the database"):
            changes = self._begun()
            self._roll_back(changes)
            self._checkpoint(changes.connection)

    def sync(self) -> None:
        """Wait until all commits of this process are on the disk, whatever the policy.
        Raises CorruptLogError: they may not be.
        """
        if covered := self._commits:
            with failing(self.folder, "syncing the log"):
                self._check_syncs()
                self._sync_wal()
            self._note.synced(covered)

    def close(self) -> None:
        """Sync for the last time, and close the connection. It is opened again on demand."""
        thread = self._syncing
        if thread is not None and self._process == os.getpid():
            self._closing.set()
            thread.join()
            self._syncing = None
            self._closing.clear()
        with self._mutex:
            self.disconnect()

    def _begun(self) -> Changes:
        changes = self.opened()
        self._check_syncs()
        self._deadline_s = time.monotonic() + self._note.patience_s
        try:
            changes.connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            found = appenders(self.folder / SHARED_MEMORY)
            raise not_free(self.folder, found, self._note.patience_s) from error
        self.check_files()
        changes.begin()
        return changes

    @contextmanager
    def _undone(self, doing: str) -> Generator[None]:
        """If the block fails, roll back, and convert errors of SQLite and of the system to ours."""
        try:
            with failing(self.folder, doing):
                yield
        except BaseException as error:
            if self._rows is not None and self._process == os.getpid():
                self._rows.forget()
                self._roll_back(self._rows)
            if isinstance(error, apsw.Error):
                raise self.error(error, doing) from error
            raise

    def _open(self) -> Changes:
        check_machine(self.folder)
        with self._note.held():
            connection = connect(self.folder, synchronous="FULL" if self._fsync == "commit" else "NORMAL")
            try:
                as_wal(connection, self._note)
                changes = Changes(connection, self.path)
                if lost := lost_commits(changes):
                    _log.warning(
                        "the last %d commits of the log in %s are missing, which were not synced: a power loss has taken them",
                        *(lost, self.folder),
                    )
            except BaseException:
                connection.close()
                raise
        connection.set_busy_handler(self._wait)
        connection.set_wal_hook(self._count_pages)
        return changes

    def _wait(self, naps: int) -> bool:
        time.sleep(min(_FIRST_NAP_S * (naps + 1), _LONGEST_NAP_S))
        return time.monotonic() < self._deadline_s

    def _count_pages(self, _connection: Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        self._copied_pages = min(self._copied_pages, pages)
        return apsw.SQLITE_OK

    def _commit(self, connection: Connection) -> None:
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            if is_failed_sync(error):
                self._refuse()
            if not outcome_is_open(error):
                raise
            raise CommitUnknownError(
                f"what was committed last could not be synced to the disk in {str(self.folder)!r}: {error}",
                hint="Look at the disk. Take the transactional id over again and read what is there.",
            ) from error

    @staticmethod
    def _roll_back(changes: Changes) -> None:
        """End the transaction if it is still open: SQLite itself ends it after some errors."""
        if changes.connection.in_transaction:
            changes.connection.execute("ROLLBACK")

    def _checkpoint(self, connection: Connection) -> None:
        """Copy the WAL into the database. If it fails, the commits stay in the WAL, and a later turn tries again."""
        urgent = self._wal_pages >= _URGENT_PAGES
        mode = apsw.SQLITE_CHECKPOINT_RESTART if urgent else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._deadline_s = time.monotonic() + _URGENT_S
        try:
            connection.wal_checkpoint(None, mode)
            self._copied_pages = self._wal_pages
        except apsw.BusyError:
            self._copied_pages = self._wal_pages  # tried again when the WAL has grown as much once more
            if urgent:
                _log.warning(
                    "the WAL of the log in %s grows, as a process has begun to read from it and does not end: look for one that is "
                    "stopped (`ps -eo pid,stat,args` shows it with a T), and continue or end it",
                    self.folder,
                )
        except apsw.Error as error:
            if is_failed_sync(error):
                self._refuse()
            _log.warning("%s", self.error(error, "copying the WAL into the database"))

    def _refuse(self) -> None:
        self._sync_failed = True  # also if the note cannot be written
        self._note.sync_failed()

    def _check_syncs(self) -> None:
        if self._sync_failed or self._note.read().sync_failed:
            raise self._refused()

    def _refused(self) -> CorruptLogError:
        return CorruptLogError(
            "a sync of the log has failed: what was committed last may not be on the disk, and nothing more is appended",
            path=str(self.path),
            hint="Look at the disk. Copy the log (`tailrace log copy`), and continue with the copy. "
            "It has what the log has: append again what is missing.",
        )

    def _sync_wal(self) -> None:
        # The WAL has no locks of SQLite, so it may be opened and closed beside it. The database may not.
        for path, sync in ((self.folder / WAL, os.fdatasync), (self.folder, os.fsync)):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync(descriptor)
            except OSError as error:
                self._refuse()
                raise self._refused() from error
            finally:
                os.close(descriptor)

    def _begin_syncing(self) -> None:
        if self._syncing is None or not self._syncing.is_alive():
            thread = threading.Thread(target=self._sync_at_intervals, name="tailrace-log-sync", daemon=True)
            thread.start()
            self._syncing = thread

    def _sync_at_intervals(self) -> None:
        synced, ended = 0, False
        while not ended:
            ended = self._closing.wait(self._interval_s)
            commits = self._commits
            if commits == synced:
                continue
            try:
                self.sync()
                synced = commits
            except TailraceError as error:
                _log.error("%s", error)
                ended = ended or isinstance(error, CorruptLogError)
