"""The live instances of one actor: loaded, touched, sealed, committed. Theory: see ``instance_cache``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.actor_timers import ActorTimers
from tailrace.core.engine.instance_cache import InstanceCache, Rows
from tailrace.core.engine.instance_extras import NO_PAST, EarlierDeclaration, Parts
from tailrace.core.engine.value_rows import carrying, encoded_blank, raw_fields
from tailrace.core.errors import (
    CorruptStateError,
    StateLeakError,
    UnfitValueError,
    UnmeasuredStateError,
    WrongPartitionError,
)
from tailrace.core.formats import check_format
from tailrace.core.handling.entries import MISSING
from tailrace.core.records import RECORD_BYTES, Head, row_too_large
from tailrace.core.rows import Timers
from tailrace.core.values.nesting import DEEPEST, is_packed_too_deep, may_be_deep
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.types import CODEC_ERRORS, explain

_CLEAN = 0
_ABSENT = -1
_OF_THE_PAST = -2
"""Its row differs from its encoding (see ``value_rows``): it is written at the commit after its first touch.
"""
_UNLIKE = b""
"""An image that no instance has: an instance that is touched with this image is always written."""

_WEIGHT = 460
"""Estimated bytes of a live instance, in addition to three times the size of its encoding."""
_PARTS_WEIGHT = 600

_ONE_IN = 4
"""Read rows ahead if one record in this many has a key that is not live: the search takes time, too."""


class Table(ActorTimers):
    """The instances of one actor in one task."""

    def __init__(
        self, cells: InstanceCache, plan: ActorPlan, past: EarlierDeclaration, *, checked: bool
    ) -> None:
        super().__init__(cells, plan)
        self.past = past
        self.fields: tuple[str, ...] = getattr(plan.cls, "__struct_fields__")  # noqa: B009  # unknown to type checkers
        self.encode, self.encode_unsettled, self.decode = plan.encode, plan.encode_unsettled, plan.decode
        if self.past.fields:
            self.encode, self.encode_unsettled, self.decode = carrying(plan, self.past.fields)
        self.encode_key = plan.key_codec.encode
        self.seal: Callable[[Any], None] = plan.seal or (lambda _: None)  # without plain fields
        self.images: dict[Any, bytes] | None = {} if checked else None
        """In a checked run: the encoding of each live instance when its last handler returned."""
        self.simple = plan.fixed and not plan.ttls and not checked and not cells.reload
        """Whether sealing only has to check types."""
        self._may_be_deep = may_be_deep(plan.cls)
        self._has_parts = any((plan.maps, plan.lists, plan.ttls, plan.has_components, past.collections))
        """Whether each of its instances has parts besides its plain fields."""
        self._weight = self._each = 0
        """Estimated bytes of ``live``; and of an instance in ``old``, on average."""
        self._ahead: dict[bytes, bytes | None] = {}
        """Rows that were read ahead. They are valid until the next write to the store."""
        self._asked = self._expected = 0
        """In the last run of records: the number of instances read from the store, and the number of records.
        """
        self._blank = blank = encoded_blank(plan)
        """The encoding of an instance with only defaults; None if it cannot be encoded."""
        self._new: Callable[[], Any] = plan.new if blank is None else partial(plan.decode, blank)
        """Makes a new instance, equal to a stored and loaded one: a float field's int default is a float."""
        self._bare: list[tuple[Any, bytes | None]] = []
        """The instances that the last ``collect`` found bare, each with its image: they have no row."""

    def prefetch(self, heads: Sequence[Head], start: int) -> None:
        """Read the rows of a run's keys in one call, if one in four keys of the last run was not live.

        One call of RocksDB for many rows takes about half the time of a call for each row.
        """
        worth, self._asked = self._asked * _ONE_IN >= max(1, self._expected), 0
        self._expected = len(heads) - start
        self._ahead.clear()
        if not worth:
            return
        live, old, dirty, wanted = self.live, self.old, self.dirty, dict[Any, bytes]()
        for _, _, key, _, _ in islice(heads, start, None):
            try:
                if not (key is None or key in live or key in wanted or key in old or key in dirty):
                    wanted[key] = self.prefix + rows.escaped(self.encode_key(key))
            except Exception:  # noqa: BLE001, S110  # an invalid key: the record's own unit fails on it
                pass
        names = list(wanted.values())
        self._ahead = dict(zip(names, self.state.get_many(names), strict=True))

    def instance(self, key: Any) -> Any:
        """The instance of a key, live or not."""
        found = self.live.get(key)
        return self.load(key) if found is None else found

    def load(self, key: Any) -> Any:
        """The instance of a key that is not live: from the older generation, the store, or new."""
        found = self.old.pop(key, None)
        if found is not None:
            self.live[key] = found
            self._weight += self._each
            return found
        key_bytes = self.encode_key(key)
        cells = self.cells
        if cells.partitions > 1 and partition_of(key_bytes, cells.partitions) != cells.partition:
            number = partition_of(key_bytes, cells.partitions)
            error = WrongPartitionError(
                f"the key {key!r} belongs to partition {number}, but came from partition {cells.partition}",
                hint="Its producer does not place records by murmur2 of this key: clients of librdkafka, such as "
                "confluent-kafka, need partitioner=murmur2_random. What it has written is handled with "
                "on_error=\"dead-letter\" for the topic and 'tailrace dead-letters redrive APP --reason foreign-partition'. "
                "If the producer cannot be corrected, or gives no key or another one, declare the topic with "
                "repartition=True, and start once with --change-inputs --create-topics.",
            )
            error.belongs_to = number
            raise error
        self._asked += 1
        name = self.prefix + rows.escaped(key_bytes)
        if key in self.dirty:
            row = None
        else:
            row = self._ahead.pop(name) if name in self._ahead else self.state.get(name)
        if row is None:
            instance = self._new()
            self._bind(instance, key, key_bytes, name, _ABSENT, {})
            cells.undo.append((self.live, key, MISSING))
        else:
            instance = self._read(key, row)
            of_the_past = self.past.mixed and self.encode(instance) != row[rows.start_of_fields(row) :]
            mark = _OF_THE_PAST if of_the_past else _CLEAN
            timers = None if row[0] & rows.HAS_TIMERS else rows.timers_inside(row)
            self._bind(instance, key, key_bytes, name, mark, timers)
            self._weight += _WEIGHT + 3 * len(row)
        self.live[key] = instance
        return instance

    def _read(self, key: Any, row: bytes) -> Any:
        if row[0] & 0xF0 != rows.FORMAT:
            check_format(f"the state of {self.plan.name} {key!r}", row[0] >> 4, rows.FORMAT >> 4)
        try:
            return self.decode(row[rows.start_of_fields(row) :])
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptStateError(
                f"the state of {self.plan.name} {key!r} cannot be read: {error}",
                hint="Move the state folder away: it is restored from the changelog.",
            ) from error

    def _bind(
        self, instance: Any, key: Any, encoded: bytes, name: bytes, mark: int, timers: Timers | None
    ) -> None:
        instance._tr_key = key
        instance._tr_row = name  # computed once, because each commit needs it
        instance._tr_mark = mark
        if self._has_parts or timers or timers is None:
            instance._tr_parts = parts = Parts(self, instance, encoded, timers)
            parts.fresh = mark == _ABSENT
            self._weight += _PARTS_WEIGHT
        else:
            instance._tr_parts = None

    def parts(self, instance: Any) -> Parts:
        """The instance's parts, created on first use."""
        parts: Parts | None = instance._tr_parts
        if parts is None:
            # The value row has the flag for no timers, and an actor without collections has no other parts.
            instance._tr_parts = parts = Parts(self, instance, self.encode_key(instance._tr_key), {})
            self._weight += _PARTS_WEIGHT
        return parts

    def touch(self, instance: Any) -> bytes | None:
        """Mark an instance as dirty before it is touched. Returns its image; None if it did not exist."""
        mark = instance._tr_mark
        image = None if mark == _ABSENT else self.encode(instance)
        if mark != self.cells.epoch:
            instance._tr_mark = self.cells.epoch
            if mark == _OF_THE_PAST:
                # Always write it: if only a change counted, the rows would depend on where commits fall.
                self.cells.undo.append((self.dirty, instance._tr_key, MISSING))
                self.dirty[instance._tr_key] = _UNLIKE
            else:
                self.dirty.setdefault(instance._tr_key, image)
        if self.images is not None and image != self.images.get(instance._tr_key, image):
            raise self._leak(instance._tr_key)
        return image

    def settle(self, instance: Any, image: bytes | None) -> None:
        """Seal in full: drop it if it was cleared, check types, renew expiries, decode it again if needed."""
        plan, cells = self.plan, self.cells
        key = instance._tr_key
        if plan.required and (plan.index, key) in cells.cleared and self._is_forgotten(instance):
            cells.undo.append((self.live, key, instance))
            del self.live[key]
            if self.images is not None:
                self.images.pop(key, None)
            return
        self.seal(instance)
        try:
            encoded = self.encode_unsettled(instance)
            if cells.reload or not plan.fixed:
                settled = self.live[key] = self._reborn(instance, encoded)
                encoded = self.encode(settled)  # for example, an int in a list of floats is now a float
        except (*CODEC_ERRORS, AttributeError) as error:
            raise explain(error, plan.cls, instance) from error
        if (size := len(encoded) + len(instance._tr_row)) > RECORD_BYTES:
            raise row_too_large(size, plan.name, key)
        if self._may_be_deep and is_packed_too_deep(encoded):
            raise UnfitValueError(
                f"the state of {plan.name} is nested deeper than {DEEPEST}",
                hint="Keep less in one value, or flatten it.",
            )
        if plan.ttls:
            self._renew(instance, image, encoded)
        if self.images is not None:
            self.images[key] = encoded

    def _is_forgotten(self, instance: Any) -> bool:
        """Whether a cleared instance has got no value since then. It may then lack required fields."""
        parts: Parts | None = instance._tr_parts
        if parts is not None and not parts.is_empty():
            return False
        blank = self.plan.new()
        return all(
            getattr(instance, field, MISSING) == getattr(blank, field, MISSING) for field in self.fields
        )

    def verify(self) -> None:
        """Raise StateLeakError if an instance has changed since its last handler returned."""
        for key, image in (self.images or {}).items():
            instance = self.live.get(key)
            if instance is not None and self.encode(instance) != image:
                raise self._leak(key)

    def _leak(self, key: Any) -> StateLeakError:
        return StateLeakError(
            f"an instance of {self.plan.name} was changed while none of its handlers ran",
            actor=self.plan.name,
            key=key,
            hint="A handler keeps a reference to another key's state, or to an object it gave away. "
            "State is changed only through self, inside the handlers of its own key.",
        )

    def _reborn(self, instance: Any, encoded: bytes) -> Any:
        new = self.decode(encoded)
        new._tr_key = instance._tr_key
        new._tr_row = instance._tr_row
        new._tr_mark = instance._tr_mark
        parts: Parts | None = instance._tr_parts
        new._tr_parts = parts
        if parts is not None and self.cells.reload:
            parts.forget_live()
        return new

    def _renew(self, instance: Any, image: bytes | None, encoded: bytes) -> None:
        """Move the expiry of each field with a time to live that was assigned or changed."""
        parts = self.parts(instance)
        before = {} if image is None else raw_fields(image)
        after = raw_fields(encoded)
        for index, ttl in enumerate(self.plan.ttls):
            value = after.get(ttl.name)
            if index in parts.written or value != before.get(ttl.name, ttl.default):
                timer = (ttl.domain, rows.expiry_name(b"v" + ttl.name.encode()))
                if value == ttl.default:
                    self.move_timer(parts, timer, None)
                else:
                    expiry_ms = self.cells.expiry(ttl.domain, ttl.ttl_ms)
                    self.move_timer(parts, timer, rows.Timer(expiry_ms, b""))
        parts.written = ()

    def restore(self, key: Any, image: bytes | None) -> None:
        """Reset an instance to its image, because the unit has failed."""
        instance = self.live.get(key)
        if image is None:
            self.live.pop(key, None)
        elif instance is not None:
            reborn = self.live[key] = self._reborn(instance, image)
            if key not in self.dirty:  # this unit touched it first
                reborn._tr_mark = _OF_THE_PAST
            if instance._tr_parts is not None:
                instance._tr_parts.written = ()
        if self.images is not None:
            self.images.pop(key, None)

    def clear(self, instance: Any) -> None:
        """Delete everything that a key has: fields, timers, entries."""
        blank = self._new()
        for field in self.fields:
            if field in self.plan.required:
                if hasattr(instance, field):
                    delattr(instance, field)
            else:
                # Where it has a time to live, this is a write: what the handler then puts into it in place expires.
                setattr(instance, field, getattr(blank, field))
        if self.past.fields:
            instance._tr_carried = None
        parts: Parts | None = instance._tr_parts
        if parts is not None:
            for timer in list(parts.timers):
                self.move_timer(parts, timer, None)
            for entries in parts.collections():
                entries.clear()
        cells, which = self.cells, (self.plan.index, instance._tr_key)
        cells.undo.append((cells.cleared, which, MISSING))  # so it ends with its unit
        cells.cleared[which] = None

    # --- timers ---

    def is_absent(self, instance: Any) -> bool:
        """Whether the instance was made for a key without state, and has not been touched since."""
        return bool(instance._tr_mark == _ABSENT)

    def fires(self, domain: int, time_ms: int, key_bytes: bytes, name: bytes) -> bool:
        """Whether a queue entry is a valid timer or expiry."""
        if name[:1] != rows.EXPIRY:
            return self.due_ms(domain, key_bytes, name) == time_ms
        key = self.plan.key_codec.decode(key_bytes)
        instance = self.instance(key)
        if self.is_absent(instance):
            del self.live[key]
            return False
        parts = self.parts(instance)
        if name[1:2] == b"v":
            timer = parts.timers.get((domain, name))
            return (
                timer is not None and timer.time_ms == time_ms and name[2:].decode() not in self.past.fields
            )
        map_name, _, entry = name[2:].partition(b"\0")
        number = next((i for i, m in enumerate(self.plan.maps) if m.name.encode() == map_name), None)
        return number is not None and parts.map(number)._entries.expires(entry, domain, time_ms)

    def expire(self, instance: Any, domain: int, time_ms: int, name: bytes) -> bool:
        """Remove a field or an entry that has expired, if it is still declared. Returns whether it did."""
        parts, kind = self.parts(instance), name[1:2]
        if kind == b"v":
            timer, field = parts.timers.get((domain, name)), name[2:].decode()
            if field in self.past.fields:
                return False  # it stays in the index until the field is declared again
            if timer is None or timer.time_ms != time_ms:
                self.postpone_timer(parts, (domain, name), time_ms)
                return False
            image = self.touch(instance)
            self.cells.touched.append((self, instance._tr_key, image))
            self.move_timer(parts, (domain, name), None)
            for ttl in self.plan.ttls:
                if ttl.name == field:
                    setattr(instance, ttl.attr, getattr(self._new(), ttl.attr))
            self.settle(instance, image)
            return True
        map_name, _, entry = name[2:].partition(b"\0")
        number = next((i for i, m in enumerate(self.plan.maps) if m.name.encode() == map_name), None)
        if number is None:
            return False
        self.cells.disarm(domain, time_ms, self.plan, parts.key_bytes, name)
        if not parts.map(number)._entries.expire(entry, domain, time_ms):
            return False
        self.cells.seal_collections()
        self.touch(instance)  # it may be bare if this was its last entry
        return True

    # --- the commit ---

    def collect(self, batch: Rows, index: Rows) -> None:
        """Add the rows that have changed since the last commit, and the matching changes of the index."""
        live, encode, blank, moved = self.live, self.encode, self._blank, self.moved
        self._bare.clear()
        self._then.clear()
        self._exact.clear()
        for key, image in self.dirty.items():  # what has moved is dirty, too, unless it was undone
            instance, first = live.get(key), moved.get(key)
            parts: Parts | None = None if instance is None else instance._tr_parts
            head = None if first is None else self.collect_timers(first, parts, batch, index)
            if instance is None:
                if image is not None:
                    batch[self.prefix + rows.escaped(self.encode_key(key))] = None
                continue
            encoded = encode(instance)
            if encoded == blank and (parts is None or parts.is_empty()):
                self._bare.append((instance, image))
                if image is not None:
                    batch[instance._tr_row] = None
                continue
            if encoded != image or head is not None:
                batch[instance._tr_row] = (head or (rows.PLAIN if parts is None else parts.head())) + encoded
            if image is None:
                self._weight += _WEIGHT + 3 * len(encoded)
            elif len(encoded) != len(image):
                self._weight += 3 * (len(encoded) - len(image))
            else:
                continue
            if len(encoded) + len(instance._tr_row) > RECORD_BYTES:
                raise UnmeasuredStateError(
                    "a row of state became too large, and by which event was not measured", actor=self.plan.name, key=key,
                    hint="The task repeats what is not committed, and measures each event.",
                )  # fmt: skip

    def is_bare(self, instance: Any, encoded: bytes) -> bool:
        """Whether a commit stores no row for an instance with this encoding; see ``instance_cache``."""
        return encoded == self._blank and (instance._tr_parts is None or instance._tr_parts.is_empty())

    def committed(self, limit: int) -> None:
        """Note that the rows are stored. Drop the older generation if instances exceed ``limit`` bytes."""
        self.dirty.clear()
        self.timers_committed()
        self._ahead.clear()
        for instance, image in self._bare:
            # An instance without a row must not stay live: its next touch makes a new instance, as after a
            # restart.
            key = instance._tr_key
            del self.live[key]
            if self.images is not None:
                self.images.pop(key, None)
            if image is not None:
                self._weight -= _WEIGHT + 3 * len(image)
            if instance._tr_parts is not None:
                self._weight -= _PARTS_WEIGHT
        self._bare.clear()
        self._weight = max(0, self._weight)  # what came back from ``old`` was added with the average
        if self._weight > limit // 2:
            self._each = self._weight // max(1, len(self.live))
            self.old = self.live
            self.live = {}
            self._weight = 0


def give_tables(
    cells: InstanceCache, plan: Plan, past: Mapping[str, EarlierDeclaration], *, checked: bool = False
) -> None:
    """Give a cache its tables. ``past``: by name of the actor, stored state that other declarations wrote.

    ``checked``: look for state that was changed outside of its handlers.
    """
    cells.tables = tuple(
        Table(cells, one, past.get(one.name, NO_PAST), checked=checked) for one in plan.actors
    )
