"""A store in RocksDB: state larger than memory, bounded in what it takes of it.

The theory. The changelog is the truth and the store a copy that lags behind it, so a store may lose its newest batches,
and restoring reads them again; what it must never do is hold part of a batch, or a cut without its rows.

- Rows and cut go in one write batch, the cut under the empty key, which no row has. RocksDB applies a batch whole or
  not at all, in the order of writing, so that whatever survives stands exactly at the cut that survives with it.
- The write-ahead log is on, and not synced. After kill -9 the operating system still has every batch; after a power cut the
  log ends somewhere, and with it a tail of batches is gone. It costs a few per cent of the write rate. Without
  it (measured too) every crash would lose what no file holds yet, up to 700,000 rows, to be read again from the log.
- A write that failed ends the store: the next one might succeed (RocksDB resumes by itself when a disk has room again)
  and leave a hole behind a newer cut. Only opening it anew tells what it holds.
- An iterator of RocksDB ends where it meets an error. A scan therefore asks, at its end, whether the end was one.

RocksDB keeps the interpreter to itself in `get`, `put` and `write`: scale by processes, not by threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from weakref import WeakSet

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch

from tailrace.core.errors import StateUnavailableError
from tailrace.state.failures import as_state_error
from tailrace.state.folder import StateFolder, StateIdentity
from tailrace.state.memory import RESERVED
from tailrace.state.tuning import StateMemory

_FIRST_ROW = b"\0"  # the least key after the reserved one
_FIRST_CHUNK, _CHUNK = (
    16,
    1024,
)  # rows that a scan fetches at once: few at first, since many scans are left early


class RocksStore:
    """The rows of one task in a folder of their own, held until ``close``.

    An absent or empty folder is set up. Raises ForeignStateError (another task's folder, or no state folder at all),
    NewerFormatError, CorruptStateError, StateInUseError and StateUnavailableError (full, read-only, forbidden); none of
    them changes what is there. Corruption that lies deeper shows when it is read, by the same CorruptStateError.

    ``memory`` is shared by the stores of a process; without it the store has the default budget to itself.
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
                self._cut: bytes | None = self._database.get(RESERVED)
                self._folder.complete()
                undo.pop_all()
        except Exception as error:
            raise as_state_error(error, path, "opening the state") from error

    @property
    def cut(self) -> bytes | None:
        """The cut of the last batch written, or None for a store that never held one."""
        return self._cut

    def get(self, row: bytes, /) -> bytes | None:
        """The value stored under ``row``, or None."""
        try:
            return self._database.get(row) if row else None
        except Exception as error:
            raise as_state_error(error, self.path, "reading a row") from error

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """The values of several rows, in the order asked for. Lets other threads run meanwhile."""
        try:
            values: list[bytes | None] = self._database.get(list(rows)) or []
        except Exception as error:
            raise as_state_error(error, self.path, "reading rows") from error
        return (
            values
            if RESERVED not in rows
            else [v if row else None for row, v in zip(rows, values, strict=True)]
        )

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``start <= row < stop`` as of now, ascending by key bytes.

        Deleted rows are stepped over one by one until a compaction has removed them: a reader that deletes from the
        front, as a queue does, should begin where it left off, not at the queue's first possible row.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        return self._scan(max(start, _FIRST_ROW), options)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows as of now, ascending by key bytes. Leaves the cache to what is read again."""
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # stub lacks the argument
        return self._scan(_FIRST_ROW, options)

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        """Apply a batch and its cut, atomically. None deletes a row; a row's key is not empty.

        After a write that raised StateUnavailableError or CorruptStateError, every other raises the same.
        """
        if self._failure is not None:
            raise self._failure
        if RESERVED in rows:
            raise ValueError("a row's key must not be empty: a store keeps its cut there")
        batch = WriteBatch(raw_mode=True)
        for row in sorted(rows):  # sorting pays: RocksDB inserts neighbours in a third less time
            value = rows[row]
            if value is None:
                batch.delete(row)
            else:
                batch.put(row, value)
        batch.put(RESERVED, cut)
        try:
            self._database.write(batch)
        except Exception as error:
            self._failure = as_state_error(error, self.path, "writing a commit")
            raise self._failure from error
        self._cut = cut

    def close(self) -> None:
        """Flush, end the scans under way, and let go of the folder. A closed store may be closed again.

        Raises StateUnavailableError if the flush failed: the store is closed all the same, and nothing is lost.
        """
        if self._closed:
            return
        self._closed = True
        for cursor in list(self._cursors):
            cursor.iterator = None  # an open iterator would keep the database open
        try:
            self._database.close()
        except Exception as error:
            if self._failure is None:  # else whoever wrote has been told
                raise as_state_error(error, self.path, "closing the state") from error
        finally:
            self._folder.release()

    def _open(self) -> Rdict:
        options = self._memory.options()
        # An existing database must never be made anew: RocksDB would clear away the files of one that lost its CURRENT.
        options.create_if_missing(self._folder.is_new)
        options.set_error_if_exists(self._folder.is_new)
        return Rdict(str(self._folder.database), options, column_families={"default": options})

    def _scan(self, start: bytes, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        try:
            iterator = self._database.iter(options)
            iterator.seek(start)
        except Exception as error:
            raise as_state_error(error, self.path, "scanning rows") from error
        cursor = _Cursor(iterator, options)
        self._cursors.add(cursor)
        return self._read(cursor)

    def _read(self, cursor: _Cursor) -> Iterator[tuple[bytes, bytes]]:
        size = _FIRST_CHUNK
        while True:
            if cursor.iterator is None:
                raise StateUnavailableError("the store was closed during a scan", path=str(self.path))
            try:
                chunk = _fetch(cursor.iterator, size)
            except Exception as error:
                raise as_state_error(error, self.path, "scanning rows") from error
            yield from chunk
            if len(chunk) < size:
                return
            size = min(size * 4, _CHUNK)


class _Cursor:
    """An iterator of RocksDB, and with it its options: they hold the bound, which RocksDB points to without owning it."""

    __slots__ = ("__weakref__", "iterator", "options")

    def __init__(self, iterator: RdictIter, options: ReadOptions) -> None:
        self.iterator: RdictIter | None = iterator
        self.options = options


def _fetch(iterator: RdictIter, size: int) -> list[tuple[bytes, bytes]]:
    """The next rows, fewer than ``size`` only at the end."""
    valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
    rows: list[tuple[bytes, bytes]] = []
    while len(rows) < size:
        if not valid():
            iterator.status()  # raises where the end is an error
            break
        rows.append((key(), value()))
        step()
    return rows
