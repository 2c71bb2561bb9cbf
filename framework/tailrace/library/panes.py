"""The state of windows, by key: what an event adds to, when a window closes, and what is given then.

A *pane* is what is kept of a window, or of a slice of sliding ones: ``(start, end, accumulator, fresh)``. ``fresh`` is the number
of events since the last result; -1 once a final result was given, and with ``fill`` minus the number of empty windows to come.

    window             end of its pane           due: its final result is at     freed at
    -----------------  ------------------------  ------------------------------  -------------------------------------
    of fixed size      the end of the window     end - 1                         due + lateness
    session            the last event            end + gap                       due + lateness
    sliding            the end of the slice      start + size - 1, of windows    that of its last window, + lateness
    count, global      the latest event          with its last event; never      with its result

A timer for an instant T fires when all events up to T have been handled, except late ones. So a window is closed when
``ctx.fired_to`` has reached its due time; the watermark may be ahead of it. One timer per key is set to the first due or free
time. It may be early, since a session grows: then nothing is due, and it moves on. A late event adds to each window that holds
it and is not freed; it gives a correction of those that are closed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

import msgspec

from tailrace.core.durations import INSTANT_LIMIT_MS
from tailrace.library.agg import Aggregate
from tailrace.library.windows import AnyWindows, Calendar, Count, Sessions, Tumbling

IN_FIELD: Final = 32
"""Panes of a key that its plain field holds: the latest. Earlier ones are entries of a map."""
ONE_BY_ONE: Final = 500
"""Early results of a key that are given again one by one: at one instant, and so many timers may follow each other there."""
FINAL: Final = -1
EMPTY: Final = object()
"""In place of the accumulator of a window that is filled."""
Pane = tuple[int, int, Any, int]
Gives = Callable[[Any, Any, int, int, Any, str, int], None]
"""Called with actor, context, start, end, accumulator, kind and event time of a result."""
_end = itemgetter(1)


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a window operator was declared with. ``late``: called with a context and an event that no window takes.

    ``gives``: None gives nothing, in place of a timer that has failed.
    """

    windows: AnyWindows
    aggregate: Aggregate[Any, Any, Any]
    ordered: bool
    late: Callable[[Any, Any], None] | None = None
    gives: Gives | None = None
    fill: Any = None
    lateness_ms: int = 0
    early: int = 0
    early_clock_ms: int = 0
    fill_windows: int = 0
    field: str = "panes"
    spilled: str = "spilled"
    blocks: str = "blocks"
    timer: str = "close"

    @property
    def is_early(self) -> bool:
        """Whether there are results before the final one."""
        return bool(self.early or self.early_clock_ms)


def unsliced_machine(rules: Rules) -> Machine:
    """What keeps these windows, which are not sliding ones: see ``sliding.machine``."""
    kinds: dict[type[Any], type[Machine]] = {Sessions: _Sessions, Count: _Counted}
    return kinds.get(type(rules.windows), _Fixed)(rules)


