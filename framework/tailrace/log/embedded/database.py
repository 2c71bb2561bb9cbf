"""The file of the log: a SQLite database in WAL mode. Its tables, its creation, and the connections to it.

::

    <folder>/log.sqlite          the database; ``log.sqlite-wal`` and ``-shm`` beside it are parts of it
    <folder>/note                how many commits there were, and how many are on the disk (``lock``)
    <folder>/cleaning            locked while the log is cleaned (``cleaning``)
    <folder>/owners/             who owns which task (``tasks``)

    log            one row: identity, number of commits
    topics         by name: place of its first partition, settings
    partitions     by place: start, end, highest timestamp, bytes of its blocks
    offsets        by group, topic and partition: the committed offset
    writers        by transactional id: its epoch
    cleanings      by place: what the last cleanings have done (``cleaning``)
    blocks         by place and first offset: consecutive records of a partition, with a checksum (``rows``)
    publications   by topic, in order: publisher, watermark, the ends from which on it holds

A *place* is the number of a partition among all partitions of the log. The id of a block or publication has the place,
or that of the first partition of the topic, in its upper bits, and the offset or running number in the lower ones. So a partition is one
range of the table.

The blocks of a partition follow each other without gaps. Otherwise SQLite is trusted with its pages.

SQLite deletes a WAL beside an empty database, and applies a journal or WAL to whatever database lies beside it. So the
files are checked before SQLite opens them. A log has a note before it says in its header that it is in WAL mode, and says
so before it has a WAL. A copy and a new log do not until the first process writes to them. So a database that was copied
alone is found, and a copy that was put over the database of a log.

Every process uses the SQLite in apsw: before 3.51.3, SQLite can lose commits if several connections write to one
database (the "WAL-reset bug"), and the SQLite that a Python was built with may be older than that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from tailrace.core.errors import CorruptLogError, ForeignLogError, LogUnavailableError
from tailrace.core.formats import FOLDER_MODE, check_format
from tailrace.log.embedded.failures import RESTORE, failing, of_sqlite
from tailrace.log.embedded.lock import NOTE, NoteFile

DATABASE = "log.sqlite"
WAL = DATABASE + "-wal"
SHARED_MEMORY = DATABASE + "-shm"
JOURNAL = DATABASE + "-journal"
"""A log never has this file: SQLite would copy what it holds into the database."""
MAKING = DATABASE + ".making"
"""A database that is not complete yet."""
FORMAT = 4
_APPLICATION = int.from_bytes(b"TRlg", "big")
_OLDEST_SQLITE = (3, 51, 3)
_PAGE_BYTES = 16384
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0" + _PAGE_BYTES.to_bytes(2, "big")
_WAL_KEPT_BYTES = 64 << 20
_CACHE_KIB = 8_192
BUSY_MS = 10_000
_NOT_WAL, _WAL_MODE = b"\1\1", b"\2\2"
"""In the header of a database: its write and read versions."""
_BEFORE_A_LOG = re.compile(rf"{NOTE}|owners|cleaning|{re.escape(MAKING)}(-.*)?")
Connection: TypeAlias = Any
"""An ``apsw.Connection``, whose own types are not known in full."""
_OTHER_FORMAT = "Or load the data into a new log, in another folder. Nothing was changed."
_processes: dict[Path, int] = {}
"""Which process has opened a database last."""
LOW_BITS = 40
"""Of an id of a block or publication: the offset or running number."""


class Table:
    """A small table, with its statements. ``keys``: number of its columns that are its key."""

    def __init__(self, name: str, keys: int, *columns: str) -> None:
        self.name, self.keys = name, keys
        key, names, marks = ", ".join(columns[:keys]), ", ".join(columns), ", ".join("?" * len(columns))
        self.create = f"CREATE TABLE {name} ({names}, PRIMARY KEY ({key})) WITHOUT ROWID"
        self.select_all = f"SELECT {names} FROM {name}"
        self.select = f"{self.select_all} WHERE ({key}) = ({', '.join('?' * keys)})"
        self.replace = f"INSERT OR REPLACE INTO {name} VALUES ({marks})"


TOPICS = Table(
    "topics", 1, "name", "first_place", "partitions", "compacted", "retention_ms", "retention_bytes"
)
PARTITIONS = Table("partitions", 1, "place", "start_offset", "end_offset", "highest_ms", "bytes")
OFFSETS = Table("offsets", 3, "consumer_group", "topic", "partition", "next_offset")
WRITERS = Table("writers", 1, "transactional_id", "epoch")
CLEANINGS = Table("cleanings", 1, "place", "looked_bytes", "through", "through_ms")

_CREATE = (
    *(one.create for one in (TOPICS, PARTITIONS, OFFSETS, WRITERS, CLEANINGS)),
    "CREATE TABLE log (id INTEGER PRIMARY KEY, identity, commits)",
    """CREATE TABLE blocks (
        id INTEGER PRIMARY KEY, end_offset, base, last, max_ms, highest_ms, length, checksum, data
    )""",
    "CREATE TABLE publications (id INTEGER PRIMARY KEY, publisher, watermark_ms, ends)",
    "CREATE INDEX by_publisher ON publications (publisher, id)",
    f"PRAGMA user_version = {FORMAT}",
    f"PRAGMA application_id = {_APPLICATION}",
)


def prepare(folder: Path, note: NoteFile, *, create: bool) -> None:
    """Check that the folder holds a log, or create the log.

    Raises:
        ForeignLogError: The folder holds something else.
        CorruptLogError: The database is missing, but its WAL is there.
        LogUnavailableError: The log does not exist, and ``create`` is false, or it cannot be created.
    """
    if tuple(map(int, apsw.sqlite_lib_version().split("."))) < _OLDEST_SQLITE:
        raise LogUnavailableError(
            f"SQLite {apsw.sqlite_lib_version()} can lose commits of a log that several processes write",
            hint="Install apsw 3.51.3 or later, with the SQLite that it brings.",
        )
    with failing(folder, "opening the log"):
        if _is_log(folder):
            return
        if not create:
            raise LogUnavailableError(
                f"there is no log in {str(folder)!r}",
                hint="Correct the path (--log). `tailrace topics apply --app APP` creates a log, and so does `tailrace run APP --create-topics`.",
            )
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        with note.held():
            if _is_log(folder):
                return
            _make(folder / MAKING)
            put_in_place(folder / MAKING)


def _make(path: Path) -> None:
    """Create an empty log in a file, which is overwritten. It is not synced."""
    path.unlink(missing_ok=True)
    connection = opened(path, create=True)
    try:
        connection.pragma("page_size", _PAGE_BYTES)
        connection.pragma("auto_vacuum", 2)
        connection.pragma("journal_mode", "memory")
        connection.pragma("synchronous", 0)
        connection.execute("BEGIN")
        for statement in _CREATE:
            connection.execute(statement)
        connection.execute("INSERT INTO log VALUES (1, ?, 0)", (os.urandom(16),))
        connection.execute("COMMIT")
    except apsw.Error as error:
        path.unlink(missing_ok=True)
        raise of_sqlite(error, path, "creating the log", connection.system_errno) from error
    finally:
        connection.close()


def put_in_place(making: Path) -> None:
    """Give a complete database its name, after it was synced."""
    sync(making)
    making.rename(making.parent / DATABASE)
    sync(making.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with its names, is on the disk. Not for a database that is open."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened(path: Path, *, create: bool = False) -> Connection:
    """A connection to a database as it is.
    Raises LogUnavailableError: it was open when this process was forked: SQLite would take the parent's locks
    for its own.
    """
    real = Path(os.path.realpath(path))  # as SQLite names it, however the path is spelled
    process = _processes.setdefault(real, os.getpid())
    if process != os.getpid():
        if any(os.path.realpath(one.filename) == str(real) for one in apsw.connections()):
            raise forked(path.parent)
        _processes[real] = os.getpid()
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    return apsw.Connection(str(path), flags=flags)


def forked(folder: Path) -> LogUnavailableError:
    """The error for a log that was opened before a fork: its locks are the parent's."""
    return LogUnavailableError(
        f"the log in {str(folder)!r} was opened before this process was forked",
        hint="Open it in the process that uses it, or start processes without a fork (spawn).",
    )


