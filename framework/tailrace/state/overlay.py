"""A store whose last commits wait in memory, and are written to its folder together.

Theory. The log is the truth, and the store a copy that may be older: a restore reads the rest from the log.
So not every commit has to reach the folder. A row that changes in each of five commits is written once
instead of five times.

- *Reads see what waits.* ``get``, ``get_many`` and ``scan`` give the same as if each commit had been written.
- *The folder stands at a commit.* All that waits is written in one batch with the cut of the last commit. A
  crash loses what waits, and the folder is then exactly as old as its cut says.
- *The tail is bounded*, and so is what a restore has to read after a crash: by a number of commits, and by
  bytes in memory.
- ``close`` writes what waits, so after a clean stop there is nothing to restore.

The order of the rows that wait is found by the first scan after a commit. A deletion waits as ``_GONE``, an
object that no value is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import gt, lt
from typing import Final
from weakref import WeakSet

from sortedcontainers import SortedList

from tailrace.core.storage import Store
from tailrace.state.memory import Scan, refuse_reserved

_GONE: Final = bytes(bytearray(b"gone"))
"""An object of its own: no value of a row is identical to it."""
_OVERHEAD_BYTES: Final = 200
"""Of a row that waits, about: two objects, and their places in a dict."""


class OverlayStore:
    """A store in front of ``store``, which it owns. Writes after so many ``commits``, or ``most_bytes`` bytes."""

    def __init__(self, store: Store, commits: int, most_bytes: int) -> None:
        self._store = store
        self._commits = commits
        self._most_bytes = most_bytes
        self.cut = store.cut
        self._rows: dict[bytes, bytes] = {}
        self._waiting = 0
        """Commits since the last one that was written."""
        self._bytes = 0
        """Of the values that wait; a value that was replaced counts, too."""
        self._has_gone = self._failed = self._closed = False
        self._order: SortedList[bytes] = SortedList()
        self._ordered: set[bytes] = set()
        self._unordered: list[Mapping[bytes, bytes | None]] = []
        """The batches that came since the last scan."""
        self._scans: WeakSet[Scan] = WeakSet()

    @property
    def path(self) -> object:
        """The folder of the store below; None if it has none."""
        return getattr(self._store, "path", None)

    @property
    def size_bytes(self) -> int | None:
        """The size of the store below; None if that does not tell it."""
        return getattr(self._store, "size_bytes", None)

    def get(self, row: bytes, /) -> bytes | None:
        """The value of ``row``, or None."""
        found = self._rows.get(row)
        if found is None:
            return self._store.get(row)
        return None if found is _GONE else found

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """The values of several rows, in the order asked for."""
        found: list[bytes | None] = list(map(self._rows.get, rows))
        absent = [at for at, value in enumerate(found) if value is None]
        if len(absent) == len(found):
            return self._store.get_many(rows)
        for at, value in zip(absent, self._store.get_many([rows[at] for at in absent]), strict=True):
            found[at] = value
        return [None if value is _GONE else value for value in found]

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``start <= row < stop`` as of now, ascending by key bytes, or descending."""
        below = self._store.scan(start, stop, reverse=reverse)
        if not self._rows or start >= stop:
            return below
        if self._unordered:
            new = set[bytes]().union(*self._unordered) - self._ordered
            self._order.update(new)
            self._ordered |= new
            self._unordered.clear()
        above = Scan(self._rows, self._order.irange(start, stop, (True, False), reverse))
        self._scans.add(above)
        return _merged(below, above, reverse=reverse)

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        """Take a batch and its cut in; the batch must not be changed after that. A failure ends the store."""
        refuse_reserved(rows)
        self._read_ahead()
        if None in rows.values():
            self._has_gone = True
            self._rows.update({row: _GONE if value is None else value for row, value in rows.items()})
        else:
            self._rows.update(rows)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]  # no None
        self._unordered.append(rows)
        self._bytes += sum(map(len, filter(None, rows.values())))
        self.cut = cut
        self._waiting += 1
        if (
            self._waiting >= self._commits
            or self._bytes + len(self._rows) * _OVERHEAD_BYTES > self._most_bytes
        ):
            self.flush()

    def flush(self) -> None:
        """Write all that waits to the folder."""
        if not self._waiting or self.cut is None:
            return
        self._read_ahead()
        rows: Mapping[bytes, bytes | None] = self._rows
        if self._has_gone:
            rows = {row: None if value is _GONE else value for row, value in self._rows.items()}
        self._failed = True
        self._store.write(rows, self.cut)
        self._failed = self._has_gone = False
        self._rows, self._ordered, self._waiting, self._bytes = {}, set(), 0, 0
        self._order.clear()
        self._unordered.clear()

    def _read_ahead(self) -> None:
        for scan in list(self._scans):
            scan.read_ahead()

    def close(self) -> None:
        """Write what waits, unless that has failed, and release the store. It may be closed twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._failed:
                self.flush()
        finally:
            self._store.close()


def _merged(
    below: Iterable[tuple[bytes, bytes]], above: Iterator[tuple[bytes, bytes]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Both in order; a row of ``above`` replaces that of ``below``."""
    is_before, waiting = gt if reverse else lt, next(above, None)
    for one in below:
        while waiting is not None and is_before(waiting[0], one[0]):
            if waiting[1] is not _GONE:
                yield waiting
            waiting = next(above, None)
        if waiting is None or waiting[0] != one[0]:
            yield one
    while waiting is not None:
        if waiting[1] is not _GONE:
            yield waiting
        waiting = next(above, None)