class Machine:
    """The windows of every key. ``actor`` is the instance of the key that is being handled."""

    windows: Any

    def __init__(self, rules: Rules) -> None:
        self.rules, self.windows, self.aggregate = rules, rules.windows, rules.aggregate
        self.add_to, self.merge = rules.aggregate.add, rules.aggregate.merge
        assert rules.late is not None
        self.late, self.gives = rules.late, rules.gives
        self.field, self.lateness_ms = rules.field, rules.lateness_ms
        self.after_ms = rules.windows.gap_ms if isinstance(rules.windows, Sessions) else -1
        """From the end of a pane to its due time."""
        self.is_plain = not rules.is_early
        at_most_ms = getattr(rules.windows, "at_most_ms", None)
        self.longest_ms = INSTANT_LIMIT_MS if at_most_ms is None else at_most_ms

    # --- the panes of a key, ascending by end: those in the map, then those in the field. Without a full field the map is empty ---

    def panes(self, actor: Any, low: int | None = None, high: int | None = None) -> Iterator[Pane]:
        """The panes whose end is from ``low`` to before ``high``."""
        field: tuple[Pane, ...] = getattr(actor, self.field)
        if len(field) == IN_FIELD and (low is None or low < field[0][1]):
            for _, pane in getattr(actor, self.rules.spilled).items(low, high):
                yield pane
        for pane in field:
            if (low is None or pane[1] >= low) and (high is None or pane[1] < high):
                yield pane

    def first(self, actor: Any, low: int | None = None) -> Pane | None:
        """The first pane whose end is at least ``low``."""
        field: tuple[Pane, ...] = getattr(actor, self.field)
        if len(field) == IN_FIELD:
            return next(self.panes(actor, low), None)
        for pane in field:
            if low is None or pane[1] >= low:
                return pane
        return None

    def put(self, actor: Any, pane: Pane) -> None:
        """Set the pane with this end."""
        field: tuple[Pane, ...] = getattr(actor, self.field)
        at = bisect_left(field, pane[1], key=_end) if field else 0
        found = at < len(field) and field[at][1] == pane[1]
        if len(field) == IN_FIELD and not found:
            spilled = getattr(actor, self.rules.spilled)
            if at == 0:
                spilled[pane[1]] = pane
                return
            spilled[field[0][1]] = field[0]
            self.has_spilled(actor, field[0])
            field, at = field[1:], at - 1
        setattr(actor, self.field, (*field[:at], pane, *field[at + found :]))

    def has_spilled(self, actor: Any, pane: Pane) -> None:
        """A pane was moved from the field into the map."""

    def take(self, actor: Any, end: int) -> Pane | None:
        """Remove the pane with this end, if there is one."""
        field: tuple[Pane, ...] = getattr(actor, self.field)
        spilled = getattr(actor, self.rules.spilled) if len(field) == IN_FIELD else None
        for at, pane in enumerate(field):
            if pane[1] == end:
                latest = next(reversed(spilled), None) if spilled else None
                moved = () if latest is None or spilled is None else (spilled.pop(latest),)
                setattr(actor, self.field, (*moved, *field[:at], *field[at + 1 :]))
                return pane
        return None if spilled is None else spilled.pop(end, None)

    def add(self, actor: Any, event: Any, ctx: Any) -> bool:
        """Take an event. Returns whether a window has."""
        raise NotImplementedError

    def taker(self) -> Callable[[Any, Any, Any], None]:
        """A handler that adds an event. The common case of an operator comes first: a number of calls less."""
        add, add_to = self.add, self.add_to
        is_quick = isinstance(self, _Fixed) and self.is_plain and not self.rules.ordered

        def take(actor: Any, event: Any, ctx: Any) -> None:
            panes: tuple[Pane, ...] = actor.panes
            if is_quick and len(panes) == 1:
                ((start, end, acc, fresh),) = panes
                time_ms = ctx.event_time
                if start <= time_ms < end and fresh >= 0:
                    actor.panes = ((start, end, add_to(acc, event, time_ms), fresh + 1),)
                    return
            add(actor, event, ctx)

        return take

    def close(self, actor: Any, ctx: Any) -> None:
        """Give what is due at the time of the timer that fires, and free what is not needed any more."""
        time_ms = ctx.event_time
        due = self.take(actor, time_ms - self.after_ms)
        if due is not None:
            start, end, acc, fresh = due
            if self.lateness_ms:
                self.put(actor, (start, end, acc, FINAL))
                self.give(actor, ctx, due, "correction" if fresh == FINAL else "final", time_ms)
            else:
                self.follow(actor, due)
                self.give(actor, ctx, (start, end, EMPTY, 0) if fresh < 0 else due, "final", time_ms)
        if self.lateness_ms:
            for pane in list(self.panes(actor, None, time_ms - self.after_ms - self.lateness_ms + 1)):
                self.take(actor, pane[1])
        self.arm(actor, ctx, time_ms)

    def follow(self, actor: Any, closed: Pane) -> None:
        """A window has closed: here the next one may have to be filled."""

    def opened(self, actor: Any, fired_ms: int) -> Iterator[Pane]:
        """The windows that have not closed."""
        return self.panes(actor, fired_ms - self.after_ms + 1)

    def counts(self, actor: Any, fired_ms: int) -> dict[str, int]:
        """How many have not closed."""
        panes = self.opened(actor, fired_ms)
        name = "sessions" if isinstance(self.windows, Sessions) else "windows"
        return {name: sum(fresh >= 0 or bool(self.lateness_ms) for _, _, _, fresh in panes)}

    def next_ms(self, actor: Any, after_ms: int) -> int | None:
        """The first instant after this one at which something is due or freed."""
        first = self.first(actor)
        if first is None:
            return None
        due_ms = first[1] + self.after_ms
        if due_ms > after_ms:
            return due_ms
        opened = self.first(actor, after_ms - self.after_ms + 1)
        free_ms = due_ms + self.lateness_ms
        return free_ms if opened is None else min(free_ms, opened[1] + self.after_ms)

    def arm(self, actor: Any, ctx: Any, after_ms: int) -> None:
        """Set the timer to the next instant; without one, nothing is left to do."""
        next_ms = self.next_ms(actor, after_ms)
        if next_ms is not None:
            ctx.set_timer(next_ms, self.rules.timer)
        elif self.rules.early_clock_ms:
            ctx.cancel_processing_timer(self.rules.timer)

    def give(self, actor: Any, ctx: Any, pane: Pane, kind: str, at_ms: int) -> None:
        """Give a result."""
        if self.gives is not None:
            self.gives(actor, ctx, pane[0], pane[1], pane[2], kind, at_ms)

    def changed(self, actor: Any, ctx: Any, pane: Pane) -> None:
        """An event was added to a pane: its early result is given, or the timer of the clock set.

        Results are given when all is stored: their handlers may clear the key.
        """
        fresh, rules = pane[3], self.rules
        if rules.early and fresh >= rules.early:
            self.put(actor, (*pane[:3], 0))
            self.give(actor, ctx, pane, "early", ctx.event_time)
        elif rules.early_clock_ms and fresh == 1:
            ctx.set_processing_timer(
                (ctx.now // rules.early_clock_ms + 1) * rules.early_clock_ms, rules.timer
            )

    def tick(self, actor: Any, ctx: Any) -> None:
        """The clock's timer: give an early result of each window that has changed since its last result.

        If one of them fails, all are left as they are, and given again one by one, so that it is lost alone.
        """
        changed = [pane for pane in self.panes(actor) if pane[3] > 0]
        one, is_one = f"{self.rules.timer}:one", ctx.timer_name != self.rules.timer
        if len(changed) > 1 and (is_one or (self.gives is None and len(changed) <= ONE_BY_ONE)):
            ctx.set_processing_timer(ctx.now, one)
            changed = changed[:is_one]
        for pane in changed:
            if getattr(actor, self.field):
                self.put(actor, (*pane[:3], 0))
                self.give(actor, ctx, pane, "early", ctx.event_time)

    def is_refused(self, event: Any, ctx: Any) -> bool:
        """Whether the event is late, and cannot be added in order."""
        if self.rules.ordered and ctx.is_late:
            self.late(event, ctx)
            return True
        return False

    def revise(self, actor: Any, ctx: Any, pane: Pane, before: int, fired_ms: int) -> None:
        """Set a pane with one event more. Its window may be closed, if that is late: then its result is given at once."""
        due_ms = pane[1] + self.after_ms
        is_closed = bool(self.lateness_ms) and due_ms <= fired_ms
        self.put(actor, (*pane[:3], FINAL) if is_closed else pane)
        if is_closed:
            self.give(actor, ctx, pane, "correction" if before == FINAL else "final", due_ms)
        elif before != FINAL and not self.is_plain:
            self.changed(actor, ctx, pane)


class _Fixed(Machine):
    """Tumbling and calendar windows."""

    windows: Tumbling | Calendar

    def add(self, actor: Any, event: Any, ctx: Any) -> bool:
        time_ms, field = ctx.event_time, getattr(actor, self.field)
        if field and not (self.rules.ordered and ctx.is_late):
            start, end, acc, fresh = field[-1]
            if start <= time_ms < end and fresh >= 0:  # the common case
                pane = (start, end, self.add_to(acc, event, time_ms), fresh + 1)
                setattr(actor, self.field, (*field[:-1], pane))
                if not self.is_plain:
                    self.changed(actor, ctx, pane)
                return True
        if self.is_refused(event, ctx):
            return False
        start, end = self.windows.at(time_ms)
        fired_ms = ctx.fired_to
        if end - 1 + self.lateness_ms <= fired_ms:
            self.late(event, ctx)
            return False
        found = next(self.panes(actor, end, end + 1), None)
        _, _, acc, fresh = found or (start, end, self.aggregate.start(), 0)
        if fresh < 0 and not self.lateness_ms:  # empty so far
            fresh = 0
        pane = (start, end, self.add_to(acc, event, time_ms), fresh if fresh == FINAL else fresh + 1)
        self.revise(actor, ctx, pane, fresh, fired_ms)
        if found is None:
            self.arm(actor, ctx, fired_ms)
        return True

    def follow(self, actor: Any, closed: Pane) -> None:
        left = self.rules.fill_windows if closed[3] >= 0 else -closed[3] - 1
        if left > 0:
            start, end = self.windows.at(closed[1])
            if next(self.panes(actor, end, end + 1), None) is None:
                self.put(actor, (start, end, self.aggregate.start(), -left))


class _Sessions(Machine):
    """Sessions: a pane grows, and panes merge."""

    windows: Sessions

    def add(self, actor: Any, event: Any, ctx: Any) -> bool:
        time_ms, field, gap_ms = ctx.event_time, getattr(actor, self.field), self.windows.gap_ms
        if field and not (self.rules.ordered and ctx.is_late):
            start, end, acc, fresh = field[-1]
            in_reach = start <= time_ms <= end + gap_ms and time_ms - start <= self.longest_ms
            if in_reach and fresh >= 0:  # the common case
                pane = (start, max(end, time_ms), self.add_to(acc, event, time_ms), fresh + 1)
                setattr(actor, self.field, (*field[:-1], pane))
                if not self.is_plain:
                    self.changed(actor, ctx, pane)
                return True
        if self.is_refused(event, ctx):
            return False
        fired_ms = ctx.fired_to
        near = self.near(actor, time_ms) if field else []
        if not near:
            if time_ms + gap_ms + self.lateness_ms <= fired_ms:
                self.late(event, ctx)
                return False
            near = [(time_ms, time_ms, self.aggregate.start(), 0)]
        else:
            for pane in near:
                self.take(actor, pane[1])
        first, last, acc, fresh = near[0]
        for _, end, other, more in near[1:]:
            last, acc = end, self.merge(acc, other)
            fresh = FINAL if FINAL in (fresh, more) else fresh + more
        acc = self.add_to(acc, event, time_ms)
        pane = (min(first, time_ms), max(last, time_ms), acc, fresh if fresh == FINAL else fresh + 1)
        self.revise(actor, ctx, pane, fresh, fired_ms)
        self.arm(actor, ctx, fired_ms)
        return True

    def near(self, actor: Any, time_ms: int) -> list[Pane]:
        """The sessions to which an event belongs: those at most a gap away."""
        gap_ms = self.windows.gap_ms
        found: list[Pane] = []
        for pane in self.panes(actor, time_ms - gap_ms):
            if pane[0] > time_ms + gap_ms:
                break
            found.append(pane)
        # With at_most, events come in order, so only the last session may grow.
        return (
            found
            if self.windows.at_most_ms is None
            else [p for p in found[-1:] if time_ms - p[0] <= self.longest_ms]
        )


class _Counted(Machine):
    """Windows of so many events, and of all: there is one at a time."""

    windows: Count

    def opened(self, actor: Any, fired_ms: int) -> Iterator[Pane]:
        del fired_ms
        return self.panes(actor)

    def add(self, actor: Any, event: Any, ctx: Any) -> bool:
        if self.is_refused(event, ctx):
            return False
        time_ms, field = ctx.event_time, getattr(actor, self.field)
        start, end, acc, fresh = field[0] if field else (time_ms, time_ms, self.aggregate.start(), 0)
        pane = (min(start, time_ms), max(end, time_ms), self.add_to(acc, event, time_ms), fresh + 1)
        if fresh + 1 == self.windows.events:
            setattr(actor, self.field, ())
            self.give(actor, ctx, pane, "final", time_ms)
        else:
            setattr(actor, self.field, (pane,))
            if not self.is_plain:
                self.changed(actor, ctx, pane)
        return True
