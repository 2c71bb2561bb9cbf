"""Runs again, with the present code, what failed in the service, in its original place; its redriven record is then skipped.

Theory. A dead letter describes a unit that had no effect: a record with all its handlers, or the firing of a timer. If the
code has been corrected since, the rebuild can run the unit at the point of history where it failed.

    along the tape     the tape names the units that failed. The place of a unit is that of the tape: the record's turn
                       among the others, the step at whose end the timer was due
    canonical order    no tape names the failed units. Every record is run in its place

The watermarks stay those of the first run, so that every timer fires where it did. A record that failed has been seen: it
moved the watermark by its event time. The first run did not pass it to a ``punctuate`` function or a watermark generator, so
a rebuild along the tape does not either. Messages that the unit sends to the app's own inbox and topics do not arrive there
along the tape: the app reads what the log holds. The report counts and notes them.

A letter that was redriven has its record in the log a second time. Each must take effect once:

    the redriven record is in the same partition, after the original: it is skipped if the original has been handled here.
                       If the original fails again, the redriven record is run in its own place
    it is in another partition (the original came from a foreign one), or after the end of the rebuild, where the service
                       has still to read it: then the redriven record counts, and the original is not run

A record that was redriven more than once has the headers of all its letters: it is skipped if any of these was handled. If
its original had been redriven for another app (whose history this one continues), the original of that one counts too. A
record that is forwarded by its key has these headers too, but in another topic, which is read as the log holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tailrace.core.declare.context import Context
from tailrace.core.declare.plan import ActorPlan, Plan, Route
from tailrace.core.engine import tape
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.failure import TimerName, timer_named, timer_of
from tailrace.core.engine.input_decoder import BoundRoute
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.key_split.shard import _ShardUnits
from tailrace.core.engine.redriven import redriven_ids
from tailrace.core.engine.units import TIMER, Units
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.records import Headers, InputRecord, Refused
from tailrace.history.beginnings import Beginning
from tailrace.history.rebuilding.failures import RebuildWatch, _RebuiltUnits, _SomeUnits
from tailrace.history.rebuilding.job import Letters, Retries, UnitResult
from tailrace.history.rebuilding.own_letters import OwnLetters

RecordPosition = tuple[str, int]
"""A record of the present partition: its input and offset."""

_SHOWN = 20


class RetryProgress(msgspec.Struct):
    """The progress of a task with its failed units. It is kept with the task's state."""

    counts: Retries = msgspec.field(default_factory=Retries)
    handled: set[RecordPosition] = msgspec.field(default_factory=set[RecordPosition])
    """Records that failed in the service, and have been handled here."""
    timers: dict[TimerName, int] = msgspec.field(default_factory=dict[TimerName, int])
    """By timer, the number of firings that failed in the service and have not happened here yet."""


class Retrying:
    """The dead letters of one task, and its progress with them."""

    def __init__(self, letters: Letters) -> None:
        self.progress = RetryProgress()
        self.originals = letters.originals
        self.redriven = frozenset(place for places in letters.originals.values() for place in places)
        self.left = frozenset(letters.left)
        self.failed = frozenset(letters.failed)
        for actor, key, timer in letters.timers:
            self.expect((actor.encode(), key.encode(), timer.encode()))
        self.skips: dict[tuple[int, int], Headers] | None = None
        """The skips of the tape that ``progress.timers`` includes."""
        self.timer: TimerName | None = None
        """The timer that is being run again."""
        self.again = False
        """Whether the unit that is failing now also failed in the service."""

    def begin_with(self, begun: Beginning) -> None:
        """Add the records that are handled in the state that the task begins with."""
        self.progress.handled |= begun.handled

    def fill(self, result: UnitResult) -> None:
        """Put the outcome into the result of the task."""
        fill(result, [self.progress])

    def expect(self, timer: TimerName) -> None:
        """Add a firing of this timer that failed in the service."""
        timers = self.progress.timers
        timers[timer] = timers.get(timer, 0) + 1

    def take(self, timer: TimerName) -> bool:
        """Whether a firing of this timer failed in the service and has not happened here yet. It counts as happened now."""
        timers = self.progress.timers
        left = timers.pop(timer, 0)
        if left > 1:
            timers[timer] = left - 1
        return left > 0

    def is_done(self, name: str, ids: list[str]) -> bool:
        """Whether the original of a record that was redriven for these letters has been handled here."""
        handled = self.progress.handled
        found = [place for id_ in ids for place in self.originals.get(id_, ())]
        return any(place[0] == name and place in handled for place in found)


