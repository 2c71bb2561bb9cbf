"""Writes to the log: one transaction for each commit, under the append lock, completely or not at all.

The steps of a turn: take the lock; begin a transaction; compare the number of commits with the note of the last
holder; let the caller write rows; commit; copy the WAL into the database, if it has grown; note the number of
commits; release the lock. After COMMIT the turn raises no error: what fails then is logged, and tried again.

**The disk.** With ``fsync="commit"`` SQLite syncs the WAL in each commit. With ``"interval"`` a thread syncs it,
outside of the lock. The WAL is synced before pages are copied into the database, and the database before the WAL
begins again. So a power loss takes at most the end of the WAL. After a sync the note says how many commits it
covers: if one of these is missing later, no power loss has taken it.

**A failed sync.** The kernel reports a failed write-back only once, and takes the bytes for synced then: a later
sync that succeeds proves nothing, for no process. So the next holder of the lock first writes the WAL again, the
same bytes in the same places, and syncs it. ``Note.in_doubt`` tells it to.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import apsw

from tailrace.core.errors import CommitUnknownError, LogUnavailableError
from tailrace.log.embedded.copying import check_machine
from tailrace.log.embedded.database import (
    BUSY_MS,
    DATABASE,
    SHARED_MEMORY,
    WAL,
    Connection,
    as_wal,
    connect,
    forked,
)
from tailrace.log.embedded.failures import as_log_error, of_sqlite, outcome_is_open
from tailrace.log.embedded.holders import boot
from tailrace.log.embedded.lock import LOCK, AppendLock, Note
from tailrace.log.embedded.open_files import OpenFiles
from tailrace.log.embedded.rows import Changes
from tailrace.log.embedded.view import View, check_note, warn_of_loss
from tailrace.log.options import FsyncPolicy

_CHECKPOINT_PAGES = 1024
"""Length of the WAL, in pages, from which on a commit copies it into the database: 16 MB."""
_URGENT_PAGES = 4 * _CHECKPOINT_PAGES
"""Length from which on it waits for readers, so that the WAL can begin again."""
_URGENT_MS = 1_000

_log = logging.getLogger("tailrace.log")


class Appender:
    """Does all writes of one ``EmbeddedLog``. Many threads can use it; they take turns."""

    def __init__(self, view: View, lock: AppendLock, *, fsync: FsyncPolicy, fsync_interval_s: float) -> None:
        self.folder = view.path.parent
        self.lock = lock
        self.view = view
        self._fsync = fsync
        self._interval_s = fsync_interval_s
        self._mutex = threading.Lock()
        self._boot = boot()
        self._changes: Changes | None = None
        self._files = OpenFiles(self.folder, (DATABASE, WAL, SHARED_MEMORY, LOCK))
        self._wal_pages = 0
        self._copied_pages = 0
        """Length of the WAL at the last time that it was copied."""
        self._commits = 0
        """Number of the last commit of this process."""
        self._in_doubt = False
        self._closing = threading.Event()
        self._syncing: threading.Thread | None = None
        self._process = os.getpid()

    @contextmanager
    def turn(self, doing: str = "appending a commit") -> Generator[Changes]:
        """Hold the lock, and a write transaction. It is committed at the end of the block, if something was changed.

        Raises:
            LogUnavailableError: Nothing was committed, and no reader will see any part of it.
            CommitUnknownError: It was written, but it could not be synced to the disk.
        """
        with self._mutex, self.lock.held():
            changes = self._begun(doing)
            with self._undone(doing):
                yield changes
                if changes.changed:
                    commits = changes.end().commits
                    self._commit(changes.connection)
                    self._commits = commits
                    synced = commits if self._fsync == "commit" else self.lock.note.synced
                    self.lock.note = self.lock.note._replace(boot=self._boot, commits=commits, synced=synced)
            try:
                self._roll_back(changes, nothing_new=True)
                if self._wal_pages - self._copied_pages >= _CHECKPOINT_PAGES:
                    self._checkpoint(changes.connection)
                if self._fsync == "interval" and changes.changed:
                    self._begin_syncing()
            except Exception as error:  # noqa: BLE001 (the commit counts, whatever fails after it)
                _log.error("after a commit to the log in %s, which counts: %s", self.folder, error)

    def checkpoint(self) -> None:
        """Copy the WAL into the database now, and wait until that is on the disk."""
        with self._mutex, self.lock.held():
            changes = self._begun("copying the WAL into the database")
            self._roll_back(changes)
            self._checkpoint(changes.connection)

    def sync(self) -> None:
        """Wait until all commits of this process are on the disk, whatever the policy.

        Raises:
            LogUnavailableError: They may not be.
        """
        covered = self._commits
        try:
            if not self._sync_wal():
                return
        except OSError:
            with self._mutex, self.lock.held():
                self._heal()
        with suppress(LogUnavailableError), self._mutex, self.lock.held():
            note = self.lock.note  # if it cannot be written, less is checked
            if note.boot == self._boot and not note.in_doubt and note.synced < covered <= note.commits:
                self.lock.note = note._replace(synced=covered)

    def close(self) -> None:
        """Sync for the last time, and close the connection. It is opened again on demand."""
        thread = self._syncing
        if thread is not None and self._process == os.getpid():
            self._closing.set()
            thread.join()
            self._syncing = None
            self._closing.clear()
        with self._mutex:
            if self._changes is not None and self._process == os.getpid():
                self._changes.connection.close()
            self._changes = None
            self._files.forget()

    # --- one turn

    def _begun(self, doing: str) -> Changes:
        if self.lock.note.in_doubt or self._in_doubt:
            self._heal()
        with self._undone(doing):
            changes = self._opened()
            changes.connection.execute("BEGIN IMMEDIATE")
            self._files.check()
            changes.begin()
            lost = check_note(changes, self.lock.note, self._boot, self.view.path)
            warn_of_loss(lost, self.folder)
            if lost or self.lock.note.boot != self._boot:
                self.lock.note = Note(self._boot, changes.before.commits, self.lock.note.synced)
        return changes

    @contextmanager
    def _undone(self, doing: str) -> Generator[None]:
        """If the block fails, roll back, and convert errors of SQLite to ours."""
        try:
            yield
        except BaseException as error:
            if self._changes is not None and self._process == os.getpid():
                self._roll_back(self._changes)
            if isinstance(error, apsw.Error):
                raise self._error(error, doing) from error
            raise

    def _opened(self) -> Changes:
        if self._changes is not None:
            if self._process != os.getpid():
                raise forked(self.folder)
            return self._changes
        check_machine(self.folder)
        connection = connect(self.folder, synchronous="FULL" if self._fsync == "commit" else "NORMAL")
        try:
            as_wal(connection, self.lock)
        except BaseException:
            connection.close()
            raise
        connection.set_wal_hook(self._count_pages)
        self._changes = Changes(connection, self.view.path)
        self._process = os.getpid()
        return self._changes

    def _count_pages(self, _connection: Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        self._copied_pages = min(self._copied_pages, pages)
        return apsw.SQLITE_OK

    def _commit(self, connection: Connection) -> None:
        try:
            connection.execute("COMMIT")
        except apsw.Error as error:
            if not outcome_is_open(error):
                raise
            self._doubt()
            raise CommitUnknownError(
                f"what was committed last could not be synced to the disk in {str(self.folder)!r}: {error}",
                hint="Look at the disk. Take the transactional id over again and read what is there.",
            ) from error

    def _roll_back(self, changes: Changes, *, nothing_new: bool = False) -> None:
        """End the transaction if it is still open: SQLite itself ends it after some errors."""
        if not nothing_new:
            changes.forget()
        if changes.connection.in_transaction:
            changes.connection.execute("ROLLBACK")

    def _error(self, error: apsw.Error, doing: str) -> Exception:
        number = 0 if self._changes is None else self._changes.connection.system_errno
        return of_sqlite(error, self.view.path, doing, number)

    # --- the disk

    def _checkpoint(self, connection: Connection) -> None:
        """Copy the WAL into the database. If it fails, the commits stay in the WAL, and a later turn tries again."""
        urgent = self._wal_pages >= _URGENT_PAGES
        mode = apsw.SQLITE_CHECKPOINT_RESTART if urgent else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            connection.set_busy_timeout(_URGENT_MS)
            connection.wal_checkpoint(None, mode)
            self._copied_pages = self._wal_pages
        except apsw.BusyError:
            self._copied_pages = self._wal_pages  # tried again when the WAL has grown as much once more
            _log.warning(
                "the WAL of the log in %s grows, as a process has begun to read from it and does not end: look for one that is "
                "stopped (`ps -eo pid,stat,args` shows it with a T), and continue or end it",
                self.folder,
            )
        except apsw.Error as error:
            if outcome_is_open(error):
                self._doubt()
            _log.warning("%s", self._error(error, "copying the WAL into the database"))
        finally:
            connection.set_busy_timeout(BUSY_MS)

    def _doubt(self) -> None:
        self._in_doubt = True  # also if the note cannot be written
        self.lock.note = self.lock.note._replace(in_doubt=True)

    def _heal(self) -> None:
        """Write the WAL again and sync it, after a failed sync. See the head of this file."""
        try:
            with (self.folder / WAL).open("r+b") as file:
                data = file.read()
                file.seek(0)
                file.write(data)
            self._sync_wal()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._doubt()
            raise as_log_error(error, self.folder, "writing again what could not be synced") from error
        self._in_doubt = False
        self.lock.note = self.lock.note._replace(in_doubt=False)

    def _sync_wal(self) -> bool:
        """Sync the WAL, if there is one. Returns whether there is."""
        # The WAL has no locks of SQLite, so it may be opened and closed beside it. The database may not.
        for path, sync in ((self.folder / WAL, os.fdatasync), (self.folder, os.fsync)):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        return True

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
            except LogUnavailableError as error:
                _log.error("%s", error)
