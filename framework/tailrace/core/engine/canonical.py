"""The canonical order: how a task reads a history that has no tape.

Theory. A live task takes the records that have arrived, and a tape records that order. Without a tape there
is still an order that depends only on the records, so every rebuild produces the same bytes. It is the live
rule of ``merge``, with all records available from the start:

    order        the head with the lowest event time first, in steps of the tolerance; within a step by input
                 and partition. A refused head goes at once, and a redriven one comes last, as it was redriven
                 after something had been corrected. Inputs that are not waited for live (reference data, inbox)
                 are merged like the others: all of their records are available
    arrival      a record whose event time is its arrival is placed by its timestamp
    clock        the highest record timestamp so far (of inputs; a message has none of its own), applied
                 before the record that raises it. A timestamp more than a day after the rebuild's beginning
                 does not count
    future       an event whose time is further ahead of the rebuild's beginning than ``ahead_of_clock`` is
                 refused, and so are those that the service has refused as from the future
    upstream     a published watermark is applied when all records before its position have been read; the
                 watermark of a channel by the position in the inbox
    idle         as live, by this clock: an input becomes idle when the clock has advanced by its
                 ``idle_after`` since its last record was taken. An input that follows published watermarks
                 never becomes idle by itself, unless none was ever published for it. At the end of history
                 all idle inputs are reopened: a live service that continues from here has to wait for them
    as of        a time instead of an end: events from after it do not exist, in own inputs either. An input that has
                 such events is at no end, so it does not become idle. At the end every source reaches this time,
                 the inputs from outside first, so that all timers up to it have fired
    end of all   only if the service has ended its inputs for good: the end of a history is not the end of an
                 input. It proceeds from level to level

Records that the app sends to itself (messages, its own topics) are effects of the code. So all partitions run
as one (``tasks`` has all tasks of the app), and each output of a step is delivered directly after the step:
see ``delivery``. Each task applies the common clock when it takes a record, and at the end. A single task
runs alone if its app sends nothing to itself, or if the run has only some keys or stops at a limit; it then
reads these inputs as they were recorded.

The result does not depend on how many records are read at once. The task records a tape as always, so the
result has its own tape.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

from tailrace.core.declare.plan import InputPlan
from tailrace.core.durations import INSTANT_LIMIT_MS, NO_WATERMARK
from tailrace.core.engine.delivery import Deliver, Delivery
from tailrace.core.engine.input_lane import InputLane, PartitionHistory
from tailrace.core.engine.merge import TOLERANCE_MS, limit_of
from tailrace.core.engine.replay import Limit
from tailrace.core.engine.task import Task
from tailrace.core.engine.timers import FOREVER
from tailrace.core.errors import UsageError
from tailrace.core.records import Head, Output


class Canonical:
    """Runs tasks through their history: iterate over ``go``, at times take the ``outputs`` and commit.

    ``tasks`` is one task with its ``PartitionHistory``, or with ``deliver`` all tasks of an app. ``deliver``
    is called with each record that the app sends to itself; see ``Delivery``. Of own inputs, a run with
    ``deliver`` reads only the records that others have written, and the tasks' positions in these inputs are
    then the ``ends`` of the histories. ``finish`` ends all input at the end of history. ``limit`` stops
    earlier (with ``deliver``, only by offsets), and each task at its own ``offsets``, if they are given. A
    ``KeySplitPlan`` may take the place of a task.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        pasts: Sequence[PartitionHistory],
        *,
        deliver: Deliver | None = None,
        finish: bool = False,
        limit: Limit | None = None,
        offsets: Sequence[Mapping[str, int]] | None = None,
        window: int | None = None,
    ) -> None:
        self.tasks = tasks
        self.clock_ms = max(task.now for task in tasks)
        self._limit = limit = limit or Limit()
        plan = tasks[0].plan
        delivers = deliver is not None
        if len(tasks) != (plan.partitions if delivers else 1) or (
            delivers and limit.watermark_ms is not None
        ):
            raise UsageError(
                f"{len(tasks)} of {plan.partitions} tasks cannot be taken through their past like this",
                hint="Give one task; or, for messages that are not recorded, all of them, with a limit by "
                "offsets at most.",
            )
        self._finish = finish
        self._as_of_ms = limit.as_of_ms
        self._places = {id(task): place for place, task in enumerate(tasks)}
        self._ends = [past.ends for past in pasts]
        self._delivery = None if deliver is None else Delivery(tasks, self._ends, deliver)
        own = () if self._delivery is None else self._delivery.inputs
        self._pending: list[dict[int, int]] = [{} for _ in tasks]
        """By task: watermarks of sources that have had no effect so far. It gets them before its next cause."""
        self._at_end = False
        for task in tasks:
            task.pausing = frozenset(own)
        self._rested: list[tuple[Task, int]] = []
        """Sources that became idle, to be reopened at the end."""
        self._resting: list[InputLane] = []
        """Lanes that have ended and are not idle yet."""
        self.became_idle: dict[tuple[str, int], None] = {}
        """The inputs, with their partitions, that became idle by the clock, in this order."""
        self.reached: list[int | None] = []
        """What the operators of the first task publish at the end of its records, as long as inputs are idle."""
        self._outputs: list[list[Output]] = [[] for _ in tasks]
        self.lanes = [
            InputLane(
                task,
                one.index,
                past,
                min(past.ends[one.name], stops.get(one.name, FOREVER)),
                window,
                delivered=one.name in own,
                as_of_ms=limit.as_of_ms,
            )
            for one in plan.inputs
            for task, past, stops in zip(tasks, pasts, offsets or [limit.offsets] * len(tasks), strict=True)
            if one.name in past.ends
        ]
        ranked = [*enumerate(self.lanes)]
        self._first = [one for one in ranked if not one[1].is_last]
        self._last = [one for one in ranked if one[1].is_last]

    def waiting(self, number: int = 0) -> int:
        """The number of a task's outputs that are not taken yet."""
        return self.tasks[number].waiting_outputs + len(self._outputs[number])

    def outputs(self, number: int = 0) -> list[Output]:
        """The outputs of a task since the last call. Call it before ``commit_batch``."""
        self._collect(self.tasks[number])
        self._catch_up(self.tasks[number])
        outputs, self._outputs[number] = self._outputs[number], []
        return outputs

    def go(self) -> Iterator[Task]:
        """Run everything. Yields the task that has just worked; any task may be committed then."""
        for task in self.tasks:
            task.reopen()  # a snapshot may be of an app whose inputs had ended
            yield from self._after(task)  # a commit may have fallen within a drain
        for lane in self.lanes:
            yield from self._read_on(lane)
        yield from self._records()
        self._at_end = True
        for task in self.tasks:
            self._catch_up(task)
            yield from self._read_clock(task)
            yield from self._after(task)
        for lane in self.lanes:
            if not lane.delivered:
                lane.task.skip_to(lane.number, lane.next_offset())
        # The inputs have ended only in this history: a live task that continues from here may find more
        # records.
        self.reached = [self.tasks[0].published_ms(one.index) for one in self.tasks[0].plan.operators]
        for task, source in self._rested:
            task.upstream(source, task.watermark_of(source))
            yield from self._after(task)
        if self._as_of_ms is not None:
            yield from self._reach(self._as_of_ms)
        if self._finish:
            yield from self._end()
        if self._delivery is not None:
            for task, ends in zip(self.tasks, self._ends, strict=True):
                # All sent records have been delivered, so none of the recorded copies is still to be read.
                task.positions |= {name: ends[name] for name in self._delivery.inputs if name in ends}

    def _records(self) -> Iterator[Task]:
        current, until_ms = None, NO_WATERMARK
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
            if current.stamps[at] > self.clock_ms:
                # A record may have any timestamp.
                self.clock_ms = min(current.stamps[at], INSTANT_LIMIT_MS - 1)
                if self._resting:
                    yield from self._fall_idle()
            task, quiet = current.task, self._delivery is None
            self._catch_up(task)
            if self.clock_ms > task.now:
                is_due = self.clock_ms >= task.clock_due_ms
                task.clock(self.clock_ms)
                if task.draining or (not quiet and (is_due or task.waiting_outputs)):
                    yield from self._after(task)
                    self._catch_up(task)
            stop = self._stop(current, until_ms)
            heads = current.heads[at:stop]
            if current.delivered:
                self._add(current)
            elif not quiet:
                stop = at + task.run(current.number, heads)
            else:
                taken = task.run(current.number, heads)
                while taken < len(heads):
                    yield from self._settle(task)
                    taken = task.run(current.number, heads, taken)
            current.at = stop
            if not quiet or task.draining:
                yield from self._after(task)
            if current.marks or stop == len(current.heads):
                yield from self._read_on(current)
            yield task

    def _choose(self) -> tuple[InputLane | None, int]:
        """The lane that is next, and the event time up to which its run goes."""
        ready: list[tuple[int, int]] = []
        at_once: InputLane | None = None
        filled = _filled(self._first) or _filled(self._last)
        for rank, lane in [one for one in filled if one[1].is_broadcast] or filled:
            time_ms = lane.times[lane.at]
            if time_ms is None:
                at_once = at_once or lane
                continue
            ready.append((time_ms // TOLERANCE_MS, rank))
        if at_once is not None or not ready:
            return at_once, NO_WATERMARK
        ready.sort()
        first = ready[0][1]
        if len(ready) == 1:
            return self.lanes[first], FOREVER
        return self.lanes[first], limit_of(first, ready[1][0] * TOLERANCE_MS, ready[1][1], TOLERANCE_MS)

    def _stop(self, lane: InputLane, until_ms: int) -> int:
        """The index up to which the lane can give heads without a cause of another kind in between."""
        first = lane.at + 1
        if lane.delivered or self._limit.watermark_ms is not None or lane.times[lane.at] is None:
            return first
        delivery, limited = self._delivery, False
        mark, clock_ms = lane.marks[0][0] if lane.marks else FOREVER, self.clock_ms
        heads, times, stamps = lane.heads, lane.times, lane.stamps
        for at in range(first, len(heads)):
            time_ms = times[at]
            if stamps[at] > clock_ms or time_ms is None or time_ms > until_ms or heads[at][0] >= mark:
                return at
            if delivery is not None:
                if heads[at][1] is None:
                    return at
                if not limited:
                    plan, limited = lane.task.plan.inputs[lane.number], True
                    until_ms = min(until_ms, delivery.run_until_ms(plan) - 1)
                    if time_ms > until_ms:
                        return at
        return len(heads)

    def _at_limit(self) -> bool:
        limit_ms = self._limit.watermark_ms
        return limit_ms is not None and self.tasks[0].watermarks.of_first_level >= limit_ms

    def _take(self, task: Task, number: int, heads: Sequence[Head]) -> Iterator[Task]:
        as_of_ms, taken = self._as_of_ms, 0
        if as_of_ms is not None:
            heads = [head for head in heads if head[1] is None or head[1] <= as_of_ms]
        while taken < len(heads):
            taken = task.run(number, heads, taken)
            if task.draining:
                yield from self._settle(task)
        yield task

    def _catch_up(self, task: Task) -> None:
        """Give a task the watermarks that it has not got yet: they have no effect but that its handlers see them."""
        if pending := self._pending[self._places[id(task)]]:
            assert self._delivery is not None
            for source, mark in pending.items():
                task.upstream(source, mark, silent=self._delivery.raised_by(source))
            pending.clear()

    def _read_clock(self, task: Task) -> Iterator[Task]:
        if self.clock_ms > task.now:
            task.clock(self.clock_ms)
            yield from self._settle(task)

    def _read_on(self, lane: InputLane) -> Iterator[Task]:
        """Apply the causes that follow from a lane's position: published watermarks, and the lane's end."""
        task = lane.task
        while lane.marks and lane.marks[0][0] <= lane.next_offset() and not self._at_limit():
            _, source, mark = lane.marks.popleft()
            self._catch_up(task)
            if mark is None:
                task.idle(source)
                self._rested += [(task, source)] if lane.sent else []
            else:
                task.upstream(source, mark)
            yield from self._after(task)
        if lane.judged and not lane.fill() and lane not in self._resting and not lane.withheld:
            self._rest(lane)
            if not lane.idle_after_ms:
                yield from self._fall_idle()

    def _rest(self, lane: InputLane) -> None:
        lane.resting_since_ms = self.clock_ms or None
        if lane not in self._resting:
            self._resting.append(lane)

    def _fall_idle(self) -> Iterator[Task]:
        """Mark the inputs as idle that have been at their end for long enough, by the clock."""
        for lane in list(self._resting):
            if lane.resting_since_ms is None:
                lane.resting_since_ms = self.clock_ms
            if self.clock_ms - lane.resting_since_ms < lane.idle_after_ms or self._at_limit():
                continue
            self._resting.remove(lane)
            if lane.by_clock:
                self.became_idle[lane.name, lane.task.partition] = None
            self._catch_up(lane.task)
            yield from self._read_clock(lane.task)
            for source in lane.sources:
                self._rested.append((lane.task, source))
                self._catch_up(lane.task)
                lane.task.idle(source)
                yield from self._after(lane.task)

    def _after(self, task: Task) -> Iterator[Task]:
        """Finish a step, and deliver the records that it has sent."""
        if task.draining:
            yield from self._settle(task)
        if self._delivery is not None:
            yield from self._deliver(task, self._delivery)

    def _settle(self, task: Task) -> Iterator[Task]:
        while task.draining:
            yield task
            task.drain()

    def _reach(self, as_of_ms: int) -> Iterator[Task]:
        """Raise all sources that follow no operator of the app to a time; the nearest to the outside first."""

        def level(lane: InputLane) -> tuple[bool, int]:
            plan = lane.task.plan
            return lane.delivered, min(
                plan.operators[one].level for one in plan.inputs[lane.number].moves or (0,)
            )

        for lane in sorted(self.lanes, key=level):
            for source in lane.sources if lane.judged else ():
                lane.task.upstream(source, as_of_ms)
                yield from self._after(lane.task)

    def _end(self) -> Iterator[Task]:
        operators = self.tasks[0].plan.operators
        for task in self.tasks:
            task.wake_all()
        for task in self.tasks:
            yield from self._after(task)
        for stage in range(self.tasks[0].plan.stages):
            here = [one.index for one in operators if one.stage == stage]
            for task in self.tasks:
                for operator in here:
                    task.ended(operator)
                    yield from self._after(task)
            rises = True
            while rises:  # handlers may set more timers
                rises = False
                for task in self.tasks:
                    for operator in here:
                        rises = task.finish(operator) or rises
                        yield from self._after(task)

    # --- records that the app sends to itself

    def _collect(self, task: Task) -> None:
        """Take a task's outputs; those that the app itself reads wait to be delivered."""
        if not task.waiting_outputs:
            return
        place = self._places[id(task)]
        outputs = task.take_outputs()
        self._outputs[place] += outputs
        if self._delivery is not None:
            for output in outputs:
                self._delivery.send(output)

    def _add(self, lane: InputLane) -> None:
        """Deliver the next record of a lane, which others have written."""
        record = lane.heads[lane.at][4]
        assert self._delivery is not None
        assert record is not None
        self._delivery.add(lane.task.plan.inputs[lane.number], self._places[id(lane.task)], record)

    def _deliver(self, task: Task, delivery: Delivery) -> Iterator[Task]:
        """Deliver the records that a task's last step has sent, and all records that follow from these."""
        self._collect(task)
        delivery.worked(self._places[id(task)])
        moved = delivery.follows
        while moved or delivery.waiting:
            while delivery.waiting:
                place, to, records = delivery.next()
                task = self.tasks[place]
                self._catch_up(task)
                if self.clock_ms > task.now:
                    yield from self._read_clock(task)
                self._wake(task, to)
                yield from self._take(task, to.index, task.decode(to.index, records))
                self._collect(task)
            moved = delivery.follows and (yield from self._raise(delivery))

    def _wake(self, task: Task, one: InputPlan) -> None:
        """Restart the idle time of an own input that moves its own watermark: it has got a record."""
        if one.is_inbox or one.watermark == "upstream" or not one.moves:
            return
        for lane in self.lanes:
            if lane.task is task and lane.number == one.index:
                self._rest(lane)

    def _raise(self, delivery: Delivery) -> Generator[Task, None, bool]:
        """When no record is left, raise sources to their writers' watermarks. Returns whether any rose."""
        moved = False
        for source, mark in delivery.risen():
            for place, task in enumerate(self.tasks):
                if mark is not None and not self._at_end and delivery.is_silent(task, source, mark):
                    pending = self._pending[place]
                    pending[source] = max(mark, pending.get(source, mark))
                    continue
                moved = True
                self._catch_up(task)
                if mark is None:
                    task.idle(source)
                else:
                    task.upstream(source, mark)
                delivery.worked(place)
                if task.draining:
                    yield from self._settle(task)
                self._collect(task)
        return moved


def _filled(lanes: Sequence[tuple[int, InputLane]]) -> list[tuple[int, InputLane]]:
    """The lanes that have a head."""
    return [one for one in lanes if one[1].at < len(one[1].heads) or one[1].fill()]