@dataclass(frozen=True, slots=True)
class RetryWatch(RebuildWatch):
    """Gives a task units that run again what failed, and skip the redriven records.

    ``as_declared``: the app's ``on_error`` decides about failures, not that of the rebuild.
    ``sharded``: the task is one of a shard, and ``as_declared``.
    """

    retrying: Retrying = field(default_factory=lambda: Retrying(Letters()))
    as_declared: bool = False
    own: OwnLetters | None = None
    """If the rebuild delivers the records that the app sends to itself: the outcomes of these records."""
    sharded: bool = False

    def units(
        self,
        plan: Plan,
        partition: int,
        cells: InstanceCache,
        context: Context[Any],
        marks: Watermarks,
        totals: tape.Totals,
        log: tape.Tape,
    ) -> Units:
        """The units for a task of a rebuild."""
        kind: Any = _RetriedUnits if self.keys is None and self.observer is None else _SomeRetriedUnits
        if self.as_declared:
            kind = _ShardedUnits if self.sharded else _DeclaredUnits
        units: Units = kind(self, plan, partition, cells, context, marks, totals, log)
        return units


class _Retrying(Units):
    """Wraps the units of a task, and decides which of them are run."""

    __slots__ = ()

    _rebuild: RebuildWatch
    direct = False

    @property
    def _retry(self) -> RetryWatch:
        rebuild = self._rebuild
        assert isinstance(rebuild, RetryWatch)
        return rebuild

    def record(
        self,
        number: int,
        offset: int,
        record: InputRecord | None,
        to: Sequence[BoundRoute],
        key: Any,
        event: Any,
        mark: int,
    ) -> None:
        """See ``Units.record``."""
        rebuild, place = self._retry, self._place(number, offset)
        retrying, own = rebuild.retrying, rebuild.own
        if own is not None and place[0] in own.inputs:
            if (
                record is not None
                and own.is_redriven(record)
                and not own.runs(place[0], self.partition, record)
            ):
                retrying.progress.counts.passed_over += 1
                del self.unit.outputs[mark:]
                return
            self._learn()
            super().record(number, offset, record, to, key, event, mark)
            return
        if rebuild.keys is not None and key not in rebuild.keys:
            super().record(number, offset, record, to, key, event, mark)
            return
        counts, skipped_then = retrying.progress.counts, (number, offset) in self.skips
        headers = () if record is None else record.headers
        if headers and retrying.is_done(place[0], redriven_ids(headers, self.plan.dead_letters_topic)):
            counts.passed_over += 1
            if (
                skipped_then or place in retrying.failed
            ):  # it has a dead letter of its own, which is settled as well
                retrying.progress.handled.add(place)
            del self.unit.outputs[mark:]
            return
        if place in retrying.left and not skipped_then:
            counts.left += 1
            del self.unit.outputs[mark:]
            return
        self._learn()
        failed_then = to and (skipped_then or place in retrying.failed) and place not in retrying.left
        if failed_then or (to and place in retrying.redriven):
            retrying.progress.handled.add(place)
        if failed_then and not skipped_then:
            counts.run += 1
        super().record(number, offset, record, to, key, event, mark)
        if failed_then and place not in retrying.redriven:
            counts.undelivered += self._undelivered(mark)

    def is_skipped(self, number: int, offset: int) -> bool:
        """See ``Units.is_skipped``."""
        if not super().is_skipped(number, offset):
            return False
        retrying = self._retry.retrying
        counts = retrying.progress.counts
        left = self._place(number, offset) in retrying.left
        counts.left += left
        counts.run += not left
        return left

    def timer_skip(self, _fired: int, _table: Table, _time_ms: int, /) -> Headers | None:
        """See ``Units.timer_skip``. The timer is run again, whatever number this firing has now."""
        self._learn()
        return None

    def invoke_timer(self, route: Route, table: Table, instance: Any, timer: tuple[int, bytes]) -> None:
        """See ``Units.invoke_timer``."""
        self._learn()
        context, unit, retrying = self.context, self.unit, self._retry.retrying
        counts, mark = retrying.progress.counts, len(unit.outputs)
        retrying.timer = None
        if retrying.progress.timers and unit.fired is not None:
            name = timer_named(table.plan.name, context.key, context.timer_name, unit.fired[1])
            if retrying.take(name):
                counts.run += 1
                retrying.timer = name
        super().invoke_timer(route, table, instance, timer)
        if retrying.timer is not None:
            counts.undelivered += self._undelivered(mark)

    def failed(
        self,
        error: Exception,
        mark: int,
        number: int,
        at: int,
        record: InputRecord | None = None,
        timer: tuple[ActorPlan, str | None, int] | None = None,
    ) -> None:
        """See ``Units.failed``."""
        retrying = self._retry.retrying
        if timer is None:
            place = self._place(number, at)
            self._note_failed(number, record)
            retrying.progress.handled.discard(place)
            retrying.again = (number, at) in self.skips or place in retrying.failed
        else:
            self._learn()
            name = timer_named(timer[0].name, self.context.key, timer[1], timer[2])
            retrying.again = name == retrying.timer
            if not retrying.again and retrying.take(name):  # the app no longer has its handler
                retrying.progress.counts.run += 1
                retrying.again = True
        super().failed(error, mark, number, at, record, timer)
        retrying.progress.counts.again += retrying.again

    def refuse(self, number: int, refused: Refused, record: InputRecord | None) -> None:
        """See ``Units.refuse``."""
        self._note_failed(number, record)
        super().refuse(number, refused, record)

    def _note_failed(self, number: int, record: InputRecord | None) -> None:
        own, name = self._retry.own, self.plan.inputs[number].name
        if own is not None and record is not None and name in own.inputs:
            own.failed(name, record)

    def note_failure(self, said: str) -> None:
        """Record the text of a failure, by whether the unit failed in the service too."""
        retrying = self._retry.retrying
        shown = retrying.progress.counts.shown
        if not retrying.again:
            self._rebuild.failed.note(said)
        elif len(shown) < _SHOWN:
            shown.append(said)

    def _place(self, number: int, offset: int) -> RecordPosition:
        return self.plan.inputs[number].name, offset

    def _learn(self) -> None:
        """Add the timers that failed in the present commit, according to the tape."""
        retrying = self._retry.retrying
        if self.skips is retrying.skips:
            return
        retrying.skips = self.skips
        for (number, _), headers in self.skips.items():
            if number == TIMER:
                retrying.expect(timer_of(headers))

    def _undelivered(self, mark: int) -> int:
        """Number of outputs since ``mark`` for the app's own inputs, which will not be delivered."""
        if self._retry.own is not None:  # the rebuild delivers them like all others
            return 0
        own = {one.name for one in self.plan.inputs}
        return sum(1 for output in self.unit.outputs[mark:] if output[0] in own)


