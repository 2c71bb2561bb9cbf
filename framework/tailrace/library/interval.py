"""Joins of two inputs by event time: of events that are near each other, and of events in one window.

Both handle their events in the order of event time, so the rules are short. For bounds a to b, a left event of time l and a
right event of time r are a pair if a <= r - l <= b:

                      matches, of the other side     is kept until     is given without a match at
    left event at l   rights from l + a to l + b     l + b             l + b, if a left join
    right event at r  lefts from r - b to r - a      r - a             r - a, if a right join

An event meets those that were handled before it and are kept; a pair is found when the second of its events is handled, and has
that time. So each pair is found once. An event of which all partners are before it is not kept, and without a match it is given
at once. A timer for an instant T fires after all events of T. There is one per key, set to when the first event is to be
freed. In an inner join, where nothing depends on that, the next one frees all that is then kept. Events that come
with one call are given in the order of the time of the other side, then of arrival.

In a window join, a key has only one window open at a time. When it ends, its lefts meet its rights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tailrace.core.declare.app import App
from tailrace.core.declare.handlers import process
from tailrace.core.declare.topic import Edge, Stream
from tailrace.core.durations import declared_duration, spelled
from tailrace.core.errors import DefinitionError
from tailrace.library.operators import add_operator, handler, opened, result_stream, timer
from tailrace.library.pairs import (
    Inputs,
    Late,
    Pair,
    TakeLate,
    Within,
    counts_of,
    fields_of,
    left_of,
    one_of_hows,
    pair_type,
    right_of,
    span_ms,
)
from tailrace.library.sides import Side
from tailrace.library.windows import Calendar, Tumbling

TIMER = "free"


def add_join(
    app: App, name: str, left: Edge[Any, Any], right: Edge[Any, Any], within: Within, how: str, late: Late
) -> Stream[Any, Any]:
    """Add the operator of ``App.join``; see there."""
    first_ms, last_ms = _bounds(name, within)
    one_of_hows(name, how)
    inputs = Inputs(app, name, (left, right), late)
    # At one time, an event that is always handled after its partners needs not be kept for them.
    keeps_left = last_ms > 0 or (last_ms == 0 and not inputs.is_before(1, 0))
    keeps_right = first_ms < 0 or (first_ms == 0 and not inputs.is_before(0, 1))
    marks_left, marks_right = how in ("left", "full"), how in ("right", "full")
    lefts = Side("lefts", inputs.types[0], marked=marks_left) if keeps_left else None
    rights = Side("rights", inputs.types[1], marked=marks_right) if keeps_right else None
    stream = result_stream(app, name, pair_type(inputs.types, how), left, right)
    left_span = _Span(first_ms, last_ms, left_of, marks_left)
    right_span = _Span(-last_ms, -first_ms, right_of, marks_right)
    take_left = _taker(stream, lefts, rights, left_span, inputs.late[0])
    take_right = _taker(stream, rights, lefts, right_span, inputs.late[1])
    kept = (lefts, last_ms, left_of), (rights, -first_ms, right_of)
    free, failed = _freer(stream, *kept), _freer(None, *kept)
    body = {
        **fields_of(lefts, rights),
        "take_left": handler(take_left, process(left)),
        "take_right": handler(take_right, process(right)),
        "free": timer(free, TIMER, failed),
        "opened": opened(counts_of((left, lefts), (right, rights))),
    }
    what = f"join: {how}, from {_signed(first_ms)} to {_signed(last_ms)}, {inputs.named}"
    add_operator(app, name, what, body, emits=(stream, *inputs.late_topics), order="event-time")
    return stream


def _bounds(name: str, within: Within) -> tuple[int, int]:
    if isinstance(within, tuple):
        spans = [span_ms(f"the operator {name!r}", one) for one in within]
        if len(spans) == 2 and spans[0] <= spans[1]:
            return spans[0], spans[1]
    elif (last_ms := declared_duration(f"the operator {name!r}", "within", within)) > 0:
        return -last_ms, last_ms
    raise DefinitionError(
        f"the operator {name!r} has within={within!r}",
        hint='Give the least and the greatest time from the left event to the right one, ("0s", "10m") or ("-5m", "5m"); "5m" '
        "is the latter.",
    )


def _signed(ms: int) -> str:
    return f"-{spelled(-ms)}" if ms < 0 else spelled(ms)


class _Span(NamedTuple):
    """Where the partners of a side are, ``first_ms`` to ``last_ms`` after its event, which is kept for ``last_ms``."""

    first_ms: int
    last_ms: int
    pair: Callable[[Any, Any], Pair[Any, Any]]
    alone: bool
    """Whether events without a match are given."""


def _taker(
    stream: Stream[Any, Any], mine: Side | None, other: Side | None, span: _Span, late: TakeLate
) -> Callable[[Any, Any, Any], None]:
    """The handler of the events of a side."""
    first_ms, last_ms, pair, alone = span

    def take(actor: Any, event: Any, ctx: Any) -> None:
        if ctx.is_late:
            late(event, ctx)
            return
        time_ms = ctx.event_time
        found = other.match(actor, time_ms + first_ms, time_ms + last_ms) if other is not None else ()
        if found:
            emit = ctx.emit
            for one in found:
                emit(stream, pair(event, one))
        if mine is None:
            if alone and not found:
                ctx.emit(stream, pair(event, None))
        elif mine.add(actor, time_ms, event, time_ms - last_ms, matched=bool(found)):
            due_ms = time_ms + last_ms
            others_ms = other.first_ms(actor) if other is not None else None
            if others_ms is None or not time_ms <= others_ms - first_ms <= due_ms:
                ctx.set_timer(due_ms, TIMER)

    return take


def _freer(
    stream: Stream[Any, Any] | None, *sides: tuple[Side | None, int, Callable[[Any, Any], Pair[Any, Any]]]
) -> Callable[[Any, Any], None]:
    """The handler of the timer: frees what is due, and sets the timer to the first of what is left; in an inner join to the last.

    Without a stream nothing is given.
    """
    kept = [(side, keep_ms, pair) for side, keep_ms, pair in sides if side is not None]
    is_exact = any(side.marked for side, _, _ in kept)

    def free(actor: Any, ctx: Any) -> None:
        next_ms: int | None = None
        for side, keep_ms, pair in kept:
            for one in side.free(actor, ctx.event_time - keep_ms):
                if stream is not None:
                    ctx.emit(stream, pair(one, None))
            times = getattr(actor, side.times)  # of the newer ones: there are some if any are left
            left_ms = side.first_ms(actor) if is_exact else times[-1] if times else None
            if left_ms is not None and (next_ms is None or (left_ms + keep_ms < next_ms) is is_exact):
                next_ms = left_ms + keep_ms
        if next_ms is not None:
            ctx.set_timer(next_ms, TIMER)

    return free


def add_window_join(
    app: App, name: str, left: Edge[Any, Any], right: Edge[Any, Any], windows: Any, how: str, late: Late
) -> Stream[Any, Any]:
    """Add the operator of ``App.window_join``; see there."""
    if not isinstance(windows, Tumbling | Calendar):
        raise DefinitionError(
            f"the operator {name!r} joins by {windows!r}",
            hint='Give windows that do not overlap and have fixed ends: windows.tumbling("1h"), daily, weekly or monthly.',
        )
    one_of_hows(name, how)
    inputs = Inputs(app, name, (left, right), late)
    sides = [
        Side(attr, type_, marked=True) for attr, type_ in zip(("lefts", "rights"), inputs.types, strict=True)
    ]
    stream = result_stream(app, name, pair_type(inputs.types, how), left, right)

    def taker(mine: Side, late: TakeLate) -> Any:
        def take(actor: Any, event: Any, ctx: Any) -> None:
            if ctx.is_late:
                late(event, ctx)
                return
            start_ms, end_ms = windows.at(ctx.event_time)
            if mine.add(actor, ctx.event_time, event, start_ms):
                ctx.set_timer(end_ms - 1, TIMER)

        return take

    def end(actor: Any, ctx: Any) -> None:
        lefts, rights = (side.free(actor, ctx.event_time) for side in sides)
        for one in lefts or ([None] if how in ("right", "full") else []):
            for other in rights or ([None] if how in ("left", "full") else []):
                ctx.emit(stream, Pair(one, other))

    def free(actor: Any, ctx: Any) -> None:
        for side in sides:
            side.free(actor, ctx.event_time)

    body = {
        **fields_of(*sides),
        "take_left": handler(taker(sides[0], inputs.late[0]), process(left)),
        "take_right": handler(taker(sides[1], inputs.late[1]), process(right)),
        "end": timer(end, TIMER, free),
        "opened": opened(counts_of((left, sides[0]), (right, sides[1]))),
    }
    what = f"window join: {how}, {windows.spec}, {inputs.named}"
    add_operator(app, name, what, body, emits=(stream, *inputs.late_topics), order="event-time")
    return stream
