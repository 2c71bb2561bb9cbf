"""The sides of a join: the events of one input that are kept for those of the other.

Events come in the order of event time, so a side is a queue in the order of time, then of arrival. Up to ``MOST`` events lie in
one plain field: an immutable tuple, which is cheap to check and to store. When it is full, all of it moves to a map, entry by
entry, and the tuple begins again. So the map has the older events and the tuple the newer ones, and of a hot key only the
entries that an event touches are in memory.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.core.handling.collections import MapState

MOST: Final = 16
"""Events of a side in its tuple."""


class Side:
    """Where an actor keeps the events of one input.

    Fields of the actor: ``<attr>``, the newer events as (time, event); ``<attr>_older``, the others as (matched, event) by
    (time, number); ``<attr>_moved``, how many have moved there since it was empty. If ``marked``, it matters which events have
    matched: ``<attr>_matched`` has a bit for each event of the tuple.
    """

    def __init__(self, attr: str, event: Any, *, marked: bool) -> None:
        self.newer, self.older, self.moved, self.bits = (
            attr,
            f"{attr}_older",
            f"{attr}_moved",
            f"{attr}_matched",
        )
        self.marked = marked
        self.annotations: dict[str, Any] = {
            self.newer: tuple[tuple[int, event], ...],
            self.older: MapState[tuple[int, int], tuple[bool, event]],
            self.moved: int,
        }
        self.defaults: dict[str, Any] = {self.newer: (), self.moved: 0}
        if marked:
            self.annotations[self.bits] = int
            self.defaults[self.bits] = 0

    def add(self, actor: Any, time_ms: int, event: Any, oldest_ms: int, *, matched: bool = False) -> bool:
        """Keep an event. Returns whether it is the only one.

        ``oldest_ms``: earlier events should have been freed. Those that are still there, as the timer that frees them has failed
        and is a dead letter, are freed now.
        """
        newer = getattr(actor, self.newer)
        if newer and newer[0][0] < oldest_ms:
            self.free(actor, oldest_ms - 1)
            newer = getattr(actor, self.newer)
        if len(newer) >= MOST:
            self._move(actor, newer)
            newer = ()
        if matched and self.marked:
            setattr(actor, self.bits, getattr(actor, self.bits) | 1 << len(newer))
        setattr(actor, self.newer, (*newer, (time_ms, event)))
        return not newer and not getattr(actor, self.moved)

    def _move(self, actor: Any, newer: tuple[tuple[int, Any], ...]) -> None:
        older, number = getattr(actor, self.older), getattr(actor, self.moved)
        bits = getattr(actor, self.bits) if self.marked else 0
        for place, (at_ms, event) in enumerate(newer):
            older[at_ms, number + place] = bool(bits >> place & 1), event
        setattr(actor, self.moved, number + len(newer))
        if bits:
            setattr(actor, self.bits, 0)

    def match(self, actor: Any, first_ms: int, last_ms: int) -> list[Any]:
        """The events with times from ``first_ms`` to ``last_ms``, in their order; they have matched then."""
        newer = getattr(actor, self.newer)
        found = [event for at_ms, event in newer if first_ms <= at_ms <= last_ms]
        if found and self.marked:
            bits = before = getattr(actor, self.bits)
            for place, (at_ms, _) in enumerate(newer):
                if first_ms <= at_ms <= last_ms:
                    bits |= 1 << place
            if bits != before:
                setattr(actor, self.bits, bits)
        if getattr(actor, self.moved):
            older, before_them = getattr(actor, self.older), list[Any]()
            for key, (was_matched, event) in older.items((first_ms, 0), (last_ms + 1, 0)):
                before_them.append(event)
                if self.marked and not was_matched:
                    older[key] = True, event
            found[:0] = before_them
        return found

    def first_ms(self, actor: Any) -> int | None:
        """The time of the first event; None if there is none."""
        if getattr(actor, self.moved):
            return int(next(iter(getattr(actor, self.older)))[0])
        newer = getattr(actor, self.newer)
        return newer[0][0] if newer else None

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
        newer, count = getattr(actor, self.newer), 0
        bits = getattr(actor, self.bits) if self.marked else 0
        for at_ms, event in newer:
            if at_ms > last_ms:
                break
            if not bits >> count & 1:
                left_over.append(event)
            count += 1
        if count:
            setattr(actor, self.newer, newer[count:])
            if bits:
                setattr(actor, self.bits, bits >> count)
        return left_over if self.marked else []
