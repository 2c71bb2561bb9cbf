"""What the operators of ``library.rolling`` must give, in plain Python over the whole history: nothing is forgotten, nothing is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

import tailrace as tr


class Event(msgspec.Struct, frozen=True):
    key: tr.Key[str]
    at: tr.EventTime[int]
    id: str
    amount: float = 0.0


def actor_of(app: tr.App, name: str) -> Any:
    """The actor of an operator."""
    return app.actors[name]


class Turn(NamedTuple):
    """An event when it is handled, and the time up to which timers have fired by then."""

    event: Event
    fired_to: int

    @property
    def is_late(self) -> bool:
        return self.event.at <= self.fired_to


def turns(history: Sequence[Event], out_of_order_ms: int, *, ordered: bool) -> Iterator[Turn]:
    """The events of one partition in the order in which they are handled, if it never idles and ends at last."""
    watermark, waiting = tr.NO_WATERMARK, list[tuple[int, Event]]()
    for event in history:
        place = max(event.at, watermark + 1)  # a late event has its place right after the watermark
        if not ordered:
            yield Turn(event, watermark)
        else:
            waiting.append((place, event))
        watermark = max(watermark, event.at - out_of_order_ms - 1)  # another of the same time may follow
        due = sorted((one for one in waiting if one[0] <= watermark), key=lambda one: one[0])
        waiting = [one for one in waiting if one[0] > watermark]
        yield from (Turn(one, at - 1) for at, one in due)
    yield from (Turn(one, at - 1) for at, one in sorted(waiting, key=lambda one: one[0]))


class Deduped(msgspec.Struct):
    passed: list[Event]
    duplicates: int
    late: list[Event]


def deduped(handled: Iterator[Turn], within_ms: int, lateness_ms: int) -> Deduped:
    found = Deduped([], 0, [])
    for event, fired_to in handled:
        same = [one.at for one in found.passed if (one.key, one.id) == (event.key, event.id)]
        near = [at for at in same if abs(at - event.at) <= within_ms]
        if event.at > fired_to - lateness_ms:  # exact
            if near:
                found.duplicates += 1
            else:
                found.passed.append(event)
        elif any(at + within_ms + lateness_ms > fired_to for at in near):
            found.duplicates += 1
        else:
            found.late.append(event)
    return found


class Limited(NamedTuple):
    passed: list[Event]
    rest: list[Event]
    late: list[Event]


def limited(handled: Iterator[Turn], n: int, per_ms: int) -> Limited:
    """At most ``n`` events of a key and period. An event is late if its period has ended before it is handled."""
    found = Limited([], [], [])
    for event, fired_to in handled:
        period = event.at // per_ms
        same = [one for one in found.passed if one.key == event.key and one.at // per_ms == period]
        if fired_to >= (period + 1) * per_ms - 1:
            found.late.append(event)
        else:
            (found.passed if len(same) < n else found.rest).append(event)
    return found


def ranked(handled: Iterator[Turn], n: int) -> list[tuple[str, list[tuple[str, float]], int]]:
    """Key, best names with sums, and time of the event, for each event that has changed them."""
    found: list[tuple[str, list[tuple[str, float]], int]] = []
    amounts: dict[str, dict[str, list[float]]] = {}
    last: dict[str, list[tuple[str, Fraction]]] = {}
    for event, _ in handled:
        of_key = amounts.setdefault(event.key, {})
        of_key.setdefault(event.id, []).append(event.amount)
        # Sums are compared exactly for a change, and as floats for the rank.
        best = sorted(of_key, key=lambda one: (-math.fsum(of_key[one]), one))[:n]
        exact = [(one, sum(map(Fraction, of_key[one]), Fraction())) for one in best]
        if exact != last.get(event.key):
            found.append((event.key, [(one, math.fsum(of_key[one])) for one in best], event.at))
            last[event.key] = exact
    return found
