"""Map and list state: collections whose entries are stored one by one, so that they are never loaded whole.

They are views for handlers with the public names of a collection. The engine's bookkeeping is out of a
handler's reach (``entries``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import index as whole_number
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, overload

from tailrace.core.handling.entries import MISSING, Entries, ListEntries, name_at
from tailrace.core.rows import prefix_end

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
Prefix: TypeAlias = str | bytes | tuple[Any, ...]

_SHOWN = 20
"""Entries that ``repr`` shows; a collection may be larger than memory."""


class MapState(Generic[K, V]):
    """A durable dictionary that belongs to one instance of an actor and is stored entry by entry.

    Declare it as a field, ``minutes: tr.MapState[str, int]``, without a default: it begins empty. It may be
    larger than memory: a read or write touches only the entries that it names. Keys are ``str``, ``bytes``,
    ``int``, ``bool``, ``UUID``, ``date``, ``datetime``, enums, or tuples of them. Iteration is in the order
    of keys, forward or backward, over all of them or a range. Values may be changed in place, like attributes;
    a list of immutable items is cheap to append to. Adding or removing entries during an iteration
    raises RuntimeError. A MapState equals a dict, or another MapState, with the same entries. With
    ``tr.field(ttl=...)`` each entry expires on its own.
    """

    __slots__ = ("_decode", "_encode", "_entries")

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]  # like a dict

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._encode = entries.plan.key_codec.encode
        self._decode = entries.plan.key_codec.decode

    def __getitem__(self, key: K) -> V:
        value = self._entries.read(self._encode(key))
        if value is MISSING:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]  # what was stored under K is a V

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.put(self._encode(key), value)

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def __contains__(self, key: object) -> bool:
        return self._entries.has(self._encode(key))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, _MAPS):
            return NotImplemented
        others: dict[Any, Any] = dict(other._looked()) if isinstance(other, _MAPS[:1]) else other
        count = 0
        for key, value in self._looked():
            if key not in others or value != others[key]:
                return False
            count += 1
        return count == len(others)

    def __repr__(self) -> str:
        shown = [f"{key!r}: {value!r}" for key, value in islice(self._looked(), _SHOWN + 1)]
        if len(shown) > _SHOWN:
            shown[_SHOWN] = "..."
        return f"MapState({{{', '.join(shown)}}})"

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __reversed__(self) -> Iterator[K]:
        return self.keys(reverse=True)

    def __len__(self) -> int:
        """The number of entries. It reads all of their names."""
        return sum(1 for _ in self._entries.names())

    def __bool__(self) -> bool:
        return self._entries.occupied()

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value of ``key``, or ``default``."""
        value = self._entries.read(self._encode(key))
        return default if value is MISSING else value

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = MISSING) -> Any:
        """Remove ``key`` and return its value, or ``default``. Raises KeyError if there is neither."""
        entries, name = self._entries, self._encode(key)
        value = entries.read(name)
        if value is not MISSING:
            entries.sizes += 1
            entries.write(name, MISSING)
        elif default is MISSING:
            raise KeyError(key)
        else:
            value = default
        return value

    def pop_first(
        self, start: K | None = None, stop: K | None = None, *, prefix: Prefix | None = None
    ) -> tuple[K, V] | None:
        """Remove the first entry of a range, and return its key and value; None if there is none."""
        found = self.first(start, stop, prefix=prefix)
        if found is not None:
            self.pop(found[0])
        return found

    def setdefault(self, key: K, default: V) -> V:
        """The value of ``key``, which is set to ``default`` first if it has none."""
        value = self._entries.read(self._encode(key))
        if value is MISSING:
            value = self[key] = default
        return value  # type: ignore[no-any-return]  # what was stored under K is a V

    def update(self, other: Mapping[K, V] | MapState[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set each key of a map, or of pairs, to its value."""
        pairs: Any = other
        if hasattr(pairs, "items"):
            pairs = pairs.items()
        for key, value in pairs:
            self[key] = value

    def clear(self, start: K | None = None, stop: K | None = None, *, prefix: Prefix | None = None) -> None:
        """Remove every entry, or those of a range, at a cost by their number."""
        self._entries.remove(*self._range(start, stop, prefix))

    def keys(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        prefix: Prefix | None = None,
        reverse: bool = False,
    ) -> Iterator[K]:
        """The keys of a range, ascending, or descending. No other entries are read.

        The range is from ``start`` to before ``stop``. With ``prefix`` it has only the keys that begin so: strings, bytes, or
        tuples by their first items, ``prefix=("JFK",)``.
        """
        decode = self._decode
        for name in self._entries.names(*self._range(start, stop, prefix), reverse=reverse):
            yield decode(name)

    def items(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        prefix: Prefix | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[K, V]]:
        """The pairs of a range by key; see ``keys``."""
        decode, read = self._decode, self._entries.read
        for name in self._entries.names(*self._range(start, stop, prefix), reverse=reverse):
            yield decode(name), read(name)

    def values(
        self,
        start: K | None = None,
        stop: K | None = None,
        *,
        prefix: Prefix | None = None,
        reverse: bool = False,
    ) -> Iterator[V]:
        """The values of a range by key; see ``keys``."""
        for name in self._entries.names(*self._range(start, stop, prefix), reverse=reverse):
            yield self._entries.read(name)

    def first(
        self, start: K | None = None, stop: K | None = None, *, prefix: Prefix | None = None
    ) -> tuple[K, V] | None:
        """The first key of a range, with its value; None if there is none."""
        return next(self.items(start, stop, prefix=prefix), None)

    def last(
        self, start: K | None = None, stop: K | None = None, *, prefix: Prefix | None = None
    ) -> tuple[K, V] | None:
        """The last key of a range, with its value; None if there is none. ``last(stop=t)``: the last one before ``t``."""
        return next(self.items(start, stop, prefix=prefix, reverse=True), None)

    def _range(self, start: K | None, stop: K | None, prefix: Prefix | None) -> tuple[bytes, bytes | None]:
        low = b"" if start is None else self._encode(start)
        high = None if stop is None else self._encode(stop)
        if prefix is not None:
            begin = self._entries.plan.key_codec.encode_prefix(prefix)
            low = max(low, begin)
            if begin.strip(b"\xff"):  # otherwise no key is after those that begin so
                end = prefix_end(begin)
                high = end if high is None else min(high, end)
        return low, high

    def _looked(self) -> Iterator[tuple[Any, Any]]:
        """The entries, to be compared or shown. They do not count as touched."""
        entries = self._entries
        for name in entries.names():
            yield self._decode(name), entries.look(name)


class ListState(Generic[V]):
    """A durable list that belongs to one instance of an actor and is stored item by item.

    Declare it as a field, ``recent: tr.ListState[float]``, without a default: it begins empty. It may be
    larger than memory, and is cheap to extend and to shorten at both ends. Items may be read by index and
    slice (a list of items), and be replaced by index or changed in place; none can be inserted or removed in
    the middle. Adding or removing items during an iteration raises RuntimeError. A ListState equals a list,
    or another ListState, with the same items.
    """

    __slots__ = ("_entries",)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]  # like a list

    def __init__(self, entries: ListEntries) -> None:
        self._entries = entries

    def __len__(self) -> int:
        start, stop = self._entries.bounds()
        return stop - start

    def __bool__(self) -> bool:
        return self._entries.occupied()

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        entries = self._entries
        if isinstance(index, slice):
            return [entries.read(entries.name(at)) for at in range(*index.indices(len(self)))]
        return entries.read(entries.name(whole_number(index)))  # type: ignore[no-any-return]  # items are V

    def __setitem__(self, index: int, value: V) -> None:
        self._entries.write(self._entries.name(whole_number(index)), value)

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, _LISTS):
            return NotImplemented
        others: list[Any] = list(other._looked()) if isinstance(other, _LISTS[:1]) else other
        return len(self) == len(others) and all(a == b for a, b in zip(self._looked(), others, strict=True))

    def __repr__(self) -> str:
        shown = [repr(value) for value in islice(self._looked(), _SHOWN)]
        if len(self) > _SHOWN:
            shown.append("...")
        return f"ListState([{', '.join(shown)}])"

    def __iter__(self) -> Iterator[V]:
        return self._read(1)

    def __reversed__(self) -> Iterator[V]:
        return self._read(-1)

    def append(self, value: V) -> None:
        """Add an item at the end."""
        entries = self._entries
        start, stop = entries.bounds()
        entries.write(name_at(stop), value)
        entries.set_bounds(start, stop + 1)

    def extend(self, values: Iterable[V]) -> None:
        """Add items at the end, in their order."""
        for value in list(values) if values is self else values:
            self.append(value)

    def appendleft(self, value: V) -> None:
        """Add an item at the front."""
        entries = self._entries
        start, stop = entries.bounds()
        entries.write(name_at(start - 1), value)
        entries.set_bounds(start - 1, stop)

    def pop(self) -> V:
        """Remove the last item and return it. Raises IndexError if the list is empty."""
        return self._take(-1, 0, -1)

    def popleft(self) -> V:
        """Remove the first item and return it. Raises IndexError if the list is empty."""
        return self._take(0, 1, 0)

    def clear(self) -> None:
        """Remove every item."""
        self._entries.clear()

    def _take(self, index: int, from_start: int, from_stop: int) -> V:
        entries = self._entries
        name = entries.name(index)
        value = entries.read(name)
        start, stop = entries.bounds()
        entries.write(name, MISSING)
        entries.set_bounds(start + from_start, stop + from_stop)
        return value  # type: ignore[no-any-return]  # items are V

    def _read(self, step: int) -> Iterator[V]:
        entries = self._entries
        sizes = entries.sizes
        for place in range(*entries.bounds())[::step]:
            yield entries.read(name_at(place))
            entries.same(sizes)

    def _looked(self) -> Iterator[Any]:
        """The items, to be compared or shown. They do not count as touched."""
        entries = self._entries
        for place in range(*entries.bounds()):
            yield entries.look(name_at(place))


_MAPS: Final[tuple[type[Any], ...]] = (MapState, dict)
_LISTS: Final[tuple[type[Any], ...]] = (ListState, list)
