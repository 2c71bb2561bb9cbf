"""Map and list state: collections whose entries are stored one by one, so that they are never loaded whole.

The life of an entry. What a handler works on is *live*: the decoded value. What has been sealed but not committed is
*pending*: its encoding. What is committed is in the store. A read looks there in this order.

    get / set      the entry becomes live, and *touched* if it may have changed (set, deleted, or a mutable value read)
    seal           when a handler returns: every touched entry is encoded; a changed one becomes pending, and a mutable
                   value is replaced by what its encoding says, so that nobody else holds it
    undo           when the unit fails: whatever it did to live and pending entries is taken back
    commit         the pending entries become rows of the batch

Changes of ``live`` and ``pending`` are dictionary assignments noted in the unit's undo list; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError, DurableValueError, UsageError
from tailrace.core.values.types import CODEC_ERRORS

if TYPE_CHECKING:
    from tailrace.core.declare.plan import ListPlan, MapPlan
    from tailrace.core.engine.parts import Parts

K = TypeVar("K")
V = TypeVar("V")

MISSING: Final[Any] = object()
"""In an undo list and in ``live``: that there is nothing."""

_SHOWN = 20
"""Entries that ``repr`` shows; a collection may be larger than memory."""

_KEEP_LIVE = 1024
"""Live entries kept per collection across a commit; more than these are read again when they are needed."""


class Entries:
    """The entries of one collection of one key, by their encoded names. The base of maps and lists.

    An entry's name is what follows the collection's prefix in its row.
    """

    __slots__ = ("_live", "_parts", "_pending", "_plan", "_prefix", "_sizes", "_touched", "_written")

    _plan: Any

    def __init__(self, parts: Parts, plan: MapPlan | ListPlan, kind: bytes) -> None:
        self._parts = parts
        self._plan = plan
        self._prefix = parts.prefix + kind + plan.name.encode() + b"\0"
        self._live: dict[bytes, Any] = {}
        self._pending: dict[bytes, bytes | None] = {}
        self._touched: dict[bytes, None] = {}
        self._written: set[bytes] = set()
        self._sizes: int = 0  # counts structural changes, to stop an iteration that no longer makes sense

    # --- reading and writing one entry ---

    def _stored(self, name: bytes) -> bytes | None:
        """The entry's sealed bytes, pending or committed."""
        pending = self._pending.get(name, MISSING)
        if pending is not MISSING:
            return pending  # type: ignore[no-any-return]  # the sentinel is Any
        if self._parts.fresh:
            return None
        return self._parts.table.state.get(self._prefix + name)

    def _read(self, name: bytes) -> Any:
        """The live value, or MISSING."""
        value = self._live.get(name, self)
        if value is self:
            stored = self._stored(name)
            if stored is None:
                value = MISSING
            else:
                value = self._decode(rows.unpack_entry(stored)[0])
            self._parts.table.cells.undo.append((self._live, name, MISSING))
            self._live[name] = value
        if value is not MISSING and not self._plan.immutable:
            self._touch(name)
        return value

    def _look(self, name: bytes) -> Any:
        """The value of an entry that is there, to be shown and not changed: nothing is noted of it."""
        value = self._live.get(name, self)
        return value if value is not self else self._decode(rows.unpack_entry(self._stored(name) or b"")[0])

    def _decode(self, data: bytes) -> Any:
        try:
            return self._plan.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptStateError(
                f"an entry of {self._parts.table.plan.name}.{self._plan.attr} of the key {self._parts.key!r} "
                f"cannot be read: {error}",
                mend="Move the state folder away: it is restored from the changelog.",
            ) from error

    def _touch(self, name: bytes) -> None:
        if name not in self._touched:
            cells = self._parts.table.cells
            if cells.reading:
                return
            if not self._touched:
                cells.touched_collections.append(self)
            self._touched[name] = None
            # Undone by forgetting: the value is read again from its bytes, as it may have been changed in place.
            cells.undo.append((self._live, name, MISSING))

    def _write(self, name: bytes, value: Any) -> None:
        """Make ``value`` (or MISSING) the live value."""
        cells = self._parts.table.cells
        if cells.reading:
            raise UsageError(
                f"a query changes {self._plan.attr}", mend="Queries only read; change state in a handler."
            )
        self._touch(name)
        self._live[name] = value

    # --- the unit ---

    def seal(self) -> None:
        """Encode what the handler touched. Raises DurableTypeError or UsageError for a value that cannot be stored."""
        plan, live, pending, undo = self._plan, self._live, self._pending, self._parts.table.cells.undo
        mutable, check = not plan.immutable, plan.check
        for name in self._touched:
            value = live[name]
            if value is MISSING:
                data = None
                if self._stored(name) is None:
                    continue
            else:
                if check is not None:
                    value = check(value)
                    live[name] = value
                try:
                    encoded = plan.encode(value)
                    if mutable:
                        undo.append((live, name, MISSING))
                        live[name] = plan.decode(encoded)
                        encoded = plan.encode(
                            live[name]
                        )  # an int in a list of floats, say, is a float by now
                except CODEC_ERRORS as error:
                    raise DurableValueError(
                        f"a value is not of its declared type: {error}",
                        owner=self._parts.table.plan.cls.__name__,
                        field=plan.attr,
                        mend="Convert it before it is stored, or declare the type that the entries have.",
                    ) from error
                if plan.ttl_ms is None:
                    data = rows.STAYS + encoded
                else:
                    data = self._with_expiry(name, encoded)
                if mutable and self._stored(name) == data:
                    continue
            undo.append((pending, name, pending.get(name, MISSING)))
            pending[name] = data
        if pending:
            self._parts.table.cells.dirty_collections[self] = None
        self.drop()

    def _with_expiry(self, name: bytes, encoded: bytes) -> bytes:
        """The entry's bytes with its expiry: renewed if the value was written or changed, else as it was."""
        plan, parts, stored = self._plan, self._parts, self._stored(name)
        before = None
        if stored is not None:
            data, before = rows.unpack_entry(stored)
            if data == encoded and name not in self._written:
                return rows.pack_entry(encoded, plan.ttl_domain, before)
        expiry = parts.table.cells.expiry(plan.ttl_domain, plan.ttl_ms)
        # Out of order, what is written later may expire earlier; renewed to a later time, it is looked at in between.
        if before is None or expiry < before:
            self.arm(name, expiry)
        return rows.pack_entry(encoded, plan.ttl_domain, expiry)

    def arm(self, name: bytes, expiry: int) -> None:
        """Have the entry looked at when it expires."""
        parts = self._parts
        timer = rows.expiry_name(self._prefix[len(parts.prefix) :] + name)
        parts.table.cells.arm(self._plan.ttl_domain, expiry, parts.table, parts.key_bytes, timer)

    def expire(self, name: bytes, time_ms: int) -> bool:
        """An expiry has come up: remove the entry if it is true, look again later if it was renewed."""
        stored = self._stored(name)
        expiry = None if stored is None else rows.unpack_entry(stored)[1]
        if expiry is None or expiry < time_ms:
            return False
        if expiry > time_ms:
            self.arm(name, expiry)
            return False
        self._write(name, MISSING)
        return True

    def occupied(self) -> bool:
        """Whether there is any entry."""
        return next(self._names(), None) is not None

    def clear(self) -> None:
        """Remove every entry."""
        for name in list(self._names()):
            self._write(name, MISSING)
        self._sizes += 1

    def drop(self) -> None:
        """Forget what a handler touched; if it failed, the undo list has taken back the rest."""
        self._touched.clear()
        self._written.clear()

    def forget_live(self) -> None:
        """Decode every value anew from here on."""
        self._live.clear()

    # --- the commit ---

    def collect(self, batch: dict[bytes, bytes | None]) -> None:
        """Add the pending rows to a batch."""
        prefix = self._prefix
        for name, data in self._pending.items():
            batch[prefix + name] = data

    def committed(self) -> None:
        """The pending rows are in the store now."""
        self._pending.clear()
        self._parts.fresh = False
        if len(self._live) > _KEEP_LIVE:
            self._live.clear()

    # --- all of them ---

    def _names(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[bytes]:
        """The names of the entries there are, ascending, those of this unit included."""
        sizes, prefix = self._sizes, self._prefix
        low = prefix + start
        high = rows.prefix_end(prefix) if stop is None else prefix + stop
        over = sorted(
            name
            for name in {**self._pending, **self._touched}
            if name >= start and (stop is None or name < stop)
        )
        stored: Iterator[tuple[bytes, bytes]] = (
            iter(()) if self._parts.fresh else self._parts.table.state.scan(low, high)
        )
        index = 0
        for row, _ in stored:
            name = row[len(prefix) :]
            while index < len(over) and over[index] < name:
                if self._has(over[index]):
                    yield over[index]
                    self._same(sizes)
                index += 1
            if index < len(over) and over[index] == name:
                index += 1
                if not self._has(name):
                    continue
            yield name
            self._same(sizes)
        for name in over[index:]:
            if self._has(name):
                yield name
                self._same(sizes)

    def _has(self, name: bytes) -> bool:
        live = self._live.get(name, self)
        return self._stored(name) is not None if live is self else live is not MISSING

    def _same(self, sizes: int) -> None:
        if sizes != self._sizes:
            raise RuntimeError(f"{self._plan.attr} gained or lost entries while it was iterated")


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
