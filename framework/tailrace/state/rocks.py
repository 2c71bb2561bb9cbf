"""A store in RocksDB: for state larger than memory, with bounded use of memory.

Theory. The changelog is the truth. The store is a copy that lags behind it, so it may lose its newest
batches: a restore reads them again. It must never hold a part of a batch, or a cut without its rows.

- Rows and cut are written in one batch, the cut under the empty key, which no row has. RocksDB applies a
  batch whole or not at all, in the order of writing.
- After a power cut RocksDB may apply a batch without one before it, and not notice it. The numbers of batches
  show it (``batch_numbers``); such a store is damaged, and its state is restored from the changelog. So the
  rows match the cut.
- The write-ahead log is on, and not synced. After kill -9 the operating system still has every batch. After a
  power cut the last batches may be lost, at most 32. The log costs a few per cent of the write rate. Without
  it (measured too) every crash would lose the rows that are not yet in a file, up to 700,000, which would
  have to be read again from the log.
- A failed write ends the store: the next write might succeed (RocksDB resumes by itself when a disk has room
  again) and leave a gap before a newer cut. Only reopening the store shows what it holds.
- An iterator of RocksDB ends at an error. So a scan checks at its end whether the end was an error.

rocksdict holds the interpreter lock in `get`, `put` and `write`: scale by processes, not by threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from weakref import WeakSet

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch

from tailrace.core.errors import StateUnavailableError
from tailrace.state.batch_numbers import BatchNumbers
from tailrace.state.failures import as_state_error
from tailrace.state.folder import StateFolder, StateIdentity
from tailrace.state.memory import FIRST_ROW, RESERVED, refuse_reserved
from tailrace.state.tuning import StateMemory

# Rows that a scan fetches at once: few at first, since many scans are left early.
_FIRST_CHUNK, _CHUNK = 16, 1024


class RocksStore:
    """The rows of one task in a folder of their own, which is locked until ``close``.

    An absent or empty folder is initialised. Raises the errors of ``StateFolder``, and leaves it unchanged then.
    Corruption of rows raises CorruptStateError when they are read. ``memory`` is shared by the stores of a
    process (default: a budget of its own).
    """

    def __init__(self, path: Path, identity: StateIdentity, memory: StateMemory | None = None) -> None:
        self.path = path
        self._memory = memory or StateMemory()
        self._failure: Exception | None = None
        self._closed = False
        self._cursors: WeakSet[_Cursor] = WeakSet()
        self._folder = StateFolder(path, identity)
        try:
            with ExitStack() as undo:
                undo.callback(self._folder.release)
                self._database = self._open()
                undo.callback(self._database.close)
                self._numbers = BatchNumbers(self._database, str(path))
                self.cut: bytes | None = self._database.get(RESERVED)
                self._folder.complete()
                undo.pop_all()
        except Exception as error:
            raise as_state_error(error, path, "opening the state") from error

    @property
    def size_bytes(self) -> int:
        """About how many bytes the rows take, those in memory that are not in a file yet included."""
        names = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._database.property_int_value(name) or 0 for name in names)

    def get(self, row: bytes, /) -> bytes | None:
        """The value stored under ``row``, or None."""
        try:
            return self._database.get(row) if row >= FIRST_ROW else None
        except Exception as error:
            raise as_state_error(error, self.path, "reading a row") from error

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """The values of several rows, in the given order. Other threads can run meanwhile."""
        try:
            values: list[bytes | None] = self._database.get(list(rows)) or []
        except Exception as error:
            raise as_state_error(error, self.path, "reading rows") from error
        if rows and min(rows) < FIRST_ROW:
            return [value if row >= FIRST_ROW else None for row, value in zip(rows, values, strict=True)]
        return values

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``start <= row < stop`` as of now, ascending by key bytes, or descending.

        Deleted rows are skipped one by one until a compaction has removed them. So a reader that deletes rows
        from the front, like a queue, should start at its last position, not at the first possible row.
        """
        options, first = ReadOptions(), max(start, FIRST_ROW)
        options.set_iterate_upper_bound(stop)
        found = self._scan(first, options, reverse=reverse)
        # The lower bound is not set as an option: rocksdict 0.3 sets the upper bound with it.
        return takewhile(lambda one: one[0] >= first, found) if reverse else found

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows as of now, ascending by key bytes. Does not fill the cache."""
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # stub lacks the argument
        return self._scan(FIRST_ROW, options)

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        """Apply a batch and its cut atomically; None deletes a row. After a failure, all further writes fail."""
        if self._failure is not None:
            raise self._failure
        refuse_reserved(rows)
        batch = WriteBatch(raw_mode=True)
        for row in sorted(rows):  # sorting pays: RocksDB inserts neighbours in a third less time
            value = rows[row]
            if value is None:
                batch.delete(row)
            else:
                batch.put(row, value)
        batch.put(RESERVED, cut)
        try:
            self._numbers.add_to(batch)
            self._database.write(batch)
        except Exception as error:
            self._failure = as_state_error(error, self.path, "writing a commit")
            raise self._failure from error
        self.cut = cut

    def close(self) -> None:
        """Flush, end all open scans, and release the folder. A closed store may be closed again.
        Raises StateUnavailableError if the flush failed: it is closed anyway, and nothing committed is lost.
        """
        if self._closed:
            return
        self._closed = True
        for cursor in list(self._cursors):
            cursor.iterator = None  # an open iterator would keep the database open
        try:
            self._database.close()
        except Exception as error:
            if self._failure is None:  # otherwise the failed write has raised it
                raise as_state_error(error, self.path, "closing the state") from error
        finally:
            self._folder.release()

    def _open(self) -> Rdict:
        options = self._memory.options()
        # Never create an existing database again: RocksDB would delete the files of a database without its
        # CURRENT file.
        options.create_if_missing(self._folder.is_new)
        options.set_error_if_exists(self._folder.is_new)
        return Rdict(str(self._folder.database), options, column_families={"default": options})

    def _scan(
        self, start: bytes, options: ReadOptions, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        try:
            iterator = self._database.iter(options)
            if reverse:
                iterator.seek_to_last()  # before the upper bound
            else:
                iterator.seek(start)
        except Exception as error:
            raise as_state_error(error, self.path, "scanning rows") from error
        cursor = _Cursor(iterator, options)
        self._cursors.add(cursor)
        return self._read(cursor, reverse=reverse)

    def _read(self, cursor: _Cursor, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        size = _FIRST_CHUNK
        while True:
            if cursor.iterator is None:
                raise StateUnavailableError("the store was closed during a scan", path=str(self.path))
            try:
                chunk = _fetch(cursor.iterator, size, reverse=reverse)
            except Exception as error:
                raise as_state_error(error, self.path, "scanning rows") from error
            yield from chunk
            if len(chunk) < size:
                return
            size = min(size * 4, _CHUNK)


class _Cursor:
    """An iterator of RocksDB with its options, which own the bound that RocksDB points to."""

    __slots__ = ("__weakref__", "iterator", "options")

    def __init__(self, iterator: RdictIter, options: ReadOptions) -> None:
        self.iterator: RdictIter | None = iterator
        self.options = options


def _fetch(iterator: RdictIter, size: int, *, reverse: bool) -> list[tuple[bytes, bytes]]:
    """The next rows, fewer than ``size`` only at the end."""
    valid, key, value = iterator.valid, iterator.key, iterator.value
    step = iterator.prev if reverse else iterator.next
    rows: list[tuple[bytes, bytes]] = []
    while len(rows) < size:
        if not valid():
            iterator.status()  # raises where the end is an error
            break
        rows.append((key(), value()))
        step()
    return rows
