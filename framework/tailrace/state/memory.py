"""A store in the memory of its process: for tests, and for state that is small and cheap to restore."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from weakref import WeakSet

from sortedcontainers import SortedList

RESERVED = b""
"""No row has this key: a store on disk stores its cut under it."""

FIRST_ROW = b"\1"
"""The least key of a row: a store on disk uses the empty key, and the keys that begin with a zero byte."""


def refuse_reserved(rows: Collection[bytes]) -> None:
    """Raise ValueError if one of the keys is one of the store's own."""
    if rows and min(rows) < FIRST_ROW:
        raise ValueError(
            "a row's key must not be empty or begin with a zero byte: a store on disk uses such keys itself"
        )


class MemoryStore:
    """Rows in a dict, and their order in a sorted list that is updated by scans.

    A scan costs time for the rows that came or went since the last one, and shows the rows as of its start.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self.cut: bytes | None = None
        self._order: SortedList[bytes] = SortedList()
        self._moved: set[bytes] = set()  # rows that are in `_rows` or in `_order`, not in both
        self._scans: WeakSet[Scan] = WeakSet()

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def get(self, row: bytes, /) -> bytes | None:
        """The value stored under ``row``, or None."""
        return self._rows.get(row)

    def get_many(self, rows: Sequence[bytes], /) -> list[bytes | None]:
        """The values of several rows, in the order asked for."""
        return list(map(self._rows.get, rows))

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The rows with ``start <= row < stop`` as of now, ascending by key bytes, or descending."""
        return self._scan(start, stop, reverse=reverse)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows as of now, ascending by key bytes."""
        return self._scan(None, None)

    def write(self, rows: Mapping[bytes, bytes | None], cut: bytes, /) -> None:
        """Apply a batch and its cut. A value of None deletes a row. For keys see ``FIRST_ROW``."""
        refuse_reserved(rows)
        for scan in list(self._scans):
            scan.read_ahead()
        stored, moved = self._rows, self._moved
        for row, value in rows.items():
            if (row in stored) is (value is None):
                if row in moved:
                    moved.remove(row)
                else:
                    moved.add(row)
            if value is None:
                stored.pop(row, None)
            else:
                stored[row] = value
        self.cut = cut

    def close(self) -> None:
        """Does nothing: the rows stay, so that a test can start a task on them again."""

    def _scan(self, start: bytes | None, stop: bytes | None, *, reverse: bool = False) -> Scan:
        if self._moved:
            came = self._moved & self._rows.keys()
            for row in self._moved - came:
                self._order.remove(row)
            self._order.update(came)
            self._moved.clear()
        scan = Scan(self._rows, self._order.irange(start, stop, (True, False), reverse))
        self._scans.add(scan)
        return scan


class Scan:
    """An iterator over rows that can be detached from the store that it reads."""

    __slots__ = ("__weakref__", "_rest")

    def __init__(self, rows: Mapping[bytes, bytes], order: Iterator[bytes]) -> None:
        self._rest: Iterator[tuple[bytes, bytes]] = ((row, rows[row]) for row in order)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        return next(self._rest)

    def read_ahead(self) -> None:
        """Fetch the remaining rows before a write changes them."""
        self._rest = iter(list(self._rest))
