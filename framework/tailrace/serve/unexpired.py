"""Rows of state without those that have expired.

A value with a time to live stays in the state until its task has advanced past the expiry. So the rows of a task that is down, or
that has nothing to read, may hold values whose time is over. They are left out here, and a key that has nothing else is not there.

An expiry in event time is judged by the committed watermark of the actor, one in processing time by the clock that is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.value_rows import without
from tailrace.core.rows import EVENT_TIME, EXPIRY, StateRow, read_state_row
from tailrace.core.storage import StateReader

_VALUE = b"v"
_TIMER = b"t"
_MAP = b"m"
_LIST = b"l"


class Unexpired:
    """The rows of ``state`` that have not expired; see ``StateReader``. ``judge_by`` must be called before reading."""

    def __init__(self, plan: Plan, state: StateReader) -> None:
        self._state = state
        names = {one.actor: one.name for one in plan.operators if one.actor is not None}
        self._operators = {actor.name: names[actor.index] for actor in plan.actors}
        self._expiring = {
            actor.name: actor
            for actor in plan.actors
            if actor.ttls or any(one.ttl_ms is not None for one in (*actor.maps, *actor.lists))
        }
        self._watermarks: Mapping[str, int] = {}
        self.now_ms = 0

    def judge_by(self, watermarks: Mapping[str, int], now_ms: int) -> None:
        """Set the committed watermark of each operator, and the clock."""
        self._watermarks, self.now_ms = watermarks, now_ms

    def watermark_of(self, actor: str) -> int:
        """The watermark of an actor, in milliseconds; NO_WATERMARK before its first event."""
        return self._watermarks.get(self._operators[actor], NO_WATERMARK)

    def get(self, row: bytes, /) -> bytes | None:
        """See ``StateReader``."""
        value = self._state.get(row)
        if value is None or (parts := self._of_expiring(row)) is None:
            return value
        if not parts.rest:
            return self._value_row(self._expiring[parts.actor], row, value)
        return None if self._is_over(parts, value) else value

    def get_many(self, names: Sequence[bytes], /) -> list[bytes | None]:
        """See ``StateReader``."""
        return list(map(self.get, names))

    def scan(self, start: bytes, stop: bytes, /, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """See ``StateReader``."""
        for row, value in self._state.scan(start, stop, reverse=reverse):
            parts = self._of_expiring(row)
            if parts is None or not self._is_over(parts, value):
                yield row, value

    def _of_expiring(self, row: bytes) -> StateRow | None:
        """The parts of a row that may have expired, or may lose something that has."""
        if row[:1] != rows.STATE or not self._expiring:
            return None
        parts = read_state_row(row)
        return parts if parts.actor in self._expiring else None

    def _is_over(self, parts: StateRow, value: bytes) -> bool:
        """Whether a timer row is an expiry that is over, or an entry has expired."""
        kind = parts.rest[:1]
        if kind == _TIMER:
            is_expiry = parts.rest[2:3] == EXPIRY
            return is_expiry and self._is_past(parts.actor, parts.rest[1], rows.decode_timer(value).time_ms)
        if kind == _MAP:
            expiry = rows.unpack_entry(value)[1]
            return expiry is not None and self._is_past(parts.actor, *expiry)
        return False

    def _is_past(self, actor: str, domain: int, time_ms: int) -> bool:
        return time_ms <= (self.watermark_of(actor) if domain == EVENT_TIME else self.now_ms)

    def _value_row(self, actor: ActorPlan, row: bytes, value: bytes) -> bytes | None:
        """The row with the plain fields of a key, without those that have expired; None if the key has nothing else."""
        start, parts = row + _TIMER, read_state_row(row)
        timers = self._state.scan(start, rows.prefix_end(start)) if value[0] & rows.HAS_TIMERS else ()
        found = rows.spread({b"": value, **{name[len(row) :]: timer for name, timer in timers}})
        gone: set[str] = set()
        for rest, timer in list(found.items()):
            if rest and self._is_over(StateRow(parts.actor, parts.key, rest), timer):
                del found[rest]
                if rest[3:4] == _VALUE:
                    gone.add(rest[4:].decode())
        if next(chain(self.scan(row + _MAP, row + b"n"), self._state.scan(row + _LIST, row + _MAP)), None):
            found[_MAP] = b""  # a mark: the key has entries
        return without(actor, found, gone, ()).get(b"")
