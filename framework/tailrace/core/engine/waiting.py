"""The events that wait in one ordered operator until its watermark passes them.

An event has a *place*: (time, rank of its input, tail), see ``ordering``. Its time is the event time, or, of a late event, the first
time that the watermark of its input had not passed when it was taken. Events leave in the order of their places. Most
inputs are nearly in order, so events that come in order of their places go to a queue, and only the others, *apart*, to a heap: the
next event is the lower of the two first ones.

For a cut, each input has the lowest offset that waits, the number of those events, and the sum of their offsets. The
offsets in a queue rise; those in the heap are noted in bitmaps of 4096 offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias, cast

from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine.input_decoder import BoundInput
from tailrace.core.engine.redriven import redriven_in
from tailrace.core.engine.timers import FOREVER
from tailrace.core.engine.waiting_runs import MOST_OF_A_TIER, Decode, Run, Scratch, Waiter, merged, stored
from tailrace.core.records import Head
from tailrace.core.unit_ids import Tail

Low: TypeAlias = tuple[int, int, int]
"""Of the events of one input that wait: the lowest offset, their number, and the sum of their offsets."""

_BITS: Final = 12


class _Offsets:
    """A set of offsets. ``blocks``: by offset divided by 4096, a bitmap of the rests."""

    __slots__ = ("blocks", "count")

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.count = 0

    def add(self, offset: int) -> None:
        block = offset >> _BITS
        self.blocks[block] = self.blocks.get(block, 0) | 1 << (offset & (1 << _BITS) - 1)
        self.count += 1

    def remove(self, offset: int) -> None:
        block = offset >> _BITS
        rest = self.blocks[block] ^ 1 << (offset & (1 << _BITS) - 1)
        if rest:
            self.blocks[block] = rest
        else:
            del self.blocks[block]
        self.count -= 1

    def lowest(self) -> int:
        """The lowest offset; ``FOREVER`` if there is none."""
        if not self.blocks:
            return FOREVER
        block = min(self.blocks)
        bits = self.blocks[block]
        return (block << _BITS) + (bits & -bits).bit_length() - 1


def _arrival(one: Waiter) -> tuple[int, int]:
    return one[3], one[4][0]


class Waiting:
    """The events that wait in one operator."""

    __slots__ = (
        "_apart",
        "_inbox",
        "_inputs",
        "_last_tails",
        "_ranks",
        "_runs",
        "due_ms",
        "heap",
        "late",
        "queues",
        "sums",
    )

    def __init__(self, inputs: Sequence[BoundInput]) -> None:
        self._inputs, self._ranks = inputs, [one.plan.rank for one in inputs]
        self._inbox = next((number for number, one in enumerate(inputs) if one.inbox), -1)
        self._last_tails: list[tuple[Any, bytes]] = [(None, b"") for _ in inputs]
        """By input, an event that came after one of its time, and its tail."""
        self.queues: list[deque[Head]] = [deque() for _ in inputs]
        """By input, the events that came in order."""
        self.heap: list[Waiter] = []
        """The others; of those in scratch files, the first of each run."""
        self._runs: dict[tuple[int, int], Run] = {}
        """By input and offset of its event in the heap, a run."""
        self._apart = [_Offsets() for _ in inputs]
        self.late: list[dict[int, int]] = [{} for _ in inputs]
        """By input, the offsets of those that are late, with the times of their places."""
        self.sums = [0 for _ in inputs]
        """By input, the sum of the offsets of all that wait."""
        self.due_ms = FOREVER
        """The time of the place of the first event; ``FOREVER`` if none waits."""

    def __len__(self) -> int:
        return sum(map(len, self.queues)) + sum(one.count for one in self._apart)

    def push(self, number: int, head: Head, place_ms: int) -> None:
        """Add an event of an input. ``place_ms`` is its event time, or, if it is late, after that."""
        time_ms: Any = head[1]
        queue = self.queues[number]
        in_order = not queue or time_ms > queue[-1][1] or self.is_next(number, head)
        if place_ms == time_ms and in_order and (number != self._inbox or head[3].redriven < 0):
            queue.append(head)
            self.sums[number] += head[0]
        else:
            self.push_apart(number, head, place_ms)
        if place_ms < self.due_ms:
            self.due_ms = place_ms

    def place_of(self, number: int, head: Head) -> tuple[int, Tail]:
        """Rank and tail of the place of an event; of a redriven one, those of its original."""
        one, record = self._inputs[number], head[4]
        if number != self._inbox or head[3].redriven < 0 or record is None:
            return self._ranks[number], one.tail(head)
        number = head[3].redriven
        if (tail_of := self._inputs[number].tail_of) is not None:
            return self._ranks[number], tail_of(record)
        redriven = redriven_in(record.headers)
        return self._ranks[number], -1 if redriven is None else redriven.offset

    def is_next(self, number: int, head: Head) -> bool:
        """Whether an event has its place behind the last one in the queue of its input."""
        queue, here = self.queues[number], cast(Any, head)
        if not queue:
            return True
        last: Any = queue[-1]
        if here[1] != last[1] or (tail_of := self._inputs[number].tail_of) is None:
            return bool(here[1] >= last[1])
        known, before = self._last_tails[number]
        tail = tail_of(here[4])
        self._last_tails[number] = here, tail
        return tail > (before if known is last else tail_of(last[4]))

    def push_apart(self, number: int, head: Head, place_ms: int) -> None:
        """Add an event that is not in order. Leaves ``due_ms`` alone."""
        offset = head[0]
        heappush(self.heap, (place_ms, *self.place_of(number, head), number, head))
        self._apart[number].add(offset)
        if place_ms != head[1]:
            self.late[number][offset] = place_ms
        self.sums[number] += offset

    def pop_apart(self) -> None:
        """Remove the first event of ``heap``. Leaves ``due_ms`` alone."""
        *_, number, head = heappop(self.heap)
        offset = head[0]
        self._apart[number].remove(offset)
        self.sums[number] -= offset
        if self.late[number]:
            self.late[number].pop(offset, None)
        if self._runs and (run := self._runs.pop((number, offset), None)) is not None:
            self._follow(run)

    # --- scratch files

    @property
    def in_memory(self) -> int:
        """The number of events that are in memory, without those that are read ahead of the runs."""
        return sum(map(len, self.queues)) + len(self.heap) - len(self._runs)

    @property
    def spilled(self) -> bool:
        """Whether events wait in scratch files."""
        return bool(self._runs)

    def spill(self, decode: Decode, scratch: Scratch) -> None:
        """Write what is in memory to a scratch file."""
        waiters: list[Waiter] = [one for one in self.heap if (one[3], one[4][0]) not in self._runs]
        for number, queue in enumerate(self.queues):
            rank, apart, tail = self._ranks[number], self._apart[number], self._inputs[number].tail
            for head in queue:
                time_ms: Any = head[1]
                waiters.append((time_ms, rank, tail(head), number, head))
                apart.add(head[0])
            queue.clear()
        if not waiters:
            return
        waiters.sort()  # by their places: no two have the same one
        self.heap[:] = [one for one in self.heap if (one[3], one[4][0]) in self._runs]
        heapify(self.heap)
        self._follow(Run(stored(waiters), decode, scratch))
        self._merge_runs(decode, scratch)

    def _merge_runs(self, decode: Decode, scratch: Scratch) -> None:
        tier = 0
        while tier <= max((one.tier for one in self._runs.values()), default=-1):
            of_tier = {place: run for place, run in self._runs.items() if run.tier == tier}
            if len(of_tier) >= MOST_OF_A_TIER:
                firsts = [one for one in self.heap if (one[3], one[4][0]) in of_tier]
                self.heap[:] = [one for one in self.heap if (one[3], one[4][0]) not in of_tier]
                heapify(self.heap)
                self._runs = {place: run for place, run in self._runs.items() if run.tier != tier}
                runs = [(one, of_tier[one[3], one[4][0]]) for one in firsts]
                self._follow(Run(merged(runs), decode, scratch, tier + 1))
            tier += 1

    def _follow(self, run: Run) -> None:
        """Put the next event of a run into the heap."""
        found = run.next()
        if found is not None:
            heappush(self.heap, found)
            self._runs[found[3], found[4][0]] = run

    # --- the next event

    def first(self) -> Any:
        """The next event, a ``Waiter``; of one from a queue, the offset is in place of the tail. One must wait."""
        found: Any = self.heap[0] if self.heap else None
        until_ms = FOREVER if found is None else found[0]
        for number, queue in enumerate(self.queues):
            if queue and (time_ms := queue[0][1]) is not None and time_ms <= until_ms:
                rank, head = self._ranks[number], queue[0]
                # Two of one time and rank are of one input: the other one is from the heap.
                if found is None or (time_ms, rank) < found[:2] or self._is_before(number, head, found):
                    found, until_ms = (time_ms, rank, head[0], number, head), time_ms
        return found

    def _is_before(self, number: int, head: Head, other: Waiter) -> bool:
        """Whether an event of a queue has its place before one of the heap that has the same time and rank."""
        tail: Any = self._inputs[number].tail(head)
        return bool((head[1], self._ranks[number], tail) < other[:3])

    def pop(self, first: Waiter) -> None:
        """Remove the next event."""
        if self.heap and self.heap[0] is first:
            self.pop_apart()
        else:
            self.sums[first[3]] -= first[4][0]
            self.queues[first[3]].popleft()
        self.look()

    def take_out(self, numbers: Collection[int]) -> list[Waiter]:
        """Remove the events of some inputs, and return them in the order of their places."""
        found: list[Waiter] = []
        kept: list[Waiter] = []
        while self:
            first: Waiter = self.first()
            self.pop(first)
            (found if first[3] in numbers else kept).append(first)
        for time_ms, _, _, number, head in sorted(
            kept, key=_arrival
        ):  # the queues are in the order of offsets
            self.push(number, head, time_ms)
        return found

    def look(self) -> None:
        """Set ``due_ms`` again, after others have changed ``queues`` and ``heap``."""
        due_ms = self.heap[0][0] if self.heap else FOREVER
        for queue in self.queues:
            if queue and (time_ms := queue[0][1]) is not None and time_ms < due_ms:
                due_ms = time_ms
        self.due_ms = due_ms

    def last_ms(self) -> int:
        """The time of the place of the last event; ``NO_WATERMARK`` if none waits."""
        times: Any = [queue[-1][1] for queue in self.queues if queue] + [one[0] for one in self.heap]
        return max([*times, *(run.last_ms for run in self._runs.values())], default=NO_WATERMARK)

    def lows(self) -> dict[int, Low]:
        """By number of the input: what a cut notes about the events that wait."""
        found: dict[int, Low] = {}
        for number, (queue, apart) in enumerate(zip(self.queues, self._apart, strict=True)):
            if queue or apart.count:
                low = min(queue[0][0] if queue else FOREVER, apart.lowest())
                found[number] = low, len(queue) + apart.count, self.sums[number]
        return found
