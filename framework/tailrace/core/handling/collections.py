"""Map and list state: collections whose entries are stored one by one, so that they are never loaded whole.

How an entry lives and is undone is told in ``entries``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar, overload

from tailrace.core import rows
from tailrace.core.handling.entries import MISSING, Entries

K = TypeVar("K")
V = TypeVar("V")

_SHOWN = 20
"""Entries that ``repr`` shows; a collection may be larger than memory."""


class MapState(Entries, Generic[K, V]):
    """A durable dictionary of one key, stored entry by entry.

    Reads and writes touch only the entries they name. Iteration is in the order of the encoded keys, which for the
    key types allowed is their natural order. Values may be changed in place, like attributes. Adding or removing
    entries during an iteration raises RuntimeError.
    """

    __slots__ = ()

    def __getitem__(self, key: K) -> V:
        value = self._read(self._plan.key_codec.encode(key))
        if value is MISSING:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]  # what was stored under K is a V

    def __setitem__(self, key: K, value: V) -> None:
        name = self._plan.key_codec.encode(key)
        if self._plan.ttl_ms is not None:
            self._written.add(name)  # written, even where the value stays the same
        if self._live.get(name, MISSING) is MISSING and not self._has(name):
            self._sizes += 1
        self._write(name, value)

    def __delitem__(self, key: K) -> None:
        name = self._plan.key_codec.encode(key)
        if self._read(name) is MISSING:
            raise KeyError(key)
        self._sizes += 1
        self._write(name, MISSING)

    def __contains__(self, key: object) -> bool:
        return self._has(self._plan.key_codec.encode(key))

    def __repr__(self) -> str:
        decode = self._plan.key_codec.decode
        shown = [f"{decode(name)!r}: {self._look(name)!r}" for name in islice(self._names(), _SHOWN + 1)]
        if len(shown) > _SHOWN:
            shown[_SHOWN] = "..."
        return f"MapState({{{', '.join(shown)}}})"

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __len__(self) -> int:
        """The number of entries; it reads the names of them all."""
        return sum(1 for _ in self._names())

    def __bool__(self) -> bool:
        return self.occupied()

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value under ``key``, or ``default``."""
        value = self._read(self._plan.key_codec.encode(key))
        return default if value is MISSING else value

    def pop(self, key: K, default: Any = MISSING) -> V:
        """Remove ``key`` and return its value, or ``default``; KeyError if there is neither."""
        name = self._plan.key_codec.encode(key)
        value = self._read(name)
        if value is not MISSING:
            self._sizes += 1
            self._write(name, MISSING)
        elif default is MISSING:
            raise KeyError(key)
        else:
            value = default
        return value  # type: ignore[no-any-return]  # what was stored under K is a V

    def keys(self, start: K | None = None, stop: K | None = None) -> Iterator[K]:
        """The keys from ``start`` up to, without, ``stop``, ascending."""
        encode, decode = self._plan.key_codec.encode, self._plan.key_codec.decode
        low = b"" if start is None else encode(start)
        for name in self._names(low, None if stop is None else encode(stop)):
            yield decode(name)

    def items(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        """The pairs whose keys are in the range, ascending by key."""
        for key in self.keys(start, stop):
            yield key, self[key]

    def values(self) -> Iterator[V]:
        """The values, ascending by key."""
        for _, value in self.items():  # noqa: PERF102  # this is values()
            yield value


_BOUNDS = b""
_HALF = 1 << 63


class ListState(Entries, Generic[V]):
    """A durable list of one key, stored item by item: cheap to extend and to read at both ends.

    Items may be changed in place. Its two bounds are an entry of their own.
    """

    __slots__ = ()

    def _bounds(self) -> tuple[int, int]:
        bounds = self._live.get(_BOUNDS)
        if bounds is None:
            stored = self._stored(_BOUNDS)
            bounds = (0, 0) if stored is None else self._plan.decode_bounds(stored[1:])
            self._parts.table.cells.undo.append((self._live, _BOUNDS, MISSING))
            self._live[_BOUNDS] = bounds
        return bounds

    def _set_bounds(self, start: int, stop: int) -> None:
        cells = self._parts.table.cells
        if start == stop:
            start = stop = 0  # as it would be read again: the bounds of an empty list are not stored
        cells.undo.append((self._live, _BOUNDS, self._bounds()))
        cells.undo.append((self._pending, _BOUNDS, self._pending.get(_BOUNDS, MISSING)))
        self._live[_BOUNDS] = (start, stop)
        self._pending[_BOUNDS] = (
            rows.STAYS + self._plan.encode_bounds((start, stop)) if start != stop else None
        )
        cells.dirty_collections[self] = None
        self._sizes += 1

    def _name(self, index: int) -> bytes:
        """The row name of the item at ``index``, counted from either end."""
        start, stop = self._bounds()
        place = start + index if index >= 0 else stop + index
        if not start <= place < stop:
            raise IndexError(f"{self._plan.attr}[{index}] is out of range: it has {stop - start} items")
        return (place + _HALF).to_bytes(8, "big")

    def __len__(self) -> int:
        start, stop = self._bounds()
        return stop - start

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, index: int) -> V:
        return self._read(self._name(index))  # type: ignore[no-any-return]  # items are V

    def __setitem__(self, index: int, value: V) -> None:
        self._write(self._name(index), value)

    def __repr__(self) -> str:
        size = len(self)
        shown = [repr(self._look(self._name(index))) for index in range(min(size, _SHOWN))]
        if size > _SHOWN:
            shown.append("...")
        return f"ListState([{', '.join(shown)}])"

    def __iter__(self) -> Iterator[V]:
        sizes = self._sizes
        for index in range(len(self)):
            yield self[index]
            self._same(sizes)

    def append(self, value: V) -> None:
        """Add an item at the end."""
        start, stop = self._bounds()
        self._write((stop + _HALF).to_bytes(8, "big"), value)
        self._set_bounds(start, stop + 1)

    def extend(self, values: Any) -> None:
        """Add items at the end, in their order."""
        for value in values:
            self.append(value)

    def appendleft(self, value: V) -> None:
        """Add an item at the front."""
        start, stop = self._bounds()
        self._write((start - 1 + _HALF).to_bytes(8, "big"), value)
        self._set_bounds(start - 1, stop)

    def pop(self) -> V:
        """Remove the last item and return it; IndexError if there is none."""
        return self._take(-1, 0, -1)

    def popleft(self) -> V:
        """Remove the first item and return it; IndexError if there is none."""
        return self._take(0, 1, 0)

    def _take(self, index: int, from_start: int, from_stop: int) -> V:
        name = self._name(index)
        value = self._read(name)
        start, stop = self._bounds()
        self._write(name, MISSING)
        self._set_bounds(start + from_start, stop + from_stop)
        return value  # type: ignore[no-any-return]  # items are V

    def occupied(self) -> bool:
        """Whether there is any item."""
        return len(self) > 0

    def clear(self) -> None:
        """Remove every item."""
        start, stop = self._bounds()
        for place in range(start, stop):
            self._write((place + _HALF).to_bytes(8, "big"), MISSING)
        if start != stop:
            self._set_bounds(0, 0)
