"""The pending timers of one actor's instances: moved, looked up, and written at a commit.

A commit writes the timers in the form that ``rows`` describes, and their index rows by the rule of ``timers``. A
timer that was set and has fired, or was cancelled, since the last commit leaves no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.actor import declaration_of
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.instance_cache import InstanceCache, Rows
from tailrace.core.engine.instance_extras import Parts
from tailrace.core.engine.value_rows import stored_timer
from tailrace.core.handling.entries import MISSING
from tailrace.core.rows import TimerId

_MOST_NAMES = 10_000
"""Maximum number of timer names that are kept decoded."""


class ActorTimers:
    """The part of a ``Table`` that is about timers."""

    def __init__(self, cells: InstanceCache, plan: ActorPlan) -> None:
        self.cells, self.plan = cells, plan
        self.state = cells.state
        self.prefix = rows.actor_prefix(plan.name)
        self._length = len(self.prefix)
        self.queues = [of_domain[plan.index] for of_domain in cells.queues]
        """The queues of its timers, by time domain."""
        self.live: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self.dirty: dict[Any, bytes | None] = {}
        self.moved: dict[Any, Parts] = {}
        """By key whose timers have changed since the last commit: the parts that had them then, with ``Parts.was``."""
        self._noted: list[Parts] = []  # all that have a ``was``; of a key that was cleared several
        self.ended: set[tuple[Any, TimerId]] = set()
        """The timers that were set again after they had fired, or were cancelled, since the last commit."""
        self.timer_ids: tuple[dict[str, TimerId], dict[str, TimerId]] = ({}, {})
        """By time domain: the names that handlers have given, with the timers."""
        self._names: dict[bytes, tuple[str, str | None]] = {}
        self._then: list[tuple[Parts, bool]] = []
        """From the last ``collect_timers``: parts whose timers get rows of their own, or lose them, with the commit."""
        self._exact: list[tuple[dict[TimerId, int], TimerId]] = []
        """From the last ``collect_timers``: what leaves ``Parts.indexed`` with the commit."""
        domains = (rows.EVENT_TIME, rows.PROCESSING_TIME)
        self._index_prefixes = tuple(rows.index_prefix(domain, plan.name.encode()) for domain in domains)

    @property
    def is_operator(self) -> bool:
        """Whether the actor is an operator of the library."""
        return bool(declaration_of(self.plan.cls).operator)

    def moves_the_end(self, name: bytes) -> bool:
        """Whether event time rises to a timer of this name at the end of input: not to an expiry or heartbeat."""
        return name[:1] != rows.EXPIRY and self.timer_name(name)[0] not in self.plan.unless_ended

    def is_of_library(self, name: bytes) -> bool:
        """Whether an operator or a field of the library has set an event-time timer of this name, not the user."""
        route = self.plan.event_timers.get(self.timer_name(name)[0])
        return self.is_operator or (route is not None and route.failed is not None)

    def due_ms(self, domain: int, key_bytes: bytes, name: bytes) -> int:
        """The time of a timer; NO_WATERMARK if it is not pending. Keeps no instance that is not live."""
        key = self.plan.key_codec.decode(key_bytes)
        if (instance := self.live.get(key, self.old.get(key))) is not None:
            parts: Parts | None = instance._tr_parts
            timer = None if parts is None else parts.timers.get((domain, name))
        elif key in self.dirty:
            timer = None
        else:
            timer = stored_timer(self.state, self.prefix + rows.escaped(key_bytes), (domain, name))
        return NO_WATERMARK if timer is None else timer.time_ms

    def timer_name(self, name: bytes) -> tuple[str, str | None]:
        """The family of a timer's handlers, and the name that the user gave (None without one)."""
        if name[:1] == b"u":
            return "", None
        known = self._names.get(name)
        if known is None:
            full = name[1:].decode()
            if len(self._names) > _MOST_NAMES:
                self._names.clear()
            known = self._names[name] = full.partition(":")[0], full
        return known

    def move_timer(self, parts: Parts, timer: TimerId, to: rows.Timer | None) -> None:
        """Set a timer, move it, or cancel it."""
        timers, was = parts._timers, parts.was  # the common case, without a call
        if timers is None:
            timers = parts.timers
        old = timers.get(timer)
        if old is None and to is None:
            return
        if was is None:
            first = self.moved.setdefault(parts.key, parts)
            was = parts.was = {} if first is parts else first.was
            self._noted.append(parts)
        if to is None:
            del timers[timer]
        else:
            timers[timer] = to
            if old is None or to.time_ms < old.time_ms:  # else ``postpone_timer`` moves it when it comes up
                self.queues[timer[0]].push(to.time_ms, parts.key_bytes, timer[1])
                if old is None and timer in was:
                    self.ended.add((parts.key, timer))
        self.cells.undo.append((timers, timer, MISSING if old is None else old))
        was.setdefault(timer, old)

    def postpone_timer(self, parts: Parts, timer: TimerId, time_ms: int) -> None:
        """Handle an entry not due at ``time_ms``: it is renewed if its timer was moved to a later time."""
        armed, found = self.cells.armed, parts.timers.get(timer)
        armed[self._index_row(parts, timer, time_ms)] = None
        if found is not None and found.time_ms > time_ms:
            first = self.moved.get(parts.key)
            was = found if first is None else first.was.get(timer, found)
            was_ms = None if was is None else was.time_ms
            if parts.indexed is not None:
                was_ms = parts.indexed.get(timer, was_ms)
            if was_ms is not None:  # may be another than ``time_ms``, if the timer was moved to and fro
                armed[self._index_row(parts, timer, was_ms)] = None
            armed[self._index_row(parts, timer, found.time_ms)] = b""
            self.queues[timer[0]].push(found.time_ms, parts.key_bytes, timer[1])
            if parts.indexed is None:
                parts.indexed = {}
            parts.indexed[timer] = found.time_ms

    def _index_row(self, parts: Parts, timer: TimerId, time_ms: int) -> bytes:
        """As ``rows.index_row``, but faster."""
        domain, name = timer
        return self._index_prefixes[domain] + rows.time_bytes(time_ms) + parts.prefix[self._length :] + name

    def collect_timers(self, first: Parts, parts: Parts | None, batch: Rows, index: Rows) -> bytes | None:
        """Add the rows of a key's timers, and their changes of the index. Returns the head of its value row, if it changes.

        ``first``: of ``moved``; ``parts``: those that the key has now.
        """
        timers = {} if parts is None else parts.timers
        changed = False
        for timer, old in first.was.items():
            new = timers.get(timer)
            if new != old:
                changed = True
            elif new is not None or not (parts and parts.indexed and timer in parts.indexed):
                continue
            self._collect_index(index, parts or first, timer, old, new)
        if not changed:
            return None
        head = rows.value_head(timers)
        have_rows = head == rows.WITH_TIMER_ROWS
        if have_rows or first.have_rows:
            self._collect_rows(batch, first, timers, have_rows=have_rows)
        if parts is not None and parts.have_rows != have_rows:
            self._then.append((parts, have_rows))
        return head

    def _collect_index(
        self, index: Rows, parts: Parts, timer: TimerId, old: rows.Timer | None, new: rows.Timer | None
    ) -> None:
        was_ms = None if old is None else old.time_ms
        if parts.indexed and timer in parts.indexed:
            was_ms = parts.indexed[timer]
        # Of a timer that had ended, the entry at the old time may have been taken from the queue.
        if (
            was_ms is not None
            and new is not None
            and new.time_ms > was_ms
            and (parts.key, timer) not in self.ended
        ):
            if parts.indexed is None:
                parts.indexed = {}
            parts.indexed[timer] = was_ms
            return
        if parts.indexed:
            self._exact.append((parts.indexed, timer))
        if was_ms is not None:
            index[self._index_row(parts, timer, was_ms)] = None
        if new is not None:
            index[self._index_row(parts, timer, new.time_ms)] = b""

    def _collect_rows(
        self, batch: Rows, first: Parts, timers: Mapping[TimerId, rows.Timer], *, have_rows: bool
    ) -> None:
        """Add the timer rows of a key that has many timers, or had many at the last commit."""
        moved: Mapping[TimerId, rows.Timer | None] = first.was
        for timer in moved if have_rows and first.have_rows else {**moved, **timers}:
            new = timers.get(timer) if have_rows else None
            old = moved.get(timer, timers.get(timer)) if first.have_rows else None
            if new != old:
                row = rows.timer_row(first.prefix, *timer)
                batch[row] = None if new is None else rows.encode_timer(new)

    def timers_committed(self) -> None:
        """Note that the rows are stored."""
        for parts in self._noted:
            parts.was = None
        self._noted.clear()
        self.moved.clear()
        self.ended.clear()
        for parts, have_rows in self._then:
            parts.have_rows = have_rows
        for indexed, timer in self._exact:
            indexed.pop(timer, None)
        self._then.clear()
        self._exact.clear()
