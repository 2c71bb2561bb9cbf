"""The order in which a task takes its records in a stage (see ``stages``): what a rebuild has in place of a tape.

Theory. A live task takes the records that have arrived, and a tape records that order. Without a tape there is still an order
that depends on the records alone, so every rebuild comes to the same bytes. It is the live rule of ``merge``, with all records there:

    order        within an input by offset; what earlier stages have sent, by place. Between inputs the head with the lowest event
                 time first, in steps of the tolerance; within a step by input. A refused head goes at once
    reference    a record of ``watermark=False`` or of a broadcast topic comes before the first event that is not earlier than its
                 timestamp; what a service has read before its first commit (``first_ms``), before all
    in flight    what has waited in an ordered operator at the beginning comes first, before any watermark rises
    redriven     a redriven record comes last: it was redriven after something had been corrected
    arrival      a record whose event time is its arrival is placed by its timestamp
    clock        the highest record timestamp so far. In an app with timers or lifetimes of processing time it is read before each record
                 that raises it, in any other before each thousandth record, as a service reads it once for a slice. A timestamp
                 more than a day after the rebuild's beginning does not count
    future       an event whose time is further ahead of the rebuild's beginning than ``ahead_of_clock`` is refused
    upstream     a watermark that others have published is applied when all records before its position have been read. What is
                 sent comes in the order of time, so its watermark is just behind what was read

and it ends at one of two:

    a cut        the ``stand`` of the task. An input at its end holds nobody back, but no operator passes the watermark that it has
                 in the cut; at the end each is raised to it, and the clock to that of the cut. So it does not matter what was
                 idle in the service, and for how long
    the records  an input that has an end holds the others back there, as the service that continues will have to wait for it. Only one
                 without any record counts for nothing

``as_of_ms`` is a cut with one watermark; events from after it do not exist. ``finish``: the service has ended its inputs for good;
then the end passes from level to level, as live.

The result does not depend on how many records are read at once. The task records a tape as always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.durations import INSTANT_LIMIT_MS, NO_WATERMARK
from tailrace.core.engine.input_lane import InputLane, PartitionHistory
from tailrace.core.engine.merge import TOLERANCE_MS, limit_of
from tailrace.core.engine.replay import Limit
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER

_A_SLICE = 1_000
"""Number of records between two readings of the clock, if nothing goes by it."""


class StageOrder:
    """Runs a task through what a stage reads: iterate over ``go``, at times take the ``outputs`` and commit.

    ``here``: the operators of the stage (default: all). ``limit`` stops it earlier.
    """

    def __init__(
        self,
        task: Task,
        past: PartitionHistory,
        *,
        here: Collection[int] | None = None,
        limit: Limit | None = None,
        finish: bool = False,
        window: int | None = None,
    ) -> None:
        self.task, self._past, self._finish = task, past, finish
        self._here = range(len(task.plan.operators)) if here is None else here
        self._limit = limit = limit or Limit()
        self.clock_ms = task.now
        self._is_clocked = any(map(has_processing_time, task.plan.actors))
        self._unread = 0
        """How many more records are taken without a reading of the clock, if nothing goes by it."""
        stand = past.stand
        self._latest_ms = INSTANT_LIMIT_MS - 1
        if stand is not None:
            self._latest_ms = self._latest_ms if stand.clock_ms is None else stand.clock_ms
            for operator, mark in stand.marks.items():
                task.watermarks.limits[operator] = mark
        self.reached: list[int | None] = []
        """What the operators publish at the end of the records."""
        self.lanes = [*self._lanes(past, limit, window)]
        self._events = [
            (rank, one) for rank, one in enumerate(self.lanes) if not (one.is_last or one.is_reference)
        ]
        self._reference = [one for one in self.lanes if one.is_reference]
        self._last = [one for one in self.lanes if one.is_last]
        task.again = frozenset(one.number for one in self.lanes if one.name in past.again)

    def _lanes(self, past: PartitionHistory, limit: Limit, window: int | None) -> Iterator[InputLane]:
        task = self.task
        for one in task.plan.inputs:
            if one.name not in past.ends:
                continue
            start, end = (
                task.positions[one.name],
                min(past.ends[one.name], limit.offsets.get(one.name, FOREVER)),
            )
            if one.is_inbox and past.redriven is not None:
                end, stop = past.redriven
                redriven = (max(start, end), stop)
                yield InputLane(
                    task, one.index, past, redriven, window, is_last=True, as_of_ms=limit.as_of_ms
                )
            yield InputLane(task, one.index, past, (start, end), window, as_of_ms=limit.as_of_ms)

    def go(self) -> Iterator[Task]:
        """Run everything. Yields the task at each point where it may be committed."""
        task, past = self.task, self._past
        task.reopen()  # a snapshot may be of an app whose inputs had ended
        yield from self._settle()  # a commit may have fallen within a drain
        for lane in self.lanes:
            while lane.waited():
                task.run(lane.number, lane.heads[lane.at : lane.at + 1])
                lane.at, lane.taken = lane.at + 1, lane.taken + 1
                yield from self._settle()
        for lane in self.lanes:
            yield from self._read_on(lane)
        yield from self._records()
        stand = past.stand
        end_ms = past.clock_ms if stand is None or stand.clock_ms is None else stand.clock_ms
        self.clock_ms = max(self.clock_ms, end_ms)
        yield from self._read_clock()
        for lane in self.lanes:
            if lane.name not in past.sent:
                task.skip_to(lane.number, lane.next_offset())
        if stand is not None and not self._finish:
            task.raised(stand.marks)
            yield from self._settle()
        if self._finish:
            yield from self._end()
        self.reached = [task.published_ms(one.index) for one in task.plan.operators]
        task.wake_all()  # the inputs have ended only in this history

    def _records(self) -> Iterator[Task]:
        task, current, until_ms = self.task, None, NO_WATERMARK
        while not self._at_limit():
            if current is not None and current.fill():
                time_ms = current.times[current.at]
                if time_ms is None or time_ms > until_ms:
                    current = None
            else:
                current = None
            if current is None:
                current, until_ms = self._choose()
                if current is None:
                    return
            at = current.at
            if self._is_clocked or not self._unread:
                # A record may have any timestamp.
                self.clock_ms = max(self.clock_ms, min(current.stamps[at], self._latest_ms))
                self._unread = _A_SLICE
            yield from self._read_clock()
            stop = self._stop(current, until_ms)
            self._unread -= stop - at
            heads = current.heads[at:stop]
            taken = task.run(current.number, heads)
            while taken < len(heads):
                yield from self._settle()
                taken = task.run(current.number, heads, taken)
            current.taken += stop - at
            current.at = stop
            yield from self._settle()
            if current.marks or stop == len(current.heads):
                yield from self._read_on(current)
            yield task

    def _choose(self) -> tuple[InputLane | None, int]:
        """The lane that is next, and the time up to which its run goes."""
        ready: list[tuple[int, int]] = []
        for rank, lane in self._events:
            if lane.fill():
                time_ms = lane.times[lane.at]
                if time_ms is None:
                    return lane, NO_WATERMARK
                ready.append((time_ms // TOLERANCE_MS, rank))
        ready.sort()
        event = self.lanes[ready[0][1]] if ready else None
        event_ms = FOREVER if event is None else event.times[event.at]
        assert event_ms is not None
        reference_ms = FOREVER
        for lane in self._reference:
            if lane.fill():
                time_ms = lane.times[lane.at]
                if time_ms is None or time_ms <= event_ms:
                    return lane, event_ms
                reference_ms = min(reference_ms, time_ms)
        if event is None:
            return next((one for one in self._last if one.fill()), None), NO_WATERMARK
        until_ms, first = FOREVER, ready[0][1]
        if len(ready) > 1:
            until_ms = limit_of(first, ready[1][0] * TOLERANCE_MS, ready[1][1], TOLERANCE_MS)
        return event, min(until_ms, reference_ms - 1)

    def _stop(self, lane: InputLane, until_ms: int) -> int:
        """The index up to which the lane can give heads without a cause of another kind in between."""
        first = lane.at + 1
        if self._limit.watermark_ms is not None or lane.times[lane.at] is None:
            return first
        mark = lane.marks[0][0] if lane.marks else FOREVER
        clock_ms = self.clock_ms if self._is_clocked and self.clock_ms < self._latest_ms else FOREVER
        heads, times, stamps = lane.heads, lane.times, lane.stamps
        most = len(heads) if self._is_clocked else min(len(heads), lane.at + self._unread)
        for at in range(first, most):
            time_ms = times[at]
            if stamps[at] > clock_ms or time_ms is None or time_ms > until_ms or heads[at][0] >= mark:
                return at
        return max(first, most)

    def _at_limit(self) -> bool:
        limit_ms = self._limit.watermark_ms
        return limit_ms is not None and self.task.watermarks.of_first_level >= limit_ms

    def _read_clock(self) -> Iterator[Task]:
        if self.clock_ms > self.task.now:
            self.task.clock(self.clock_ms)
            yield from self._settle()

    def _read_on(self, lane: InputLane) -> Iterator[Task]:
        """Apply the causes that follow from a lane's position: published watermarks, and the lane's end."""
        task = self.task
        while lane.marks and lane.marks[0][0] <= lane.next_offset() and not self._at_limit():
            _, source, mark = lane.marks.popleft()
            if mark is None:
                task.idle(source)
            else:
                task.upstream(source, mark)
            yield from self._settle()
        if lane.falls_idle and lane.judged and not lane.fill() and not self._at_limit():
            for source in lane.sources:
                task.idle(source)
                yield from self._settle()

    def _settle(self) -> Iterator[Task]:
        while self.task.draining:
            yield self.task
            self.task.drain()

    def _end(self) -> Iterator[Task]:
        task, operators = self.task, self.task.plan.operators
        task.wake_all()
        for stage in range(task.plan.stages):
            some = [one.index for one in operators if one.stage == stage and one.index in self._here]
            for operator in some:
                task.ended(operator)
                yield from self._settle()
            rises = True
            while rises:  # handlers may set more timers
                rises = False
                for operator in some:
                    rises = task.finish(operator) or rises
                    yield from self._settle()


def has_processing_time(actor: ActorPlan) -> bool:
    """Whether anything of an actor goes by the clock."""
    domains = [one.ttl_domain for one in (*actor.maps, *actor.lists)] + [one.domain for one in actor.ttls]
    return bool(actor.processing_timers) or rows.PROCESSING_TIME in domains
