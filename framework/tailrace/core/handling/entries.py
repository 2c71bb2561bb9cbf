"""Entries of map and list state: read, changed, sealed, undone, committed one by one, never loaded whole.

This is the engine's side of a collection. A handler has a view of it (``collections``).

The life of an entry: a handler works on the *live*, decoded value. A sealed value that is not yet committed
is *pending*, in its encoding. A committed value is in the store. A read looks there in this order.

    get / set      the entry becomes live, and *touched* if it was set or deleted, or a mutable value was read
    seal           when a handler returns: every touched entry is encoded; a changed one becomes pending, and
                   a mutable value is replaced by its decoded encoding, so no other code can refer to it
    undo           when the unit fails: its changes of live and pending entries are undone
    commit         the pending entries become rows of the batch

Changes of ``live`` and ``pending`` are dictionary assignments, recorded only in the unit's undo list.

A scan merges the stored names with those that have changed since the commit. From the first scan on, these are
kept in order: an added one costs its place, not another sorting. The order is a superset: a name whose entry was
deleted or undone stays in it until the commit, and a scan asks for each of its names whether there is an entry.
The *floor* is a name before which there is none. It spares a queue the names that it has deleted at its front.

A list of immutable items is also kept *as sealed*, and a handler works on a copy. If that still begins with the very
same objects when the handler returns, however it was changed, only the items after them are encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import is_
from typing import Any, Final, TypeVar

import msgspec
from sortedcontainers import SortedSet

from tailrace.core import rows
from tailrace.core.errors import CorruptStateError, UsageError
from tailrace.core.records import RECORD_BYTES, row_too_large
from tailrace.core.values.map_keys import MapKeyCodec
from tailrace.core.values.types import CODEC_ERRORS, refusal

K = TypeVar("K")
V = TypeVar("V")

MISSING: Final[Any] = object()
"""In an undo list and in ``live``: there is no entry."""

_CHUNK = 16
"""Number of names that a scan takes from the order at once."""
_SHORT = 8
"""Lists of at most this many items are encoded as a whole: it costs less than to compare them."""
_KEEP_LIVE = 1024
"""Maximum number of live entries kept in a collection across a commit; with more, all are read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPlan:
    """A ``MapState`` or ``ListState`` field. ``check`` normalises or refuses a value, None if not needed.

    ``encode`` is for settled values, ``encode_unsettled`` for those that a handler may have left.
    ``immutable``: values cannot be changed in place, and the live value equals its decoded encoding.
    ``check_item``: as ``check``, for items of a list that are immutable in this way; None for all other values.
    """

    attr: str
    name: str
    encode: Callable[[Any], bytes]
    encode_unsettled: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    immutable: bool
    check_item: Callable[[Any], Any] | None
    check: Callable[[Any], Any] | None
    ttl_ms: int | None = None
    ttl_domain: int = rows.EVENT_TIME
    """``rows.EVENT_TIME`` or ``rows.PROCESSING_TIME``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlan(CollectionPlan):
    """A ``MapState`` field."""

    key_codec: MapKeyCodec


class Entries:
    """The entries of one collection of one key, by their names: what follows its prefix in a row's name.

    ``parts`` is the instance's ``engine.instance_extras.Parts``.
    """

    __slots__ = (
        "_as_sealed",
        "_floor",
        "_live",
        "_order",
        "_parts",
        "_pending",
        "_prefix",
        "_touched",
        "_written",
        "plan",
        "sizes",
    )

    plan: Any

    def __init__(self, parts: Any, plan: CollectionPlan, kind: bytes) -> None:
        self._parts = parts
        self.plan = plan
        self._prefix = parts.prefix + kind + plan.name.encode() + b"\0"
        self._live: dict[bytes, Any] = {}
        self._pending: dict[bytes, bytes | None] = {}
        self._touched: dict[bytes, None] = {}
        self._written: set[bytes] = set()
        self._order: SortedSet[bytes] | None = None
        """Once it was needed since the commit: at least the names in ``_pending`` and ``_touched``."""
        self._floor: dict[None, bytes] = {}
        """No entry's name is less than this one."""
        self._as_sealed: dict[bytes, tuple[list[Any], bytes]] = {}
        """Lists, never given to a handler, with their stored encoding."""
        self.sizes: int = 0
        """Counts structural changes, to stop an iteration during which entries came or went."""

    # --- reading and writing one entry ---

    def _stored(self, name: bytes) -> bytes | None:
        """The entry's sealed bytes, pending or committed."""
        pending = self._pending.get(name, MISSING)
        if pending is not MISSING:
            return pending  # type: ignore[no-any-return]  # the sentinel is Any
        if self._parts.fresh:
            return None
        stored: bytes | None = self._parts.table.state.get(self._prefix + name)
        return stored

    def read(self, name: bytes) -> Any:
        """The live value, or MISSING."""
        value = self._live.get(name, self)
        if value is self:
            if (kept := self._as_sealed.get(name)) is not None:
                value = kept[0].copy()
            elif (stored := self._stored(name)) is None:
                value = MISSING
            else:
                data = rows.unpack_entry(stored)[0]
                value = self._decode(data)
                if self.plan.check_item and len(value) > _SHORT and self.plan.encode(value) == data:
                    self._keep(name, value.copy(), data)  # else an older version of the type wrote it
            self._parts.table.cells.undo.append((self._live, name, MISSING))
            self._live[name] = value
        if value is not MISSING and not self.plan.immutable:
            self._touch(name)
        return value

    def look(self, name: bytes) -> Any:
        """The value of an existing entry, to be shown, not changed: the entry is not touched."""
        value = self._live.get(name, self)
        return value if value is not self else self._decode(rows.unpack_entry(self._stored(name) or b"")[0])

    @property
    def is_changed_in_place(self) -> bool:
        """Whether a value that was read is another one than the stored one by now. For a query, which touches nothing."""
        encode = self.plan.encode
        return not self.plan.immutable and any(
            value is not MISSING
            and encode(value) != encode(self._decode(rows.unpack_entry(self._stored(name) or b"")[0]))
            for name, value in self._live.items()
        )

    def _decode(self, data: bytes) -> Any:
        try:
            return self.plan.decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptStateError(
                f"an entry of {self._parts.table.plan.name}.{self.plan.attr} of the key {self._parts.key!r} "
                f"cannot be read: {error}",
                hint="Move the state folder away: it is restored from the changelog.",
            ) from error

    def _touch(self, name: bytes) -> None:
        if name not in self._touched:
            cells = self._parts.table.cells
            if cells.reading:
                return
            if not self._touched:
                cells.touched_collections.append(self)
            self._touched[name] = None
            if self._order is not None:
                self._order.add(name)
            # To undo is to forget the value, which may have been changed in place: it is read again from its
            # bytes.
            cells.undo.append((self._live, name, MISSING))

    def write(self, name: bytes, value: Any) -> None:
        """Make ``value`` (or MISSING) the live value."""
        cells = self._parts.table.cells
        if cells.reading:
            raise UsageError(
                f"a query changes {self.plan.attr}", hint="A query may only read. Change state in a handler."
            )
        self._touch(name)
        self._live[name] = value

    def put(self, name: bytes, value: Any) -> None:
        """Set an entry that may be new."""
        if self.plan.ttl_ms is not None:
            self._written.add(name)  # written, even where the value stays the same
        if self._live.get(name, MISSING) is MISSING and not self.has(name):
            self.sizes += 1
            if name < self._floor.get(None, b""):
                self._floor[None] = name
        self.write(name, value)

    def seal(self) -> None:
        """Encode the touched entries. DurableTypeError or UsageError for a value that cannot be stored."""
        plan, live, pending, undo = self.plan, self._live, self._pending, self._parts.table.cells.undo
        mutable, check, most = not plan.immutable, plan.check, RECORD_BYTES - len(self._prefix)
        for name in self._touched:
            value, kept = live[name], self._as_sealed.pop(name, None)
            if value is MISSING:
                data = None
                if self._stored(name) is None:
                    continue
            else:
                if check is not None:
                    value = check(value)
                    live[name] = value
                try:
                    encoded = None if kept is None else self._appended(name, value, *kept)
                    if encoded is None:
                        encoded = plan.encode_unsettled(value)
                        if mutable:
                            undo.append((live, name, MISSING))
                            live[name] = plan.decode(encoded)
                            encoded = plan.encode(live[name])  # an int in a list of floats has become a float
                            if plan.check_item is not None and len(live[name]) > _SHORT:
                                self._keep(name, live.pop(name), encoded)
                except CODEC_ERRORS as error:
                    raise refusal(error)(
                        f"a value cannot be stored as its declared type: {error}",
                        owner=self._parts.table.plan.cls.__name__,
                        field=plan.attr,
                        hint="Convert it before you store it, or declare the type that the entries have.",
                    ) from error
                if (size := len(encoded) + len(name)) > most:
                    raise row_too_large(size, self._parts.table.plan.name, self._parts.key, plan.attr)
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

    def _keep(self, name: bytes, value: list[Any], data: bytes) -> None:
        self._parts.table.cells.undo.append((self._as_sealed, name, MISSING))
        self._as_sealed[name] = value, data

    def _appended(self, name: bytes, value: list[Any], before: list[Any], data: bytes) -> bytes | None:
        """The encoding of a list to which items were appended, or none; None if it must be encoded as a whole."""
        size = len(before)
        if len(value) < size or not all(map(is_, before, value)):
            return None
        if len(value) > size:
            try:
                added = [*map(self.plan.check_item, value[size:])]
                items = self.plan.encode(added)[_header_size(len(added)) :]
            except (*CODEC_ERRORS, UsageError):
                return None  # so that the error does not depend on what is in memory
            data = b"".join((_header(len(value)), data[_header_size(size) :], items))
            before += added
        self._keep(name, before, data)
        del self._live[name]
        return data

    def _with_expiry(self, name: bytes, encoded: bytes) -> bytes:
        """The entry's bytes with its expiry, which is renewed if the value was written or changed."""
        plan, parts, stored = self.plan, self._parts, self._stored(name)
        before = None
        if stored is not None:
            data, before = rows.unpack_entry(stored)
            if data == encoded and name not in self._written:
                return stored
        expiry_ms = parts.table.cells.expiry(plan.ttl_domain, plan.ttl_ms)
        # Out of order, a later write may expire earlier. For a later expiry the timer of the earlier one is
        # enough: see expire.
        if before is None or before.domain != plan.ttl_domain or expiry_ms < before.time_ms:
            self._arm(name, plan.ttl_domain, expiry_ms)
        return rows.pack_entry(encoded, plan.ttl_domain, expiry_ms)

    def _arm(self, name: bytes, domain: int, expiry_ms: int) -> None:
        """Set the timer that expires the entry."""
        parts = self._parts
        timer = rows.expiry_name(self._prefix[len(parts.prefix) :] + name)
        parts.table.cells.arm(domain, expiry_ms, parts.table.plan, parts.key_bytes, timer)

    def expire(self, name: bytes, domain: int, time_ms: int) -> bool:
        """Remove an expired entry, or set a timer for a renewed one. Returns whether it had expired."""
        stored = self._stored(name)
        expiry = None if stored is None else rows.unpack_entry(stored)[1]
        if expiry is None or expiry.domain != domain or expiry.time_ms < time_ms:
            return False
        if expiry.time_ms > time_ms:
            self._arm(name, domain, expiry.time_ms)
            return False
        self.write(name, MISSING)
        return True

    def expires(self, name: bytes, domain: int, time_ms: int) -> bool:
        """Whether an entry expires at this time."""
        stored = self._stored(name)
        expiry = None if stored is None else rows.unpack_entry(stored)[1]
        return expiry is not None and (expiry.domain, expiry.time_ms) == (domain, time_ms)

    def occupied(self) -> bool:
        """Whether there is any entry."""
        if not self._touched and any(data is not None for data in reversed(self._pending.values())):
            return True  # without a look into the store
        return next(self.names(), None) is not None

    def clear(self) -> None:
        """Remove every entry."""
        self.remove(b"", None)

    def remove(self, start: bytes, stop: bytes | None) -> None:
        """Remove every entry of a range."""
        for name in list(self.names(start, stop)):
            self.write(name, MISSING)
        self.sizes += 1

    def drop(self) -> None:
        """Forget the touched entries. After a failure, the undo list has undone all other changes."""
        self._touched.clear()
        self._written.clear()

    def forget_live(self) -> None:
        """Drop all live values, so that they are decoded again when they are read."""
        self._live.clear()
        self._as_sealed.clear()

    # --- the commit ---

    def collect(self, batch: dict[bytes, bytes | None]) -> None:
        """Add the pending rows to a batch."""
        prefix = self._prefix
        for name, data in self._pending.items():
            batch[prefix + name] = data

    def committed(self) -> None:
        """The pending rows are in the store now."""
        self._pending.clear()
        self._order = None
        self._parts.fresh = False
        if len(self._live) + len(self._as_sealed) > _KEEP_LIVE:
            self.forget_live()

    def names(
        self, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[bytes]:
        """The names of a range's entries, ascending or descending, including those of this unit."""
        sizes, prefix, floor, last = self.sizes, self._prefix, self._floor.get(None, b""), None
        at_floor, start = start <= floor, max(start, floor)
        if stop is not None and start >= stop:
            return
        found: Iterator[bytes] = iter(())
        if not self._parts.fresh:
            high = rows.prefix_end(prefix) if stop is None else prefix + stop
            stored = self._parts.table.state.scan(prefix + start, high, reverse=reverse)
            found = (row[len(prefix) :] for row, _ in stored)
        if self._pending or self._touched:
            found = merge(found, self._changed(start, stop, reverse=reverse), reverse=reverse)
        for name in found:
            if name == last:
                continue
            last = name
            if self._order is not None and name in self._order and not self.has(name):
                continue
            if at_floor and not reverse:
                self._raise_floor(name)
            at_floor = False
            yield name
            self.same(sizes)
        if at_floor and stop is not None:
            self._raise_floor(stop)

    def _changed(self, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[bytes]:
        """The names in ``_order`` of a range. It may grow meanwhile."""
        order, most = self._order, 2 * (len(self._pending) + len(self._touched)) + _KEEP_LIVE
        if order is None or len(order) > most:
            order = self._order = SortedSet({**self._pending, **self._touched})
        low, high, takes_low = start, stop, True
        while some := [*islice(order.irange(low, high, (takes_low, False), reverse), _CHUNK)]:
            yield from some
            if reverse:
                high = some[-1]
            else:
                low, takes_low = some[-1], False

    def _raise_floor(self, name: bytes) -> None:
        before = self._floor.get(None, MISSING)
        if name != before:
            self._parts.table.cells.undo.append((self._floor, None, before))
            self._floor[None] = name

    def has(self, name: bytes) -> bool:
        """Whether there is such an entry."""
        live = self._live.get(name, self)
        return self._stored(name) is not None if live is self else live is not MISSING

    def same(self, sizes: int) -> None:
        """Raise RuntimeError if entries came or went since ``sizes`` was read."""
        if sizes != self.sizes:
            raise RuntimeError(f"{self.plan.attr} gained or lost entries while it was iterated")


def _header_size(count: int) -> int:
    """The size of what an array in MessagePack begins with."""
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


def _header(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


_BOUNDS = b""
_encode_bounds = msgspec.msgpack.Encoder().encode
decode_bounds = msgspec.msgpack.Decoder(tuple[int, int]).decode
"""The place of the first item of a list, and the place after the last."""
_HALF = 1 << 63


class ListEntries(Entries):
    """The items of a list. An item's name is its place. The two bounds are an entry of their own."""

    __slots__ = ()

    def bounds(self) -> tuple[int, int]:
        """The place of the first item, and the place after the last."""
        bounds = self._live.get(_BOUNDS)
        if bounds is None:
            stored = self._stored(_BOUNDS)
            bounds = (0, 0) if stored is None else decode_bounds(stored[1:])
            self._parts.table.cells.undo.append((self._live, _BOUNDS, MISSING))
            self._live[_BOUNDS] = bounds
        return bounds

    def set_bounds(self, start: int, stop: int) -> None:
        """Store the bounds after items came or went at an end."""
        cells = self._parts.table.cells
        if start == stop:
            start = stop = 0  # as a reload would read them: the bounds of an empty list are not stored
        cells.undo.append((self._live, _BOUNDS, self.bounds()))
        cells.undo.append((self._pending, _BOUNDS, self._pending.get(_BOUNDS, MISSING)))
        self._live[_BOUNDS] = (start, stop)
        self._pending[_BOUNDS] = rows.STAYS + _encode_bounds((start, stop)) if start != stop else None
        cells.dirty_collections[self] = None
        self.sizes += 1

    def name(self, index: int) -> bytes:
        """The name of the item at ``index``, counted from either end. Raises IndexError if there is none."""
        start, stop = self.bounds()
        place = start + index if index >= 0 else stop + index
        if not start <= place < stop:
            raise IndexError(f"{self.plan.attr}[{index}] is out of range: it has {stop - start} items")
        return name_at(place)

    def occupied(self) -> bool:
        """Whether there is any item."""
        start, stop = self.bounds()
        return start != stop

    def clear(self) -> None:
        """Remove every item."""
        start, stop = self.bounds()
        for place in range(start, stop):
            self.write(name_at(place), MISSING)
        if start != stop:
            self.set_bounds(0, 0)


def name_at(place: int) -> bytes:
    """The name of the item at a place, which may be negative. Names sort in the order of places."""
    return (place + _HALF).to_bytes(8, "big")
