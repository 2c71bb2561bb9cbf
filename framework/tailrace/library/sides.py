"""The sides of a join: the events of one input that are kept for those of the other.

Events come in the order of event time, so a side is a queue in the order of time, then of arrival. Up to ``MOST`` events lie in
plain fields: immutable tuples, which are cheap to check and to store. When they are full, all of it moves to a map, entry by
entry, and they begin again. So the map has the older events and the tuples the newer ones, and of a hot key only the
entries that an event touches are in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

from tailrace.core.errors import UsageError
from tailrace.core.handling.collections import MapState

MOST: Final = 16
"""Events of a side in its tuple."""


class Side:
    """Where an actor keeps the events of one input.

    Fields of the actor: ``<attr>``, the newer events, and ``<attr>_times``, their times; ``<attr>_older``, the others as (matched,
    event) by (time, number); ``<attr>_moved``, how many have moved there since it was empty. If ``marked``, it matters which
    events have matched: ``<attr>_matched`` has a bit for each of the newer events.
    """

    def __init__(self, attr: str, event: Any, *, marked: bool) -> None:
        self.newer, self.times, self.older = attr, f"{attr}_times", f"{attr}_older"
        self.moved, self.bits, self.marked = f"{attr}_moved", f"{attr}_matched", marked
        self.annotations: dict[str, Any] = {
            self.newer: tuple[event, ...],
            self.times: tuple[int, ...],
            self.older: MapState[tuple[int, int], tuple[bool, event]],
            self.moved: int,
        }
        self.defaults: dict[str, Any] = {self.newer: (), self.times: (), self.moved: 0}
        if marked:
            self.annotations[self.bits] = int
            self.defaults[self.bits] = 0

    def add(self, actor: Any, time_ms: int, event: Any, oldest_ms: int, *, matched: bool = False) -> bool:
        """Keep an event. Returns whether it is the only one.

        ``oldest_ms``: earlier events, which are still there if the timer that frees them is not due, or has failed, are freed now.
        """
        newer, times = getattr(actor, self.newer), getattr(actor, self.times)
        if times:
            if times[0] < oldest_ms:
                self.free(actor, oldest_ms - 1)
                newer, times = getattr(actor, self.newer), getattr(actor, self.times)
            if len(times) >= MOST:
                self._move(actor, newer, times)
                newer = times = ()
            elif times and time_ms < times[-1]:
                raise UsageError(
                    "a join got an event that is earlier than one before: its input comes from its own circle",
                    hint="Join with a topic that does not depend on the results of the join.",
                )
        if matched and self.marked:
            setattr(actor, self.bits, getattr(actor, self.bits) | 1 << len(times))
        setattr(actor, self.newer, (*newer, event))
        setattr(actor, self.times, (*times, time_ms))
        return not times and not getattr(actor, self.moved)

    def _move(self, actor: Any, newer: tuple[Any, ...], times: tuple[int, ...]) -> None:
        older, number = getattr(actor, self.older), getattr(actor, self.moved)
        bits = getattr(actor, self.bits) if self.marked else 0
        for place, event in enumerate(newer):
            older[times[place], number + place] = bool(bits >> place & 1), event
        setattr(actor, self.moved, number + len(newer))
        if bits:
            setattr(actor, self.bits, 0)

    def match(self, actor: Any, first_ms: int, last_ms: int) -> Sequence[Any]:
        """The events with times from ``first_ms`` to ``last_ms``, in their order; they have matched then."""
        times, found = getattr(actor, self.times), getattr(actor, self.newer)
        if times:
            first, last = bisect_left(times, first_ms), bisect_right(times, last_ms)
            found = found[first:last]
            if found and self.marked:
                before = getattr(actor, self.bits)
                bits = before | (1 << last) - (1 << first)
                if bits != before:
                    setattr(actor, self.bits, bits)
        if getattr(actor, self.moved):
            older, before_them = getattr(actor, self.older), list[Any]()
            for key, (was_matched, event) in older.items((first_ms, 0), (last_ms + 1, 0)):
                before_them.append(event)
                if self.marked and not was_matched:
                    older[key] = True, event
            return [*before_them, *found]
        return found  # type: ignore[no-any-return]  # a tuple of events

    def count(self, actor: Any) -> int:
        """How many events are kept."""
        older = getattr(actor, self.older) if getattr(actor, self.moved) else ()
        return len(getattr(actor, self.times)) + sum(1 for _ in older)

    def first_ms(self, actor: Any) -> int | None:
        """The time of the first event; None if there is none."""
        if getattr(actor, self.moved):
            return int(next(iter(getattr(actor, self.older)))[0])
        times = getattr(actor, self.times)
        return times[0] if times else None

    def free(self, actor: Any, last_ms: int) -> list[Any]:
        """Free the events with times up to ``last_ms``. Returns those that have not matched, in their order, if it matters."""
        left_over: list[Any] = []
        if getattr(actor, self.moved):
            older = getattr(actor, self.older)
            for key in list(older.keys(None, (last_ms + 1, 0))):
                was_matched, event = older.pop(key)
                if not was_matched:
                    left_over.append(event)
            if not older:
                setattr(actor, self.moved, 0)
        times = getattr(actor, self.times)
        if count := bisect_right(times, last_ms):
            newer = getattr(actor, self.newer)
            setattr(actor, self.newer, newer[count:])
            setattr(actor, self.times, times[count:])
            if self.marked:
                bits = getattr(actor, self.bits)
                left_over += [newer[place] for place in range(count) if not bits >> place & 1]
                if bits:
                    setattr(actor, self.bits, bits >> count)
        return left_over if self.marked else []