def connect(folder: Path, *, synchronous: str = "NORMAL") -> Connection:
    """A connection to the log. If the file may not be written, it only reads. The last connection leaves the WAL as it is.

    Raises:
        apsw.Error: See ``of_sqlite``.
        ForeignLogError, FormatError, CorruptLogError: The file is not a log of this version, or
            the WAL is not its own.
    """
    path = folder / DATABASE
    _check_files(folder)
    connection = opened(path)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(BUSY_MS)
        connection.wal_autocheckpoint(0)
        connection.pragma("cell_size_check", True)
        connection.pragma("trusted_schema", False)
        connection.pragma("cache_size", -_CACHE_KIB)
        connection.pragma("synchronous", synchronous)
        check_format("the log", connection.pragma("user_version"), FORMAT, path=str(path), hint=_OTHER_FORMAT)
    except BaseException:
        connection.close()
        raise
    return connection


def as_wal(connection: Connection, note: NoteFile) -> None:
    """Put a new log, or a copy, into WAL mode, while the note is held. This changes one sector, so it needs no journal."""
    if connection.pragma("journal_mode") != "wal":
        folder = Path(connection.filename).parent
        with failing(folder, "syncing the note"):
            note.make()
            sync(folder)
        connection.pragma("journal_mode", "off")
    connection.pragma("journal_mode", "wal")
    connection.pragma("journal_size_limit", _WAL_KEPT_BYTES)