class _RetriedUnits(_Retrying, _RebuiltUnits):
    """The units of a task with all of its keys."""

    __slots__ = ()


class _SomeRetriedUnits(_Retrying, _SomeUnits):
    """The units of a task that is restricted to some keys, or watched."""

    __slots__ = ()


class _DeclaredUnits(_Retrying):
    """The units of a task in canonical order whose app decides about failures (``as_declared``)."""

    __slots__ = ("_rebuild",)

    def __init__(self, rebuild: RetryWatch, *of_units: Any) -> None:
        super().__init__(*of_units)
        self._rebuild = rebuild


class _ShardedUnits(_Retrying, _ShardUnits):
    """The same for a shard. A redriven record has the key of its original, and so belongs to the same shard."""

    __slots__ = ("_rebuild",)

    def __init__(self, rebuild: RetryWatch, *of_units: Any) -> None:
        super().__init__(*of_units)
        self._rebuild = rebuild


# --- the outcome


def fill(result: UnitResult, parts: Iterable[RetryProgress]) -> None:
    """Combine the outcomes of all shards of a task."""
    handled: set[RecordPosition] = set()
    for one in parts:
        result.retries.add(one.counts)
        handled |= one.handled
    for name, offset in sorted(handled):
        result.handled.setdefault(name, []).append(offset)
