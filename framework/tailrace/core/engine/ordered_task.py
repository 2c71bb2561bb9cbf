"""How a task takes the records of inputs whose events wait in ordered operators; see ``ordering`` for the theory.

``_run_ordered`` stands beside ``Task._run``. For each record it does what a step does: the event is late, or waits, or is
handled at once; the watermark moves; and the sweep handles what has become ready.

An input that nothing but one ordered actor reads, and those that its streams reach, takes a shorter way, ``_take_turns``:
events go from the queues to the handler without a sweep for each. It does exactly what the sweep would do, and leaves to
it whatever is rare: late events, and events of inputs that others read, too.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, Final, cast

from tailrace.core.declare.plan import InputPlan
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.engine import tape
from tailrace.core.engine.failure import FAILURES
from tailrace.core.engine.input_decoder import INDIRECT, BoundInput, BoundRoute
from tailrace.core.engine.task_state import TaskState
from tailrace.core.engine.timers import FOREVER
from tailrace.core.engine.waiting_runs import Waiter
from tailrace.core.errors import IncompatibleStateError, StateUnavailableError
from tailrace.core.records import Delivery, Head, InputRecord, Refused

NOBODY: Final[frozenset[int]] = frozenset()
NOT_TOUCHED: Final[bytes | None] = b""
"""Instead of an image: the instance has not been touched."""


class OrderedTask(TaskState):
    """The part of a task that concerns ordered operators."""

    again: frozenset[int] = frozenset()
    """In a stage: the inputs that an earlier one reads, too. It has counted their late events."""
    _late_events = 0
    """1 if the current record is late, to be counted when it is taken."""
    _late_after_idle: tuple[int, int] | None = None
    """If it is late because its source was idle: the source, and how far it is behind the watermark."""

    def __init__(self, *of_state: Any, **options: Any) -> None:
        super().__init__(*of_state, **options)
        self._sweep.handle = self._in_its_turn

    def decode(self, number: int, records: Sequence[InputRecord]) -> list[Head]:
        """Decode records of an input. A record that cannot be decoded gives a head that ``run`` refuses."""
        self._decoding = number, records
        try:
            return self._decoders[number].decode(records, self.event_clock_ms)
        finally:
            self._decoding = None

    def _run_ordered(self, one: BoundInput, heads: Sequence[Head], start: int) -> int:
        """``Task.run`` for an input whose events wait in ordered operators."""
        plan, marks, totals, firing = one.plan, self.watermarks, self.totals, self._firing
        number = plan.index
        slept, refused, marks.idle[number] = marks.idle[number], totals.refused, False
        firing.budget, unit = self.settings.firing_budget, self._unit
        unit.taken = start
        try:
            while unit.taken < len(heads) and not firing.draining:
                if one.turns and self._units.waiting_keys is None and self._take_turns(one, heads):
                    continue
                head = heads[unit.taken]
                time_ms = head[1]
                if type(head[3]) is Refused:
                    self._units.refuse(number, head[3], head[4])
                elif one.inbox and head[3].redriven >= 0:
                    self._handle_redriven(one, head)
                elif time_ms is not None:
                    self._arrive(one, head, time_ms)
                    if time_ms - one.lag > marks.of_source[number]:
                        marks.of_source[number] = time_ms - one.lag
                        marks.advance(plan.moves)
                unit.taken += 1
                firing.drain()
        finally:
            taken = unit.taken
            totals.records += taken - start - (totals.refused - refused)
            if taken == start:
                marks.idle[number] = slept  # no record was taken that could have woken the input
            else:
                before = self.positions[plan.name]
                self.positions[plan.name] = heads[taken - 1][0] + 1
                self._tape.run(number, self.positions[plan.name] - before)
                self._bound_memory(heads[taken - 1])
            unit.leave()
        return taken

    def _bound_memory(self, last: Head) -> None:
        """Write what waits to scratch files, if it takes too much memory. Raises StateUnavailableError."""
        sweep, record = self._sweep, last[4]
        if record is not None:
            sweep.weigh(record.value)
        scratch = self.settings.scratch
        if scratch is not None and sweep.bytes_in_memory > self.settings.cache_bytes // 4:
            try:
                for waiting in sweep.waiting.values():
                    waiting.spill(self.decode, scratch)
            except OSError as error:
                raise StateUnavailableError(
                    f"events that wait for their turn cannot be written to a scratch file: {error}",
                    hint="Free or give more room in the folder for temporary files (TMPDIR), allow more open files (ulimit -n), or "
                    "give the process more memory (--memory-mib).",
                ) from error

    def is_held_back(self, number: int, read: Collection[int] = ()) -> bool:
        """Whether an input should not be read further, as its events would only wait, and much waits already.

        ``read``: inputs for which it need not wait. Before the tables of broadcast topics are complete, no other input is read.
        """
        if self.first_start.awaits(number):
            return True
        sweep = self._sweep
        spilled = any(one.spilled for one in sweep.waiting.values())
        is_much = spilled or sweep.bytes_in_memory > self.settings.cache_bytes // 8
        return is_much and sweep.is_ahead(number, read)

    # --- events that wait for their turn

    def _arrive(self, one: BoundInput, head: Head, time_ms: int) -> None:
        """Take an event: let it wait in the ordered operators, and handle it for the others."""
        plan, event, record = one.plan, head[3], head[4]
        routes = one.takers(event) if one.inbox else one.routes
        marks, takers = self.watermarks, {route.operator for route, _ in routes}
        own_ms = marks.of_source[plan.index]
        place_ms = time_ms if time_ms > own_ms else own_ms + 1
        waits = [one for one in one.waits if one in takers and place_ms > marks.ready[one]]
        self._let_wait(plan.index, head, place_ms, waits)
        at_once = [route for route in routes if route[0].operator not in waits]
        is_late = place_ms != time_ms
        counts = not is_late or _first_turn(one, takers) not in waits
        if not at_once or not (counts or self._is_handled(plan, record)):
            return
        late = marks.late_for(plan, time_ms, routes[0][0].operator if one.inbox else -1)
        late = late.intersection(takers.difference(waits)).union(waits if is_late and counts else ())
        self._units.at_once = frozenset(route.operator for route, _ in at_once) if waits else NOBODY
        self._unit_of(one, head, routes if late and counts else at_once, late, waits if counts else None)

    def _let_wait(self, number: int, head: Head, place_ms: int, waits: Collection[int]) -> None:
        """Let an event wait in some operators until its place is reached."""
        keys, sweep = self._units.waiting_keys, self._sweep
        left_out = keys is not None and head[2] not in keys and place_ms == head[1]  # a late event counts
        for operator in waits:
            if left_out:
                sweep.highest_elsewhere[operator] = max(sweep.highest_elsewhere[operator], place_ms)
            else:
                sweep.waiting[operator].push(number, head, place_ms)

    def _handle_redriven(self, one: BoundInput, head: Head) -> None:
        """Take a redriven event: see ``redriven``. ``one`` is the inbox."""
        marks, unit, delivery = self.watermarks, self._unit, cast(Delivery, head[3])
        time_ms = self._context.now if head[1] is None else head[1]
        head, origin = (head[0], time_ms, *head[2:]), self._inputs[delivery.redriven]
        routes = one.takers(delivery)
        takers = {route.operator for route, _ in routes}
        waits = takers.intersection(at for at in origin.waits if time_ms > marks.ready[at])
        self._let_wait(one.plan.index, head, time_ms, sorted(waits))
        if not waits.issuperset(takers):
            to = [route for route in routes if route[0].operator not in waits]
            late = marks.late_for(origin.plan, time_ms, min(takers)).intersection(takers) - waits
            mark, failed = len(unit.outputs), self.totals.failed
            self._units.at_once = frozenset(takers - waits) if waits else NOBODY
            self._unit_of(one, head, to, late)
            if self.totals.failed > failed:
                self._firing.drop_undone()
            elif origin.plan.repartitioned and head[4] is not None:
                header = head[4].headers[:1]
                unit.outputs[mark:] = [(*sent[:4], header + sent[4]) for sent in unit.outputs[mark:]]

    def _in_its_turn(self, one: BoundInput, head: Head, operator: int, place_ms: int) -> None:
        """Handle an event for an ordered operator. A late one is counted and routed in the turn of the first operator."""
        late, waits = NOBODY, None
        found = one.takers(head[3]) if one.inbox else one.waits[operator]
        to = [route for route in found if route[0].operator == operator]
        if place_ms != head[1]:
            late = frozenset(one.plan.touches)
            if operator == _first_turn(
                one, {route.operator for route, _ in (to if one.inbox else one.routes)}
            ):
                waits = ()
            elif not self._is_handled(one.plan, head[4]):
                return
        self._units.operator = operator
        try:
            self._unit_of(one, head, to, late, waits)
        finally:
            self._units.operator = tape.ALL

    def _is_handled(self, plan: InputPlan, record: InputRecord | None) -> bool:
        """Whether a late event goes to its handlers."""
        return plan.late == "handle" or self.is_redriven(plan.index, record)

    def _unit_of(
        self,
        one: BoundInput,
        head: Head,
        to: Sequence[BoundRoute],
        late: frozenset[int],
        waits: Collection[int] | None = None,
    ) -> None:
        """Handle an event by some of its handlers, as one unit. It is late for the operators ``late``.

        ``waits``: the operators that handle it in another unit. None: it is late as ``late`` says, and counted in another unit.
        """
        offset, time_ms, key, event, record = head
        context, unit, units, number = self._context, self._unit, self._units, one.plan.index
        event = event.message if one.inbox else event
        assert time_ms is not None
        context.key, context.event_time = key, time_ms
        unit.input, unit.cause = number, record
        self._cells.begin()
        mark, apart = len(unit.outputs), units.apart
        units.apart = True
        try:
            if waits is None:
                context.is_late, units.late = bool(late), late
            elif late:
                own_ms = self.watermarks.of_source[number]
                to = self._routes_of_late(one.plan, event, to, time_ms, record, late, own_ms)
                to = [route for route in to if route[0].operator not in waits]
            units.record(number, offset, record, to, key, event, mark)
            if unit.chained:
                units.deliver_chained(key)
        except FAILURES as error:
            units.failed(error, mark, number, offset, record)
        finally:
            late_events, self._late_events = self._late_events, 0
            after_idle, self._late_after_idle = self._late_after_idle, None
            units.late = units.at_once = NOBODY
            units.apart, context.is_late = apart, False
        self.totals.late += late_events
        if after_idle is not None and late_events:
            self.watermarks.note_late(*after_idle, self.now)

    # --- the short way

    def _take_turns(self, one: BoundInput, heads: Sequence[Head]) -> bool:
        """Take heads as long as they only wait, and do what has its turn. Returns whether it took any.

        It ends before a head that is late or refused, and with one after which the sweep has to do something rare.
        """
        units, start = self._units, self._unit.taken
        (operator,) = one.waits
        units.operator, self._context.is_late = operator, False
        turns = self._in_turn(one, heads, operator)
        try:
            self._handle(turns)
        finally:
            turns.close()  # if a handler has failed, its exception may keep the generator
            units.operator = tape.ALL
        if self._unit.taken == start:
            return False
        self._firing.drain()
        return True

    def _in_turn(self, one: BoundInput, heads: Sequence[Head], operator: int) -> Generator[Waiter]:
        """Let heads wait, and yield those that are ready: each is handled before the next is asked for. Fires the timers between them."""
        marks, sweep, totals = self.watermarks, self._sweep, self.totals
        context, unit, units = self._context, self._unit, self._units
        number, lag, group, inputs = one.plan.index, one.lag, one.plan.moves, self._inputs
        waiting, (timers, clocked) = sweep.waiting[operator], self._due[number]
        of_source, of_operator, ready = marks.of_source, marks.of_operator, marks.ready
        own, mark, ceiling = of_source[number], ready[operator], marks.ceiling(operator, number)
        stood_ms, others_ms = of_operator[operator], FOREVER
        for other in group:
            if other != operator:
                others_ms = min(others_ms, sweep.waiting[other].due_ms)
                if of_operator[other] != stood_ms or ready[other] != mark:
                    return
        queue, sums, is_outside = waiting.queues[number], waiting.sums, one.tail_of is None
        last_ms: Any = queue[-1][1] if queue else NO_WATERMARK
        left = min(sweep.budget, sweep.stop_after - totals.drained)
        done: Waiter | None = None
        try:
            for at in range(unit.taken, len(heads)):
                head = heads[at]
                time_ms = head[1]
                if time_ms is None or time_ms <= own or time_ms <= mark:
                    return
                if time_ms >= last_ms and (is_outside or waiting.is_next(number, head)):
                    queue.append(head)
                    sums[number] += head[0]
                    last_ms = time_ms
                else:
                    waiting.push_apart(number, head, time_ms)
                if time_ms < waiting.due_ms:
                    waiting.due_ms = time_ms
                unit.taken = at + 1
                if time_ms - lag <= own:
                    continue
                of_source[number] = own = time_ms - lag
                new = own if own < ceiling else ceiling  # noqa: FURB136  # faster
                if new <= mark:
                    continue
                mark = new
                for other in group:
                    ready[other] = mark
                if others_ms <= mark:
                    return
                while (event_ms := waiting.due_ms) <= mark or timers.due_ms <= mark:
                    if left <= 0:
                        return
                    if timers.due_ms < event_ms:
                        fired, units.operator = totals.fired, tape.ALL
                        sweep.fire_first()
                        unit.reset()
                        units.operator = operator
                        left -= totals.fired - fired
                        continue
                    first: Waiter = waiting.first()
                    if first[4][1] != event_ms or not inputs[first[3]].turns:
                        return
                    stood_ms = of_operator[operator]
                    for other in group:
                        of_operator[other] = event_ms - 1
                    context.watermark = unit.watermark = event_ms - 1
                    yield first
                    waiting.pop(first)
                    done = first
                    left, totals.ordered = left - 1, totals.ordered + 1
                if clocked.due_ms <= context.now:
                    return
                for other in group:
                    of_operator[other] = mark
        except GeneratorExit:  # the handler has failed, and the app stops
            for other in group:
                of_operator[other] = stood_ms
            raise
        finally:
            if done is not None:
                sweep.last[operator] = done
            sweep.budget = max(0, min(sweep.budget, left))

    def _handle(self, turns: Iterator[Waiter]) -> None:
        """Handle events in their turn, each as a unit of its own."""
        cells, context, unit, units = self._cells, self._context, self._unit, self._units
        turns = turns if units.ranged is None else units.ranged.own_turns(turns)
        outputs, chained, is_direct, number = unit.outputs, unit.chained, units.direct and not units.skips, -1
        undo, touched, epoch, collections = cells.undo, cells.touched, cells.epoch, cells.touched_collections
        one, (_, route, table, call, load, touch, encode, seal, settle, full) = self._inputs[0], INDIRECT
        for time_ms, _, _, input_of, (offset, _, key, event, record) in turns:
            if input_of != number:
                number, one = input_of, self._inputs[input_of]
                straight = one.direct if is_direct else INDIRECT
                _, route, table, call, load, touch, encode, seal, settle, full = straight
            context.key, context.event_time = key, time_ms
            unit.input, unit.cause, unit.route, unit.table = number, record, route, table
            if undo or touched:
                cells.begin()
            mark, image = len(outputs), NOT_TOUCHED
            try:
                if table is not None:
                    instance = table.live.get(key)
                    if instance is None:
                        instance = load(key)
                    image = encode(instance) if instance._tr_mark == epoch else touch(instance)
                    unit.instance = instance
                    call(instance, event, context)
                    if collections:
                        cells.seal_collections()
                    if full:
                        settle(instance, image)
                    else:
                        seal(instance)
                else:
                    units.record(number, offset, record, one.routes, key, event, mark)
                if chained:
                    units.deliver_chained(key)
            except FAILURES as error:
                if image is not NOT_TOUCHED and table is not None:
                    touched.insert(0, (table, key, image))
                units.failed(error, mark, number, offset, record)
            if unit.used:
                unit.reset()

    # --- the cut

    def refill(self, number: int, heads: Sequence[Head]) -> None:
        """Let the events of an input wait again that waited at the cut. Call it before any cause, then ``refilled``.

        ``heads`` are those of its records from the offset of ``waiting_from`` up to its position.
        """
        one, sweep, reached = self._inputs[number], self._sweep, self.watermarks.of_operator
        name = one.plan.name
        resumed = [
            (operator, ordered, ordered.lows[name][0], dict(ordered.late.get(name, ())))
            for operator, ordered in self._resumed.items()
            if (one.inbox or operator in one.waits) and name in ordered.lows
        ]
        for head in heads:
            offset, time_ms = head[:2]
            if time_ms is None:
                continue
            takers = {route.operator for route in head[3].routes} if one.inbox else None
            for operator, ordered, low, late in resumed:
                place_ms = late.get(offset, time_ms)
                place = place_ms, *sweep.waiting[operator].place_of(number, head)
                after = ordered.last is None or place > tuple(ordered.last)
                is_taken = takers is None or operator in takers
                if is_taken and offset >= low and place_ms > reached[operator] and after:
                    sweep.waiting[operator].push(number, head, place_ms)
        if heads:
            self._bound_memory(heads[-1])

    def refilled(self) -> None:
        """Check that the events wait that waited at the cut.
        Raises IncompatibleStateError: they are not the same.
        """
        for operator, ordered in self._resumed.items():
            found = self._sweep.waiting[operator].lows()
            here = {self.plan.inputs[number].name: low for number, low in found.items()}
            for name, noted in ordered.lows.items():
                low, count, _ = noted
                if here.get(name) != tuple(noted):
                    again = here.get(name, (0, 0, 0))[1]
                    raise IncompatibleStateError(
                        f"{count} events of {name!r} from offset {low} on waited for their turn in "
                        f"{self.plan.operators[operator].name} of partition {self.partition}, and {again} of them were found "
                        "again",
                        hint="The log has lost some of them (its retention must be longer than events wait, and it must not "
                        "be compacted), or the code gives them other event times or keys than before. Start from a "
                        "snapshot, or rebuild.",
                    )
        self._firing.draining = self._firing.is_due()

    # --- late events

    def _late(
        self,
        plan: InputPlan,
        event: Any,
        to: Sequence[BoundRoute],
        time_ms: int,
        record: InputRecord | None,
        own_ms: int,
    ) -> Sequence[BoundRoute]:
        """Judge an event and return its routes: all of its handlers, or those for which it is not late.

        With a late topic, the event goes to that topic instead of the omitted handlers. A late record that
        was redriven goes to its handlers and is not counted: its producer did not cause the delay.
        """
        self._late_events, self._late_after_idle = 0, None
        late = self.watermarks.late_for(plan, time_ms, to[0][0].operator) if self._units.apart else None
        if late is not None and not late:
            return to
        return self._routes_of_late(plan, event, to, time_ms, record, late, own_ms)

    def _routes_of_late(
        self,
        plan: InputPlan,
        event: Any,
        to: Sequence[BoundRoute],
        time_ms: int,
        record: InputRecord | None,
        late: frozenset[int] | None,
        own_ms: int,
    ) -> Sequence[BoundRoute]:
        """See ``_late``. ``late``: the operators for which it is late; None for all. ``own_ms``: the watermark of its
        input.
        """
        units, marks = self._units, self.watermarks
        redriven = self.is_redriven(plan.index, record)
        self._late_events = int(not redriven and plan.index not in self.again)
        source, mark = plan.index, self._unit.watermark if not late else max(marks.ready[one] for one in late)
        if plan.is_inbox:
            source = marks.channel_of(to[0][0].operator)
            own_ms = marks.of_source[source]
        if time_ms > own_ms:
            self._late_after_idle = source, mark - time_ms
        self._context.is_late = True
        units.late = late or NOBODY
        if redriven or plan.late == "handle":
            return to
        in_time = () if late is None else [one for one in to if one[0].operator not in late]
        if plan.late_topic is not None and len(in_time) < len(to):
            unit = self._unit
            route, unit.route = unit.route, None  # a failure here is not a handler's fault
            unit.pass_on(plan.late_topic, event, time_ms)
            unit.route = route
        return in_time


def _first_turn(one: BoundInput, takers: Collection[int]) -> int | None:
    """The operator in whose turn a late event is counted and routed, so that ordered operators depend on no order of arrival; None: it
    is counted when it is taken, as an operator that does not wait takes it too.
    """
    return min(takers, default=None) if all(operator in one.waits for operator in takers) else None
