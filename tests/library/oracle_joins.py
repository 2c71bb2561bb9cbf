"""What joins must give, in plain Python over the whole lists of events: the definitions, and nothing clever.

An ``Arrival`` is an event of one key that is not late, with its input's rank in the order of declaration and its place in the
order of arrival. A result is ``(time, left, right)`` for the pairs, in the order in which they are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias


class Arrival(NamedTuple):
    """An event of a key."""

    time: int
    rank: int
    place: int
    event: Any


Result: TypeAlias = tuple[Any, ...]


def _turn(one: Arrival) -> tuple[int, int, int]:
    """Where an event has its turn: by time, then the rank of its input, then arrival."""
    return one.time, one.rank, one.place


def interval(lefts: list[Arrival], rights: list[Arrival], first: int, last: int, how: str) -> list[Result]:
    """All pairs with first <= right.time - left.time <= last, and, as ``how`` says, events without any."""
    placed: list[tuple[Any, Result]] = []
    matched: set[tuple[str, int]] = set()
    for left in lefts:
        for right in rights:
            if first <= right.time - left.time <= last:
                early, late = sorted((left, right), key=_turn)
                matched |= {("left", left.place), ("right", right.place)}
                placed.append(
                    ((late.time, 0, *_turn(late), *_turn(early)), (late.time, left.event, right.event))
                )
    for side, events, span, wanted in (
        ("left", lefts, last, ("left", "full")),
        ("right", rights, -first, ("right", "full")),
    ):
        for one in events:
            if how in wanted and (side, one.place) not in matched:
                time = max(one.time, one.time + span)
                pair = (one.event, None) if side == "left" else (None, one.event)
                # Without a wait it is given in its turn, else after all events of its time, the lefts first.
                # Of one time, the input that is declared first has its turn first, and meets the others no more.
                waits = span > 0 or (span == 0 and one.rank == 0)
                when: tuple[Any, ...] = (
                    (time, 1, side == "right", *_turn(one)) if waits else (time, 0, *_turn(one))
                )
                placed.append((when, (time, *pair)))
    return [result for _, result in sorted(placed, key=lambda each: each[0])]


def window(lefts: list[Arrival], rights: list[Arrival], size: int, offset: int, how: str) -> list[Result]:
    """All pairs of a window of ``size``, at its last instant, and, as ``how`` says, events whose window has none of the other side."""
    found: list[Result] = []
    for start in sorted({(one.time - offset) // size * size + offset for one in (*lefts, *rights)}):
        end = start + size - 1
        some = [sorted((o for o in side if start <= o.time <= end), key=_turn) for side in (lefts, rights)]
        found += [(end, left.event, right.event) for left in some[0] for right in some[1]]
        if not some[1] and how in ("left", "full"):
            found += [(end, one.event, None) for one in some[0]]
        if not some[0] and how in ("right", "full"):
            found += [(end, None, one.event) for one in some[1]]
    return found


def asof(lefts: list[Arrival], rights: list[Arrival], keep: float) -> list[Result]:
    """Each left event with the latest right event that is not later, and at most ``keep`` older."""
    found: list[Result] = []
    for left in sorted(lefts, key=_turn):
        valid = [one for one in rights if left.time - keep <= one.time <= left.time]
        found.append((left.time, left.event, max(valid, key=_turn).event if valid else None))
    return found


def gather(parts: list[list[Arrival]], within: int) -> list[Result]:
    """Cases: the first event of each input from the first one on, until all are there or time is over."""
    found: list[Result] = []
    open_since: int | None = None
    case: list[Any] = []
    repeated: list[int] = []

    def close(time: int) -> None:
        nonlocal open_since
        found.append((time, *case, tuple(repeated)))
        open_since = None

    for one in sorted((each for part in parts for each in part), key=_turn):
        if open_since is not None and one.time > open_since + within:
            close(open_since + within)
        if open_since is None:
            open_since, case, repeated = one.time, [None] * len(parts), [0] * len(parts)
        if case[one.rank] is None:
            case[one.rank] = one.event
        else:
            repeated[one.rank] += 1
        if None not in case:
            close(one.time)
    if open_since is not None:
        close(open_since + within)
    return found
