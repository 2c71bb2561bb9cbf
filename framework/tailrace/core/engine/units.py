"""Units: a record with all its handlers, or one firing of a timer. A unit succeeds or fails as a whole.

The caller begins a unit, runs its handlers (each is sealed when it returns), and passes any exception to
``failed``. ``failed`` undoes the unit and then, as the app has chosen, raises the error or writes a dead
letter. There is no other way out: a unit leaves all of its effects or none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, TypeAlias

from tailrace.core import rows
from tailrace.core.declare.context import Context
from tailrace.core.declare.plan import ActorPlan, Plan, Route
from tailrace.core.declare.topic import OnError
from tailrace.core.engine import tape
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.failure import (
    dead_letter,
    dead_letter_headers,
    explain_attribute_error,
    handler_error,
    is_handlers_fault,
    must_stop,
)
from tailrace.core.engine.input_decoder import BoundInput, BoundRoute, takers_of
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.redriven import OPERATORS_HEADER, UNIT_HEADER, is_redriven, redriven_in
from tailrace.core.engine.trace import Traced, traced
from tailrace.core.engine.watermarks import Watermarks
from tailrace.core.errors import (
    BadRecordError,
    HandlerError,
    ReplayDivergedError,
    UsageError,
    WrongPartitionError,
)
from tailrace.core.records import Headers, InputRecord, RawOutput, Refused
from tailrace.core.unit_ids import sent_id, timer_id

_DELIVERIES = 1_000
"""Maximum number of deliveries to streams that one unit may cause if the streams form a circle."""

TIMER = -1
"""Replaces the input number if a unit is the firing of a timer."""

Failure: TypeAlias = HandlerError | WrongPartitionError | BadRecordError
NewFailures: TypeAlias = Callable[[Failure, BaseException | None, OnError], None]
"""Called with a failure that the first run did not have, its cause (None for a refused record), and the app's
policy. Raises the failure, or returns: then a dead letter is written.
"""


def _most_deliveries(plan: Plan) -> int:
    """How many deliveries a unit may cause: any number, unless events of a stream may come back to it."""
    after = {
        one: {to for route in plan.routes_of_stream[one.index] for to in plan.operators[route.operator].emits}
        for one in plan.streams
    }
    while ends := [one for one, to in after.items() if to.isdisjoint(after)]:
        for one in ends:
            del after[one]
    return _DELIVERIES if after else sys.maxsize


class _Counted:
    """The totals of a task, for its list of what is to be undone."""

    def __init__(self, totals: tape.Totals) -> None:
        self._totals = totals

    def __setitem__(self, name: str, value: int) -> None:
        setattr(self._totals, name, value)


class Units:
    """Runs the handlers of a task's units, and undoes units that fail."""

    direct: ClassVar = True
    """Whether a task may call handlers itself if a unit consists of a single call."""
    ranged: Any = None
    """Itself, if it runs handlers for a range of keys only: see ``key_ranges``."""
    taken_before = 0
    """In this case, the number of records that were taken before the first head of the run."""
    waiting_keys: Collection[Any] | None = None
    """The keys whose events wait for their turn, and not only move the watermark; None for all. With some, no cut is continued."""

    def __init__(
        self,
        plan: Plan,
        partition: int,
        cells: InstanceCache,
        context: Context[Any],
        marks: Watermarks,
        totals: tape.Totals,
        log: tape.Tape,
    ) -> None:
        self.plan = plan
        self.partition = partition
        self.cells = cells
        self.context = context
        self.unit = cells.unit
        self.unit.count_dropped = self._count_dropped
        self.marks = marks
        self._most_deliveries = _most_deliveries(plan)
        self.apart = False
        """Whether operators that a unit may reach differ in watermark. Then each call sets its operator's."""
        self.late: frozenset[int] = frozenset()
        """In that case, the operators for which the record is late."""
        self.totals = totals
        self.tape = log
        self.operator = tape.ALL
        """The ordered operator for which a record is handled, in its turn."""
        self.at_once: frozenset[int] = frozenset()
        """The operators that handle the record when it is taken, if it also waits in others."""
        self.replaying = False
        self.refused: list[tuple[int, int]] = []
        """Records that were refused: input and offset."""
        self.failed_here: set[tuple[int, int, int]] | None = None
        """In stages: the records that have failed, as input, offset and operator (``tape.ALL``: all that take it)."""
        self.new_failures: NewFailures | None = None
        """In stages: decides about failures in place of the app's ``on_error``."""
        self.spans: list[tuple[Traced, int]] = []
        """Sampled records since the last commit, each with the clock reading of when it was handled."""
        self._traced: tuple[Traced, int] | None = None
        """The trace of the record whose streams are still to be delivered, and the outputs before it."""
        self.skips: dict[tuple[int, int, int], Headers] = {}
        """In a replay: the units that failed in the first run, with the headers of their dead letters."""
        self._timers: dict[bytes, Headers] | None = None
        """The timers among them, by identity; None if they are known by their number."""
        self.timer: tuple[str, bytes, int, bytes, bytes] = ("", b"", 0, b"", b"")
        """The timer that has fired last: actor, key, domain, name, cause."""
        self.inputs: Sequence[BoundInput] = ()
        self.unit.id_of = self._id_of

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
        """Run the handlers of a record. If the record is to be skipped, undo its outputs and run nothing."""
        if self.plan.inputs[number].is_table:
            to = takers_of(event, to)
        self._traced = None  # of a record that has failed
        if (number, offset, self.operator) in self.skips:
            del self.unit.outputs[mark:]
            self.skip(number, offset, record)
        else:
            if self.skips and self.operator == tape.ALL:
                to = self._without_skipped(number, offset, record, to)
            for route, table in to:
                self.invoke(route, table, key, event)
            if self.plan.tracing and record is not None and to:
                self._trace(number, record, mark, ended=not self.unit.chained)

    def _trace(self, number: int, record: InputRecord, mark: int, *, ended: bool) -> None:
        """Let what was emitted carry the trace of the record; if streams follow (not ``ended``), when these are delivered."""
        if record.headers:
            place = f"{self.plan.app}/{self.plan.inputs[number].name}/{self.partition}/{record.offset}"
            found = traced(place, record.headers)
            if found is not None and ended:
                self._carry(found, mark)
            elif found is not None:
                self._traced = found, mark

    def _carry(self, found: Traced, mark: int) -> None:
        letters, outputs = self.plan.dead_letters_topic, self.unit.outputs
        outputs[mark:] = [
            one if one[0] == letters else (*one[:4], (found.header, *one[4])) for one in outputs[mark:]
        ]
        if found.is_sampled and not self.replaying:
            self.spans.append((found, self.context.now))

    def _without_skipped(
        self, number: int, offset: int, record: InputRecord | None, to: Sequence[BoundRoute]
    ) -> Sequence[BoundRoute]:
        """The routes to operators that have no skip of their own, for a record that is handled on arrival."""
        skipped = {one[0].operator for one in to if (number, offset, one[0].operator) in self.skips}
        for operator in sorted(skipped):
            self.operator = operator
            self.skip(number, offset, record)
        self.operator = tape.ALL
        return [one for one in to if one[0].operator not in skipped]

    def invoke(self, route: Route, table: Table | None, key: Any, event: Any) -> None:
        """Run one handler of an event, and seal what it touched."""
        context, unit = self.context, self.unit
        unit.route, unit.table = route, table
        if unit.used:
            unit.reset()
        if self.apart:
            self.stand(route.operator)
        if table is None:
            route.call(event, context)
            return
        instance = table.live.get(key)
        if instance is None:
            instance = table.load(key)
        image = table.touch(instance)
        cells = self.cells
        cells.touched.append((table, key, image))
        unit.instance = instance
        if route.deletes:
            route.call(instance, context)
        else:
            route.call(instance, event, context)
        if cells.touched_collections:
            cells.seal_collections()
        if table.simple and not cells.cleared:
            table.seal(instance)
        else:
            table.settle(instance, image)

    def _id_of(self, cause: Any) -> bytes:
        """The id of ``CurrentUnit.cause``."""
        if isinstance(cause, InputRecord):
            return self.inputs[self.unit.input].id_of(cause)
        if hasattr(cause, "time_ms"):
            actor, _, domain, name, of = self.timer
            return timer_id(of, actor.encode(), domain, cause.time_ms, name)
        emitter, operator, number = cause
        return sent_id(self._id_of(emitter), number, operator, b"")

    def _count_dropped(self) -> None:
        counted: Any = _Counted(self.totals)  # undone like an assignment to a dictionary
        self.cells.undo.append((counted, "dropped", self.totals.dropped))
        self.totals.dropped += 1

    def stand(self, operator: int) -> None:
        """Set what a handler sees of its operator's event time."""
        self.context.watermark = self.marks.of_operator[operator]
        self.context.is_late = operator in self.late

    def invoke_timer(self, route: Route, table: Table, instance: Any, timer: tuple[int, bytes]) -> None:
        """Run the handler of a timer, which is then no longer pending, and seal what it touched."""
        unit, cells = self.unit, self.cells
        unit.route, unit.table = route, table
        if unit.used:
            unit.reset()
        payload: tuple[Any, ...] = ()
        if route.payload is not None:
            stored = table.parts(instance).timers[timer].payload
            if stored is None:
                raise ValueError("the timer has no payload: it was set by an earlier version of the code")
            payload = (route.payload[1](stored),)
        image = self.use_up(table, instance, timer)
        unit.instance = instance
        route.call(instance, *payload, self.context)
        if cells.touched_collections:
            cells.seal_collections()
        if table.simple and not cells.cleared:
            table.seal(instance)
        else:
            table.settle(instance, image)

    def expire(self, table: Table, instance: Any, domain: int, time_ms: int, name: bytes) -> bool:
        """Remove a field or an entry that has expired. Returns whether the expiry was still valid."""
        return table.expire(instance, domain, time_ms, name)

    def use_up(self, table: Table, instance: Any, timer: tuple[int, bytes]) -> bytes | None:
        """Remove a timer that fires. Returns the instance's image."""
        image = table.touch(instance)
        self.cells.touched.append((table, instance._tr_key, image))
        table.move_timer(instance._tr_parts or table.parts(instance), timer, None)
        return image

    def deliver_chained(self, key: Any) -> None:
        """Deliver events that were emitted to streams, in the order of emission, within the same unit."""
        unit, tables, context = self.unit, self.cells.tables, self.context
        chained, cause, deliveries = unit.chained, unit.cause, 0
        route, table = unit.route, unit.table
        time_ms, is_late, late = context.event_time, context.is_late, self.late
        try:
            while chained:
                stream, event, at_ms, unit.cause = chained.popleft()
                deliveries += 1
                if deliveries > self._most_deliveries:
                    raise UsageError(
                        f"one event has caused more than {_DELIVERIES} deliveries, the last to the stream "
                        f"{stream.name!r}",
                        hint="A handler of the stream emits to it again without end.",
                    )
                if at_ms != context.event_time:
                    context.event_time, context.is_late, self.late = at_ms, is_late, late
                    if at_ms != time_ms:
                        self.judge(at_ms)
                for to in self.plan.routes_of_stream[stream.index]:
                    self.invoke(to, None if to.target is None else tables[to.target.index], key, event)
        finally:
            context.event_time, context.is_late, self.late = time_ms, is_late, late
        if self._traced is not None:
            (found, mark), self._traced = self._traced, None
            self._carry(found, mark)
        # Not needed after a failure: the next unit sets its own.
        unit.cause, unit.route, unit.table = cause, route, table

    def judge(self, at_ms: int) -> None:
        """Judge an event of a stream that has a time of its own, for each operator by its watermark.

        While a timer fires, receivers have fired only the timers before it, whatever their watermarks; or, if it was set in the
        past, those that were due then.
        """
        fired, decided_ms, context = self.unit.fired, self.unit.decided_ms, self.context
        is_next = fired is not None and fired[0] == rows.EVENT_TIME and at_ms >= fired[1]
        if is_next and (decided_ms is None or at_ms > decided_ms):
            context.is_late, self.late = False, frozenset()
        elif self.apart:
            self.late = frozenset(one for one, mark in enumerate(self.marks.of_operator) if at_ms <= mark)
        else:
            context.is_late = at_ms <= context.watermark

    # --- failures ---

    def failed(
        self,
        error: BaseException,
        mark: int,
        number: int,
        at: int,
        record: InputRecord | None = None,
        timer: tuple[ActorPlan, str | None, int] | None = None,
    ) -> None:
        """Undo a unit that failed, and raise the error or record the unit as skipped.

        ``mark``: outputs when it began. ``number``, ``at``: see ``tape.Skip``. ``timer``: actor, name, time.
        """
        unit = self.unit
        route = unit.route
        del unit.outputs[mark:]
        unit.chained.clear()
        unit.reset()
        self.cells.rollback()
        if not is_handlers_fault(error):
            raise error
        hint = explain_attribute_error(error) if isinstance(error, AttributeError) else None
        if hint is not None:
            error.add_note(hint)
        plan, key = self.plan, self.context.key
        policy = plan.on_error if number == TIMER else self._policy(number, record)
        failure = handler_error(plan, self.partition, error, route, number, at, key, timer, policy)
        if self.new_failures is not None:
            self.new_failures(failure, error, policy)
        elif self.replaying:
            raise ReplayDivergedError(
                f"a handler failed in the replay that did not fail before: {failure}"
            ) from error
        elif must_stop(policy, error):
            raise failure from error
        headers = dead_letter_headers(failure, error, is_short=self.tape.is_full)
        self.skip(number, at, record, (*headers, *self._operators_of(number, record)))

    def _policy(self, number: int, record: InputRecord | None) -> OnError:
        """What happens if a record fails: of a redriven one, what its input says."""
        one = self.plan.inputs[number]
        if one.is_inbox and record is not None and (redriven := redriven_in(record.headers)) is not None:
            one = next((each for each in self.plan.inputs if each.name == redriven.input), one)
        return one.on_error

    def _operators_of(self, number: int, record: InputRecord | None) -> Headers:
        """A header that names the operators of a unit, if others handle the same record in units of their own."""
        operators = self.at_once if self.operator == tape.ALL else (self.operator,)
        if number == TIMER or record is None or not operators:
            return ()
        is_addressed = self.plan.inputs[number].is_inbox and is_redriven(record.headers)
        takers = {route.operator for route in self.plan.inputs[number].routes}
        if takers.issubset(operators) and not is_addressed:
            return ()
        names = ",".join(self.plan.operators[one].name for one in sorted(operators))
        return ((OPERATORS_HEADER, names.encode()),)

    def timer_skip(self, fired: int, /) -> Headers | None:
        """The headers of the dead letter if the next timer failed in the first run; None if it did not.

        It is known by the number of those before it. Changed code may fire more or fewer, and so may a replay of some keys: then it
        is known by its identity, to which belongs what has set it, as the same timer may have fired before.
        """
        if self._timers is None:
            return self.skips.get((TIMER, fired, tape.ALL))
        return self._timers.get(self._timer_identity())

    def _timer_identity(self) -> bytes:
        return tape.encode(self.timer)

    def follow(
        self, skips: dict[tuple[int, int, int], Headers], named: Sequence[tape.Skip] | None = None
    ) -> None:
        """For a replay: the units that failed in the first run. ``named``: the same, if timers are known by their identity."""
        if skips is self.skips:
            return
        self.skips, self._timers = skips, None
        if named:
            self._timers = {one.timer: tuple(one.headers) for one in named if one.input == TIMER}

    def skip(self, number: int, at: int, record: InputRecord | None, headers: Headers | None = None) -> None:
        """Record a unit that failed, now or in the first run, and write its dead letter."""
        headers = self.skips[number, at, self.operator] if headers is None else headers
        timer = self._timer_identity() if number == TIMER else b""
        if self.failed_here is not None:
            operators = self.at_once if self.operator == tape.ALL and self.at_once else (self.operator,)
            self.failed_here.update((number, at, one) for one in operators)
        self.tape.skip(tape.Skip(number, at, list(headers), self.operator, timer))
        self.totals.failed += 1
        letter: RawOutput = (self.plan.dead_letters_topic, None, None, self.context.event_time, headers)
        if record is not None:
            letter = self._letter(number, record, headers)
        self.unit.outputs.append(letter)

    def refuse(self, number: int, refused: Refused, record: InputRecord | None) -> int:
        """Raise BadRecordError, or write a dead letter. Returns 1, for this record."""
        plan = self.plan.inputs[number]
        error = BadRecordError(
            refused.detail,
            reason=refused.reason,
            topic=plan.name,
            partition=self.partition,
            offset=None if record is None else record.offset,
            hint=refused.hint,
        )
        offset = -1 if record is None else record.offset
        taped, policy = self.skips.get((number, offset, tape.REFUSED)), self._policy(number, record)
        if taped is not None:
            pass  # the first run has decided
        elif self.new_failures is not None and record is not None:
            self.new_failures(error, None, policy)
        elif self.replaying and record is not None:
            raise ReplayDivergedError(
                f"a record is refused in the replay that was not refused before: {error}"
            )
        elif policy == "stop" or record is None:
            choice = (
                'Correct its producer, or send such records to the dead letters with on_error="dead-letter".'
            )
            error.hint = f"{error.hint} {choice}".lstrip()
            raise error
        assert record is not None
        self.totals.refused += 1
        headers = dead_letter_headers(error, None) if taped is None else taped
        self.tape.skip(tape.Skip(number, offset, list(headers), tape.REFUSED))
        self.refused.append((number, offset))
        if self.failed_here is not None:
            self.failed_here.add((number, offset, tape.ALL))
        self.unit.outputs.append(self._letter(number, record, headers))
        return 1

    def _letter(self, number: int, record: InputRecord, headers: Headers) -> RawOutput:
        unit = (UNIT_HEADER, self.inputs[number].id_of(record).hex().encode())
        return dead_letter(self.plan.dead_letters_topic, record, (*headers, unit))
