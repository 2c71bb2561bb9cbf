"""Sliding windows: a pane is a slice, and a window merges its slices. See ``panes``.

Long sliding windows have *blocks*: of each isqrt(n) slices, if a window has n, the accumulator of those that are in the map. A
window merges the blocks that it holds whole, and the slices of the map before and behind them: about 2 * sqrt(n) + 32
accumulators in place of n. An event in a slice of the map is added to its block too; a slice that moves into the map is merged into
its block. A block that cannot be merged is empty, and its slices are merged instead. A block is used only as long as each of its slices is kept: a window that holds it whole holds them all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any

from tailrace.library.panes import IN_FIELD, Machine, Pane, Rules, unsliced_machine
from tailrace.library.windows import AnyWindows, Sliding


def machine(rules: Rules) -> Machine:
    """What keeps these windows."""
    return _Slices(rules) if isinstance(rules.windows, Sliding) else unsliced_machine(rules)


def block_ms_of(windows: AnyWindows) -> int:
    """The length of a block of slices; 0 for windows without blocks."""
    if not isinstance(windows, Sliding) or windows.size_ms // windows.slice_ms <= IN_FIELD:
        return 0
    return isqrt(windows.size_ms // windows.slice_ms) * windows.slice_ms


class _Slices(Machine):
    """Sliding windows: a pane is a slice, and a window merges its slices."""

    windows: Sliding

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.block_ms = block_ms_of(self.windows)

    def add(self, actor: Any, event: Any, ctx: Any) -> bool:
        time_ms, field = ctx.event_time, getattr(actor, self.field)
        if field and not ctx.is_late:
            start, end, acc, _ = field[-1]
            if start <= time_ms < end:  # the common case
                setattr(actor, self.field, (*field[:-1], (start, end, self.add_to(acc, event, time_ms), 0)))
                return True
        if self.is_refused(event, ctx):
            return False
        start, end = self.windows.at(time_ms)
        fired_ms, size_ms = ctx.fired_to, self.windows.size_ms
        if self.windows.last(end) + size_ms - 1 + self.lateness_ms <= fired_ms:
            self.late(event, ctx)
            return False
        found = next(self.panes(actor, end, end + 1), None)
        acc = self.aggregate.start() if found is None else found[2]
        if self.block_ms and len(field) == IN_FIELD and end < field[0][1]:
            self.grow(
                actor,
                end,
                lambda old: self.add_to(self.aggregate.start() if old is None else old[0], event, time_ms),
            )
        low = fired_ms + 2 - size_ms - self.lateness_ms  # windows that start before are freed
        low = max(self.windows.first(end), low + (self.windows.offset_ms - low) % self.windows.every_ms)
        closed = [
            (first, (oldest := self.first(actor, first + 1)) is not None and oldest[1] <= first + size_ms)
            for first in range(low, min(end, fired_ms + 2 - size_ms), self.windows.every_ms)
        ]
        self.put(actor, (start, end, self.add_to(acc, event, time_ms), 0))
        for first, was_given in closed:
            if (pane := self.window(actor, first)) is not None:  # the key was not cleared
                self.give(actor, ctx, pane, "correction" if was_given else "final", pane[1] - 1)
        if found is None:
            self.arm(actor, ctx, fired_ms)
        return True

    def window(self, actor: Any, first: int) -> Pane | None:
        """The window that starts here, of all its slices; None without any."""
        end, found, merged = first + self.windows.size_ms, False, None
        for acc in self.parts(actor, first, end):
            merged, found = self.merge(merged, acc) if found else acc, True
        return (first, end, merged, 0) if found else None

    def parts(self, actor: Any, first: int, end: int) -> Iterator[Any]:
        """The accumulators of the slices and blocks that make a window, in their order."""
        field: tuple[Pane, ...] = getattr(actor, self.field)
        if len(field) == IN_FIELD and first < field[0][0]:
            high, spilled = min(end + 1, field[0][1]), getattr(actor, self.rules.spilled)
            if self.block_ms:
                offset_ms = self.windows.offset_ms
                start, stop = (
                    first + (offset_ms - first) % self.block_ms,
                    end - (end - offset_ms) % self.block_ms,
                )
                yield from (one[2] for one in spilled.values(first + 1, min(start + 1, high)))
                for at, block in getattr(actor, self.rules.blocks).items(start + 1, stop + 1):
                    yield from block or (one[2] for one in spilled.values(at - self.block_ms + 1, at + 1))
                yield from (one[2] for one in spilled.values(max(start, stop) + 1, high))
            else:
                yield from (one[2] for one in spilled.values(first + 1, high))
        yield from (acc for _, last, acc, _ in field if first < last <= end)

    def block_of(self, slice_end_ms: int) -> int:
        """The end of the block that has this slice."""
        return slice_end_ms + (self.windows.offset_ms - slice_end_ms) % self.block_ms

    def has_spilled(self, actor: Any, pane: Pane) -> None:
        if self.block_ms:
            self.grow(actor, pane[1], lambda old: pane[2] if old is None else self.merge(old[0], pane[2]))

    def grow(
        self, actor: Any, slice_end_ms: int, accumulate: Callable[[tuple[Any, ...] | None], Any]
    ) -> None:
        """Add to a block, or begin it. Of one that cannot be merged, the slices count: the windows that hold it fail, no event does."""
        blocks, block = getattr(actor, self.rules.blocks), self.block_of(slice_end_ms)
        before = blocks.get(block)
        if before != ():
            try:
                blocks[block] = (accumulate(before),)
            except Exception:  # noqa: BLE001  # whatever the aggregate raises
                blocks[block] = ()

    def counts(self, actor: Any, fired_ms: int) -> dict[str, int]:
        windows, ends = self.windows, [pane[1] for pane in self.panes(actor)]
        starts = range(windows.first(ends[0]), ends[-1], windows.every_ms) if ends else ()
        last = [first + windows.size_ms for first in starts]
        opened = [end for end in last if end - 1 > fired_ms]
        return {
            "windows": sum(
                bisect_right(ends, end - windows.size_ms) < bisect_right(ends, end) for end in opened
            )
        }

    def opened(self, actor: Any, fired_ms: int) -> Iterator[Pane]:
        windows, slices = self.windows, list(self.panes(actor))
        for first in range(windows.first(slices[0][1]), slices[-1][1], windows.every_ms) if slices else ():
            if first + windows.size_ms - 1 > fired_ms and (pane := self.window(actor, first)) is not None:
                yield pane

    def close(self, actor: Any, ctx: Any) -> None:
        windows, time_ms = self.windows, ctx.event_time
        first = time_ms + 1 - windows.size_ms
        if (first - windows.offset_ms) % windows.every_ms == 0 and self.gives is not None:
            pane = self.window(actor, first)
            if pane is not None:
                self.give(actor, ctx, pane, "final", time_ms)
        taken = False
        while (oldest := self.first(actor)) is not None:
            if windows.last(oldest[1]) + windows.size_ms - 1 + self.lateness_ms > time_ms:
                break
            taken = self.take(actor, oldest[1]) is not None
        if taken and self.block_ms:
            is_in_map = oldest is not None and oldest[1] < getattr(actor, self.field)[0][1]
            getattr(actor, self.rules.blocks).clear(
                None, self.block_of(oldest[1]) if oldest and is_in_map else None
            )
        self.arm(actor, ctx, time_ms)

    def next_ms(self, actor: Any, after_ms: int) -> int | None:
        windows = self.windows
        oldest = self.first(actor)
        if oldest is None:
            return None
        free_ms = windows.last(oldest[1]) + windows.size_ms - 1 + self.lateness_ms
        lowest = after_ms + 2 - windows.size_ms
        lowest += (windows.offset_ms - lowest) % windows.every_ms
        found = self.first(actor, lowest + 1)
        if found is None:
            return free_ms
        return min(free_ms, max(lowest, windows.first(found[1])) + windows.size_ms - 1)
