"""What windows must give, in plain Python over all events: the definition of each kind of window, and nothing clever.

An ``Arrival`` is an event of one key with the watermark before it, in the order of arrival. A result is
``(start, end, value, kind)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

NEVER = math.inf
Result: TypeAlias = tuple[int, int, Any, str]
Value: TypeAlias = Callable[[list[tuple[int, Any]]], Any]
"""The value of the events of a window: pairs of event time and event, in the order of event time."""


class Arrival(NamedTuple):
    """An event of a key."""

    watermark: int
    time: int
    event: Any


class Found(NamedTuple):
    """The results of a key, and the events that no window has taken."""

    results: list[Result]
    dropped: list[Any]


def arrivals(events: Iterable[tuple[Any, int, Any]], out_of_order: int) -> dict[Any, list[Arrival]]:
    """The arrivals by key, of ``(key, time, event)`` in the order of one partition."""
    watermark = -(2**62)
    found: dict[Any, list[Arrival]] = {}
    for key, time, event in events:
        found.setdefault(key, []).append(Arrival(watermark, time, event))
        watermark = max(watermark, time - out_of_order - 1)
    return found


def _value(value: Value, events: Iterable[Arrival]) -> Any:
    return value(sorted(((one.time, one.event) for one in events), key=lambda pair: pair[0]))


def spans(
    all_: Sequence[Arrival],
    windows_of: Callable[[int], list[tuple[int, int]]],
    value: Value,
    lateness: int = 0,
    ordered: bool = False,
    early: int = 0,
) -> Found:
    """Windows whose span depends on the event time alone: tumbling, calendar, sliding."""
    results: list[Result] = []
    dropped: list[Any] = []
    held: dict[tuple[int, int], list[Arrival]] = {}
    for one in all_:
        late = ordered and one.time <= one.watermark
        taken = [] if late else [w for w in windows_of(one.time) if w[1] - 1 + lateness > one.watermark]
        if not taken:
            dropped.append(one.event)
        for window in taken:
            held.setdefault(window, []).append(one)
    for (start, end), events in held.items():
        in_time = [one for one in events if one.watermark < end - 1]
        counted = range(early, len(in_time) + 1, early) if early else ()
        results += [(start, end, _value(value, events[:count]), "early") for count in counted]
        kinds = ["final", *["correction"] * len(events)]
        counts = [len(in_time)] if in_time else []
        counts += range(len(in_time) + 1, len(events) + 1)
        results += [
            (start, end, _value(value, events[:count]), kind)
            for count, kind in zip(counts, kinds, strict=False)
        ]
    return Found(results, dropped)


def sessions(
    all_: Sequence[Arrival],
    gap: int,
    value: Value,
    *,
    at_most: float = NEVER,
    lateness: int = 0,
    ordered: bool = False,
) -> Found:
    """Sessions: what is at most a gap apart."""
    results: list[Result] = []
    dropped: list[Any] = []
    held: list[tuple[list[Arrival], list[str]]] = []
    """The events of each session, and the kinds of its results so far."""

    def give(session: tuple[list[Arrival], list[str]]) -> None:
        events, given = session
        given.append("correction" if given else "final")
        times = [one.time for one in events]
        results.append((min(times), max(times), _value(value, events), given[-1]))

    def closes(session: tuple[list[Arrival], list[str]]) -> int:
        return max(one.time for one in session[0]) + gap

    def pass_to(watermark: float, before: float) -> None:
        for session in held:
            if before < closes(session) <= watermark:
                give(session)
        held[:] = [one for one in held if closes(one) + lateness > watermark]

    before: float = -NEVER
    waiting = sorted(all_, key=lambda one: one.time) if ordered else list(all_)
    if ordered:  # late events are left out; the others come in the order of their times
        dropped += [one.event for one in all_ if one.time <= one.watermark]
        waiting = [one for one in waiting if one.time > one.watermark]
    for one in waiting:
        watermark = one.time - 1 if ordered else one.watermark
        pass_to(watermark, before)
        before = max(before, watermark)
        near = [s for s in held if min(e.time for e in s[0]) - gap <= one.time <= closes(s)]
        if at_most < NEVER:
            near = [s for s in near[-1:] if one.time - min(e.time for e in s[0]) <= at_most]
        if not near and one.time + gap + lateness <= watermark:
            dropped.append(one.event)
            continue
        merged = ([e for s in near for e in s[0]] + [one], [k for s in near for k in s[1]])
        held = [s for s in held if not any(s is other for other in near)] + [merged]
        if closes(merged) <= watermark:
            give(merged)
    pass_to(NEVER, before)
    return Found(results, dropped)


def tumbling(size: int, offset: int = 0) -> Callable[[int], list[tuple[int, int]]]:
    """The window of an instant, found by counting."""

    def windows_of(time: int) -> list[tuple[int, int]]:
        number = math.floor((time - offset) / size)
        return [(offset + number * size, offset + (number + 1) * size)]

    return windows_of


def sliding(size: int, every: int, offset: int = 0) -> Callable[[int], list[tuple[int, int]]]:
    """The windows that hold an instant, found by trying all around it."""

    def windows_of(time: int) -> list[tuple[int, int]]:
        middle = math.floor((time - offset) / every)
        starts = [offset + number * every for number in range(middle - size // every - 2, middle + 2)]
        return [(start, start + size) for start in starts if start <= time < start + size]

    return windows_of


def count(all_: Sequence[Arrival], events: int, value: Value) -> Found:
    """Every so many events, as they arrive."""
    results: list[Result] = []
    for at in range(0, len(all_) - events + 1, events):
        some = all_[at : at + events]
        times = [one.time for one in some]
        results.append((min(times), max(times), _value(value, some), "final"))
    return Found(results, [])
