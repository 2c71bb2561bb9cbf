"""Repairs a damaged log: all rows that are intact go into a new database, and the old files are kept.

Offsets do not move. Where records are lost, an empty block stands for their offsets. It is marked (``LOST``), so that nobody takes it
for a gap of compaction: readers get an error there until retention has deleted it. The end of a partition stays where it was, so
that no offset is given twice. Nor does a place change: if the row of a topic is lost, its records are kept in a topic of another
name. Whatever is lost is listed.

No other process may have the log open. The new database is complete before it takes the place of the old one. The WAL of the old
one is moved away before that, since SQLite would apply it to the new one; a repair that is interrupted there is run again. What a
try has made that failed earlier is removed: it would look like a copy of the log.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from tailrace.core.counting import counted
from tailrace.core.errors import (
    CorruptLogError,
    ForeignLogError,
    LogUnavailableError,
    OldLogError,
    TailraceError,
)
from tailrace.log.embedded.checking import lost_offsets, verify
from tailrace.log.embedded.database import (
    CLEANINGS,
    DATABASE,
    HEADER_BYTES,
    JOURNAL,
    LOW_BITS,
    MAKING,
    OFFSETS,
    OLD_LABEL,
    PARTITIONS,
    REPAIRED,
    SMALL_TABLES,
    TOPICS,
    WAL,
    WRITERS,
    Table,
    check_files,
    check_length,
    checksum_of,
    connect,
    filling,
    lacks_wal,
    put_in_place,
    sync,
)
from tailrace.log.embedded.failures import failing, of_sqlite
from tailrace.log.embedded.lock import AppendLock, Note
from tailrace.log.embedded.rows import LOST, Block, Bounds, Changes, Rows, State, Topic

_LOST = "lost.txt"
"""What a repair has lost, beside the copy of the damaged files."""
_SHARED_FIRST, _SHARED_LENGTH = 0x40000002, 510
"""The bytes of the database that each process locks which has it open."""
_FROM = "SELECT id, end_offset, base, last, commits, max_ms, highest_ms, length, data_checksum, checksum, data FROM blocks "


@dataclass
class Repaired:
    """The result of a repair."""

    kept: Path | None = None
    """Where the old files are; None if nothing was damaged, and nothing was changed."""
    lost: list[str] = field(default_factory=list[str])
    """What is lost, a sentence for each."""


def repair(folder: Path) -> Repaired:
    """See ``tailrace log repair``.

    Raises:
        CorruptLogError: Not even the beginning of the file can be read.
        OldLogError: The log is of an older format.
        ForeignLogError: It is a database of another kind, or the WAL is not its own.
        LogUnavailableError: There is no log, another process has it open, or there is no room.
    """
    lock = AppendLock(folder)
    with failing(folder, "repairing the log"), closing(lock):
        if not (folder / DATABASE).is_file():
            if (folder / OLD_LABEL).is_file():
                raise OldLogError(
                    "the log was written by an older version, in another format",
                    path=str(folder),
                    hint="Run `tailrace log upgrade`, which checks it, too.",
                )
            raise LogUnavailableError(f"there is no log in {str(folder)!r}", hint="Correct the path.")
        with lock.held(), _alone(folder) as database, ExitStack() as trying:
            if (
                folder / REPAIRED
            ).exists():  # an earlier repair was interrupted in its last steps; nobody could open the log
                kept = _copies(folder, 0)
                _finish(folder, kept, lock)
                return Repaired(kept, (kept / _LOST).read_text().splitlines())
            _remove_unfinished(folder)
            _check_room(folder)
            header = os.pread(database, HEADER_BYTES, 0)
            check_length(folder / DATABASE, header)
            kept = _copies(folder, 1)
            trying.enter_context(_removed_on_failure(folder, kept))
            kept.mkdir()
            # To close another descriptor of the database would release its lock.
            with os.fdopen(database, "rb", closefd=False) as source, (kept / DATABASE).open("wb") as target:
                shutil.copyfileobj(source, target)
            if (folder / WAL).exists():
                shutil.copy2(folder / WAL, kept / WAL)
            done = Repaired(kept)
            try:
                connection = connect(kept, checked=False)
            except apsw.Error as error:
                raise CorruptLogError(
                    f"the beginning of the file cannot be read: {error}",
                    path=str(folder / DATABASE),
                    hint="Restore the folder from a copy.",
                ) from error
            try:
                rows = Rows(connection, folder / DATABASE)
                missing = _missing(rows, lock.note)
                if not missing and _is_sound(folder, header, rows) and _is_whole(rows):
                    connection.close()
                    shutil.rmtree(kept)
                    return Repaired()
                if missing:
                    done.lost.append(
                        f"the last {missing:,} commits: they were in the WAL, which is damaged or missing"
                    )
                if lacks_wal(folder, header):
                    done.lost.append(
                        f"the commits that were only in {WAL}, which is missing: their number is not known"
                    )
                _rescue(rows, folder / MAKING, done, lock.note)
            finally:
                connection.close()
            for path in kept.iterdir():
                if path.name not in (DATABASE, WAL):
                    path.unlink()
            (kept / _LOST).write_text("".join(f"{one}\n" for one in done.lost))
            sync(kept / _LOST)
            sync(folder / MAKING)
            (folder / MAKING).rename(folder / REPAIRED)
            _finish(folder, kept, lock)
            return done


@contextmanager
def _removed_on_failure(folder: Path, kept: Path) -> Generator[None]:
    """Remove what a try of a repair has made, if it fails before the repaired database is complete."""
    try:
        yield
    except BaseException as error:
        if (folder / MAKING).exists() or not (kept / _LOST).exists():
            shutil.rmtree(kept, ignore_errors=True)
            (folder / MAKING).unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise of_sqlite(error, folder / MAKING, "repairing the log") from error
        raise


def _remove_unfinished(folder: Path) -> None:
    """Remove the copies that killed tries of a repair have left. They have no list of what is lost."""
    for path in folder.glob("damaged-*"):
        if path.is_dir() and not (path / _LOST).exists():
            shutil.rmtree(path)


def _check_room(folder: Path) -> None:
    """Check that there is room for a copy of the files, and for a new database.

    Raises:
        LogUnavailableError: There is not.
    """
    size = sum((folder / name).stat().st_size for name in (DATABASE, WAL) if (folder / name).exists())
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise LogUnavailableError(
            f"a repair of the log in {str(folder)!r} needs up to {counted(2 * size, 'byte')} on the same disk, for a copy of the "
            f"damaged files and for the new one; {free:,} are free",
            hint="Make room, or move the folder to another disk. Nothing was changed.",
        )


def _finish(folder: Path, kept: Path, lock: AppendLock) -> None:
    sync(folder)  # the commits of the WAL are in the repaired database
    (folder / WAL).unlink(missing_ok=True)
    if (folder / JOURNAL).exists():
        (folder / JOURNAL).rename(kept / JOURNAL)
    sync(folder)  # after a power loss SQLite would apply them to the repaired database
    put_in_place(folder / REPAIRED)
    lock.forget()


@contextmanager
def _alone(folder: Path) -> Generator[int]:
    """Check that no other process has the log open, and keep it so. Yields a descriptor of the database."""
    descriptor = os.open(folder / DATABASE, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_LENGTH, _SHARED_FIRST)
        except BlockingIOError:
            raise LogUnavailableError(
                f"another process has the log in {str(folder)!r} open", hint="Stop all services on it first."
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _copies(folder: Path, more: int) -> Path:
    """The folder of the last copy, or of the next one."""
    numbers = [int(path.name[8:]) for path in folder.glob("damaged-*") if path.name[8:].isdecimal()]
    return folder / f"damaged-{max(numbers, default=0) + more}"


def _missing(rows: Rows, note: Note) -> int:
    try:
        return max(0, note.commits - rows.state().commits)
    except (TailraceError, apsw.Error):
        return 0


def _is_sound(folder: Path, header: bytes, rows: Rows) -> bool:
    """Whether the log's files can be opened as they are.

    Raises:
        ForeignLogError: The header is not that of a log, and neither are the tables.
    """
    try:
        check_files(folder / DATABASE, header)
    except CorruptLogError:
        return False
    except ForeignLogError:
        names = {row[0] for row in rows.connection.execute("SELECT name FROM sqlite_master")}
        if not names.issuperset(one.name for one in SMALL_TABLES):
            raise
        return False
    return True


def _is_whole(rows: Rows) -> bool:
    try:
        verify(rows)
    except (TailraceError, apsw.Error):
        return False
    return True


def _rescue(rows: Rows, making: Path, done: Repaired, note: Note) -> None:
    before: State | None = None
    try:
        before = rows.state()
    except (TailraceError, apsw.Error):
        done.lost.append("the identity of the log: it has a new one")
    identity, commits = (os.urandom(16), note.commits) if before is None else before[:2]
    with filling(making, identity) as connection:
        rescue = _Rescue(rows, Changes(connection, making), done)
        connection.execute("BEGIN")
        highest = rescue.run()
        if before is not None and rescue.digest != before.digest:
            done.lost.append(
                "rows of topics, partitions, committed offsets or transactional ids that cannot be named: compare the topics "
                "and offsets with a copy or an archive"
            )
        changes = rescue.changes
        watermarks = any("published watermarks" in one for one in done.lost)
        if before is not None and changes.published_digest != before.published and not watermarks:
            done.lost.append("published watermarks: some are missing")
        changes.before = State(identity, max(commits, note.commits, highest), 0)
        changes.end()
        connection.execute("COMMIT")


class _Rescue:
    """Moves intact rows from a damaged database to a new one."""

    def __init__(self, rows: Rows, changes: Changes, done: Repaired) -> None:
        self.changes = changes
        self._rows = rows
        self._lost = done.lost
        self._commits = 0
        self.digest = 0
        """That of the small rows found, and of those that are damaged and named."""

    def run(self) -> int:
        """Move everything. Returns the highest number of a commit that was found."""
        self.changes.begin()
        known = {key[0]: Topic(*values) for key, values in self._intact(TOPICS).items()}
        offsets = self._intact(OFFSETS)
        bounds = {key[0]: Bounds(*values) for key, values in self._intact(PARTITIONS).items()}
        for name, topic in self._all_topics(known, max(bounds, default=-1)).items():
            self.changes.put(TOPICS, (name,), topic)
            for number, place in enumerate(topic.places):
                if (its := bounds.get(place)) is None:
                    read = [value[0] for key, value in offsets.items() if key[1:] == (name, number)]
                    its = self._bounds_of(topic, place, max(read, default=0))
                    self._lost.append(
                        f"start and end of {name!r} partition {number}: they are {its.start} and {its.end} now"
                    )
                self._partition(f"{name!r} partition {number}", place, its)
            self._publications(name, topic)
        for table, found in ((OFFSETS, offsets), *((one, self._intact(one)) for one in (WRITERS, CLEANINGS))):
            for key, values in found.items():
                self.changes.put(table, key, values)
        return self._commits

    def _all_topics(self, known: dict[str, Topic], last_place: int) -> dict[str, Topic]:
        """The topics by place. Those whose row is lost have another name."""
        found: dict[str, Topic] = {}
        place = number = 0
        places = max([last_place + 1, *(one.places.stop for one in known.values())])
        while next(self._blocks(places), None) is not None:
            places += 1
        for name, topic in [*sorted(known.items(), key=lambda one: one[1].first_place), ("", None)]:
            end = places if topic is None else topic.first_place
            if end > place:
                lost = f"lost-topic-{place}"
                found[lost] = Topic(number, place, end - place, 0, None, None)
                self._lost.append(
                    f"name and settings of a topic with {counted(end - place, 'partition')}: its records are in {lost!r} now"
                )
            if topic is not None:
                found[name] = topic
                place, number = topic.places.stop, topic.number + 1
        return found

    def _bounds_of(self, topic: Topic, place: int, read: int) -> Bounds:
        """The bounds of a partition whose row is lost, as far as its blocks, and what was read of it, tell."""
        start = end = None
        highest_ms = Bounds().highest_ms
        for block, _ in self._blocks(place):
            start = block.first if start is None else start
            end, highest_ms = block.end, max(highest_ms, block.highest_ms)
        deletes = topic.retention_ms is not None or topic.retention_bytes is not None
        return Bounds((start or 0) if deletes else 0, max(end or 0, read), highest_ms)

    def _intact(self, table: Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The intact rows of a small table, read from both ends as far as that goes."""
        found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        keys = ", ".join(table.keys)
        for order in (keys, ", ".join(f"{key} DESC" for key in table.keys)):
            try:
                for row in self._rows.connection.execute(
                    f"SELECT {', '.join((*table.keys, *table.values))}, checksum FROM {table.name} ORDER BY {order}"
                ):
                    key = row[: len(table.keys)]
                    if key in found:
                        continue
                    if checksum_of(table.name, row[:-1]) == row[-1]:
                        found[key] = row[len(table.keys) : -1]
                    elif order == keys:
                        self.digest ^= row[-1] if isinstance(row[-1], int) else 0
                        self._lost.append(f"a row of {table.name}: {', '.join(map(repr, key))}")
                break
            except apsw.Error:
                if order != keys:
                    self._lost.append(f"rows of {table.name}: the {len(found):,} others are kept")
        for key, values in found.items():
            self.digest ^= checksum_of(table.name, (*key, *values))
        return found

    def _partition(self, name: str, place: int, known: Bounds) -> None:
        end, size, highest_ms, written, commits = known.start, 0, Bounds().highest_ms, False, 0
        for block, data in self._blocks(place):
            if block.first < end and written:
                continue
            if block.first > end:
                self._empty(name, place, end, block.first, max(highest_ms, block.highest_ms), commits)
            highest_ms = max(highest_ms, block.max_ms, block.highest_ms)
            commits = max(commits, block.commits)
            self._commits = max(self._commits, commits)
            self.changes.add_block(block._replace(commits=commits, highest_ms=highest_ms), data)
            end, size, written = block.end, size + block.length, True
        highest_ms = max(highest_ms, known.highest_ms)
        if end < known.end:
            self._empty(name, place, end, known.end, highest_ms, commits)
            end = known.end
        self.changes.put(PARTITIONS, (place,), Bounds(known.start, end, highest_ms, size))

    def _empty(self, name: str, place: int, first: int, end: int, highest_ms: int, commits: int) -> None:
        self._lost.append(lost_offsets(name, first, end))
        empty = (place, first, end, first, LOST, commits)
        self.changes.add_block(Block(*empty, highest_ms, highest_ms, 0, 0), b"")

    def _blocks(self, place: int) -> Iterator[tuple[Block, bytes]]:
        """The intact blocks of a partition, with their data."""
        for row in self._readable("blocks", _FROM, place):
            block = Block(place, row[0] & ((1 << LOW_BITS) - 1), *row[1:-2])
            data = row[-1]
            try:
                if block.row[-1] != row[-2]:
                    continue
                records = self._rows.decoded(block, data)
                if records and (records[0].offset, records[-1].offset) != (block.base, block.last):
                    continue
            except Exception:  # noqa: BLE001, S112 (what cannot be packed or decoded is damaged, whatever the error)
                continue
            yield block, data

    def _readable(self, table: str, select: str, upper: int) -> Iterator[tuple[Any, ...]]:
        """The rows of a range that SQLite can read: it jumps over pages that it refuses, first in growing steps, then back."""
        at, stop = upper << LOW_BITS, (upper + 1) << LOW_BITS
        while at < stop:
            try:
                row = next(
                    self._rows.connection.execute(
                        f"{select}WHERE id >= ? AND id < ? ORDER BY id LIMIT 1", (at, stop)
                    ),
                    None,
                )
            except apsw.Error:
                at = self._beyond(table, at, stop)
                if table == "publications":
                    self._lost.append("published watermarks: some cannot be read")
                continue
            if row is None:
                return
            yield row
            at = row[0] + 1

    def _beyond(self, table: str, at: int, stop: int) -> int:
        """The least id after an unreadable one, as far as bisection finds it, from which on rows can be read again."""
        step = 1
        while not self._reads(table, at + step, stop):
            step *= 2
            if at + step >= stop:
                return stop
        low, high = at + step // 2, at + step
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._reads(table, middle, stop) else (middle + 1, high)
        return high

    def _reads(self, table: str, at: int, stop: int) -> bool:
        columns = "data" if table == "blocks" else "ends"
        try:
            next(
                self._rows.connection.execute(
                    f"SELECT {columns} FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT 1", (at, stop)
                ),
                None,
            )
        except apsw.Error:
            return False
        return True

    def _publications(self, name: str, topic: Topic) -> None:
        before, lost = [0] * topic.partitions, 0
        select = "SELECT id, publisher, watermark_ms, ends, checksum FROM publications "
        ends = [self.changes.bounds(place).end for place in topic.places]
        for row in self._readable("publications", select, topic.number):
            try:
                one = self._rows.parsed(row)
            except TailraceError:
                lost += 1
                continue
            in_order = all(low <= at <= high for low, at, high in zip(before, one.ends, ends, strict=False))
            if len(one.ends) != len(ends) or not in_order:
                lost += 1
                continue
            before = list(one.ends)
            self.changes.add_published(topic.number, one)
        if lost:
            self._lost.append(f"{lost:,} published watermarks of {name!r}")