def _check_files(folder: Path) -> None:
    """Check the first bytes of a database, and the files beside it, before SQLite opens them. Nothing is changed.

    Raises:
        ForeignLogError: The database is not a log, or its header is damaged, or it is a copy beside the WAL of a log.
        CorruptLogError: The WAL is missing, or there is a file that a log does not have.
    """
    wal = folder / WAL
    has_wal = (
        wal.exists() and wal.stat().st_size > 0
    )  # looked at before the header: another process may create it
    header = _header_of(folder / DATABASE)
    # SQLite would take an empty file for a new database, and delete its WAL.
    if (
        header[:18] != _MAGIC
        or header[68:72] != _APPLICATION.to_bytes(4, "big")
        or len(header) < _HEADER_BYTES
    ):
        raise ForeignLogError(
            "the file is no log: a database of another kind, or its header is cut off or damaged",
            path=str(folder / DATABASE),
            hint=f"If it was a log: {RESTORE} Else give the log a folder of its own. Nothing in this one was touched.",
        )
    if (folder / JOURNAL).exists():
        raise CorruptLogError(
            f"{JOURNAL} is there, which no log has: SQLite would overwrite pages of the log with what it holds",
            path=str(folder / JOURNAL),
            hint="If another program has written to the log, restore the log from a copy. Otherwise move this file away.",
        )
    if has_wal and header[18:20] == _NOT_WAL:
        raise ForeignLogError(
            f"{WAL} does not belong to the {DATABASE} beside it, which is a copy of a log that nobody has written to",
            path=str(folder),
            hint=f"If the copy was put over the log's own file: move the folder away. {RESTORE} Nothing was changed.",
        )
    if header[18:20] == _WAL_MODE and not wal.exists() and not (folder / NOTE).exists():
        raise CorruptLogError(
            f"{DATABASE} was copied or moved without {WAL}: the last commits may be missing",
            path=str(folder / DATABASE),
            hint="Copy the whole folder of a stopped log, or use `tailrace log copy`.",
        )


def _header_of(path: Path) -> bytes:
    # Through SQLite: to close another descriptor of the file would release the locks of all connections of this process.
    file = apsw.VFSFile("", os.path.realpath(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return file.xRead(_HEADER_BYTES, 0)
    finally:
        file.xClose()


def _is_log(folder: Path) -> bool:
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise ForeignLogError(
            "the path of the log leads to a file", path=str(folder), hint="Give the log a folder."
        ) from None
    if DATABASE in names:
        return True
    if WAL in names:
        raise CorruptLogError(
            f"{WAL} is there, and the database that it belongs to is missing",
            path=str(folder / DATABASE),
            hint=f"If the database was moved, put it back. If it is lost, move the folder away. {RESTORE}",
        )
    strangers = sorted(name for name in names if not _BEFORE_A_LOG.fullmatch(name))
    if strangers:
        raise ForeignLogError(
            f"the folder holds something else: {', '.join(strangers[:3])}",
            path=str(folder),
            hint="Give the log a folder of its own; nothing in this one was touched.",
        )
    return False
