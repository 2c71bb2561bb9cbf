"""Quarantine: a key whose handler has failed waits, with all that follows for it, and the other keys continue.

Theory: ``docs/adr/0029``. In short:

    unit                  of a key that does not wait        of a key that waits
    an event, a message   handled; if it fails, the key      kept, with its time, its lateness, and the watermark with
                          waits and this is the first        which it came
    a timer, an expiry    fires; if it fails, the key        put aside when it is due
                          waits, and the timer stays
    a decision            nothing                            drops, releases, or both, if it names the last failure

A release is part of a drain. Its units are, as long as records are kept: the lowest timer up to the watermark that the
first of them came with, or else this record; then the timers that are due now. The unit after which nothing is left ends
the quarantine. A unit that fails is again the first of what waits, under a new number.

What waits is the state of the actor ``quarantine`` (``declare.quarantine``), which this module changes by the same
means as a handler would. ``Quarantine.keys`` is its memory of which keys wait, and its changes are undone with a unit. Due timers
that are put aside need not be stored: they are timers of the key, and a start finds them again.

The tape needs the failures alone (``Skip``, with the operator): the next cause for that key is kept because of it. A
number is the count of failed units before. A decision about a failure that no commit has shown is nothing: so the tape
has a failing record at most once in a commit.
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec.structs import replace

from tailrace.core import rows
from tailrace.core.declare.plan import Plan, Route
from tailrace.core.declare.quarantine import QUARANTINE, Decision, Kept, PendingTimer, Waiting
from tailrace.core.engine import tape
from tailrace.core.engine.failure import REASON_HEADER
from tailrace.core.engine.quarantine_parts import Firing, Units
from tailrace.core.engine.redriven import OPERATORS_HEADER
from tailrace.core.engine.timers import Entry
from tailrace.core.errors import (
    DROPPED,
    QUARANTINED,
    BadRecordError,
    IncompatibleStateError,
    QuarantineFullError,
)
from tailrace.core.handling.entries import MISSING
from tailrace.core.records import DELETED, Head, Headers, InputRecord, Refused

if TYPE_CHECKING:
    from tailrace.core.engine.actor_table import Table
    from tailrace.core.engine.input_decoder import BoundInput, BoundRoute
    from tailrace.core.engine.instance_cache import InstanceCache
    from tailrace.core.storage import StateReader

KEYS_MOST: Final = 1_000
"""How many keys of a task may wait."""
EVENTS_MOST: Final = 10_000
"""How many events of a key may wait."""
FAILURE_HEADER: Final = "tailrace-failure"
KEY_HEADER: Final = "tailrace-key-hex"
"""Headers of the dead letter of a failure: its number, and the bytes of the key in hex."""

KeyOf: TypeAlias = tuple[int, Any]
"""The number of an actor, which is that of its operator, and a key."""
_Aside: TypeAlias = tuple[int, Entry]
"""A time domain, and an entry of a queue of timers."""


class Quarantine:
    """What waits in a task."""

    def __init__(self, plan: Plan, cells: InstanceCache, totals: tape.Totals) -> None:
        self._plan, self._cells, self._totals = plan, cells, totals
        self.number = -1 if plan.decisions is None else plan.decisions.index
        """The number of the input with the decisions; -1 if nothing can wait."""
        self._actor = next((one for one in plan.actors if one.name == QUARANTINE), None)
        self.keys: dict[KeyOf, Waiting] = {}
        self._aside: dict[KeyOf, list[_Aside]] = {}
        """Due timers and expiries of the keys that wait, in the order in which they fire."""
        self._begun: list[KeyOf] = []
        """The keys that have begun to wait with the present record."""
        self._fresh: set[int] = set()
        """The numbers of the failures that no commit has shown."""
        self.has_failed = False
        """A record has just failed, and its key waits. Its other handlers are to be called again."""
        self.inputs: Sequence[BoundInput] = ()
        self.decode: Callable[[int, Sequence[InputRecord]], Sequence[Head]]

    def _check_left(self, state: StateReader, dropped: Collection[str]) -> None:
        """Refuse an app that has no quarantine any more, while keys wait: their events would be skipped."""
        prefix = rows.actor_prefix(QUARANTINE)
        if (
            QUARANTINE not in dropped
            and next(iter(state.scan(prefix, rows.prefix_end(prefix))), None) is not None
        ):
            raise IncompatibleStateError(
                f'keys wait in quarantine, and the app {self._plan.app!r} does not have on_error="quarantine" any more',
                hint='Release or drop them first, with on_error="quarantine". To lose all that waits: --drop-state quarantine.',
            )

    def load(self, state: StateReader, dropped: Collection[str]) -> None:
        """Read which keys wait. Raises IncompatibleStateError: their actor is not there any more, or to be dropped."""
        if self._actor is None:
            self._check_left(state, dropped)
            return
        if self.number < 0:
            return
        table = self._cells.tables[self._actor.index]
        actors = {one.name: one for one in self._plan.actors}
        at, end = table.prefix, rows.prefix_end(table.prefix)
        while (found := next(iter(table.state.scan(at, end)), None)) is not None:
            at = rows.prefix_end(rows.key_prefix(found[0]))
            key_bytes = rows.read_state_row(found[0]).key
            for name, waiting in table.load(key_bytes).waiting.items():
                if name not in actors or any(one.partition(".")[0] == name for one in dropped):
                    raise IncompatibleStateError(
                        f"events of a key wait in quarantine for the actor {name!r}, which is not there any more or to be dropped",
                        hint="Release or drop them first, with the code that has the actor: 'tailrace dead-letters list "
                        f"{self._plan.app} --reason {QUARANTINED}'.",
                    )
                self.keys[actors[name].index, actors[name].key_codec.decode(key_bytes)] = waiting

    def take_back(self) -> None:
        """Forget which keys have begun to wait with a record that is not taken after all: the task stops."""
        for one in self._begun:
            self.keys.pop(one, None)
        self.taken()
        self.has_failed = False

    def taken(self) -> None:
        """Note that the record is taken with which keys have begun to wait."""
        self._begun.clear()

    def committed(self) -> None:
        """Note that a commit shows all failures."""
        self._fresh.clear()

    def counted(self) -> dict[str, tuple[int, int]]:
        """By actor in which keys wait: how many keys, and how many events."""
        found: dict[str, tuple[int, int]] = {}
        for (actor, _), one in self.keys.items():
            name = self._plan.actors[actor].name
            keys, events = found.get(name, (0, 0))
            found[name] = keys + 1, events + one.stop - one.start
        return found

    # --- the state

    def _change(
        self,
        units: Units,
        one: KeyOf,
        waiting: Waiting | None,
        put: Kept | None = None,
        removed: Collection[int] = (),
    ) -> None:
        """Set the state of a key as a part of the current unit. ``put`` is kept at the last place."""
        actor, key = one
        plan, keys, name = self._actor, self.keys, self._plan.actors[actor].name
        assert plan is not None
        self._cells.undo.append((keys, one, keys.get(one, MISSING)))
        if waiting is None:
            del keys[one]
        else:
            keys[one] = waiting

        def change(instance: Any, _event: Any, _context: Any) -> None:
            if waiting is None:
                del instance.waiting[name]
            else:
                instance.waiting[name] = waiting
            if put is not None and waiting is not None:
                instance.kept[name, waiting.stop - 1] = put
            for place in removed:
                del instance.kept[name, place]

        key_bytes = self._plan.actors[actor].key_codec.encode(key)
        route = Route(plan, change, QUARANTINE, 0, plan.index)
        units.change(route, self._cells.tables[plan.index], key_bytes)

    def _kept(self, one: KeyOf, place: int) -> Kept:
        plan, actor = self._actor, self._plan.actors[one[0]]
        assert plan is not None
        table, key_bytes = self._cells.tables[plan.index], actor.key_codec.encode(one[1])
        kept: Kept = table.instance(key_bytes).kept[actor.name, place]
        return kept

    # --- failures

    def check_bound(self, one: KeyOf, failure: Exception) -> None:
        """Raise QuarantineFullError if this key may not begin to wait."""
        if one not in self.keys and len(self.keys) >= KEYS_MOST:
            raise QuarantineFullError(
                f"{KEYS_MOST:,} keys of a task wait in quarantine, and one more has failed: {failure}",
                hint=self._hint,
            ) from failure

    @property
    def _hint(self) -> str:
        listed = f"tailrace dead-letters list {self._plan.app} --reason {QUARANTINED}"
        return f"Release or drop some of them, and start again: '{listed}' shows the failures."

    def headers(self, one: KeyOf, headers: Headers) -> Headers:
        """The headers of the dead letter of a failure, given those of one that does not wait."""
        key_bytes = self._plan.actors[one[0]].key_codec.encode(one[1])
        number = b"%d" % self._totals.failed
        return (
            *((name, QUARANTINED.encode() if name == REASON_HEADER else value) for name, value in headers),
            (FAILURE_HEADER, number),
            (KEY_HEADER, key_bytes.hex().encode()),
        )

    def fail(self, units: Units, one: KeyOf, number: int, timer: PendingTimer | None) -> None:
        """Let a key wait after the failure of this number, after the failed unit was undone."""
        self._fresh.add(number)
        before = self.keys.get(one)
        if before is None and timer is None:
            self.keys[one] = Waiting(number)  # stored when the record is kept
            self._begun.append(one)
        else:
            self._cells.begin()
            self._change(
                units, one, replace(before or Waiting(number), failure=number, timer=timer, releasing=False)
            )

    def keep(
        self, units: Units, number: int, record: InputRecord | None, to: Sequence[BoundRoute], key: Any
    ) -> Sequence[BoundRoute]:
        """Keep a record for the actors in which its key waits. Returns the other routes."""
        waits = {one[0].operator for one in to if one[1] is not None and (one[0].operator, key) in self.keys}
        context, marks = units.context, units.marks
        for actor in sorted(waits):
            assert record is not None
            one = actor, key
            waiting = self.keys[one]
            if waiting.stop - waiting.start >= EVENTS_MOST and not units.replaying:
                raise QuarantineFullError(
                    f"{EVENTS_MOST:,} events of {self._plan.actors[actor].name} {key!r} wait in quarantine",
                    hint=self._hint,
                )
            kept = Kept(
                self._plan.inputs[number].name,
                *record,
                time_ms=context.event_time,
                watermark=marks.of_operator[actor] if units.apart else context.watermark,
                is_late=actor in units.late if units.apart else context.is_late,
            )
            self._change(units, one, replace(waiting, stop=waiting.stop + 1), kept)
        return [one for one in to if one[0].operator not in waits] if waits else to

    # --- decisions

    def decide(self, units: Units, decision: Decision, key_bytes: bytes) -> None:
        """Act on a decision, if it names the last failure of its key, and a commit has shown that."""
        actor = next((one for one in self._plan.actors if one.name == decision.actor), None)
        if actor is None:
            return
        try:
            one = actor.index, actor.key_codec.decode(key_bytes)
        except BadRecordError:
            return
        waiting = self.keys.get(one)
        is_last = waiting is not None and waiting.failure == decision.failure
        if waiting is None or waiting.releasing or not is_last or decision.failure in self._fresh:
            return
        start, stop = waiting.start, waiting.stop
        dropped = range(0)
        if decision.action != "release":
            drops = stop - start if decision.action == "drop-all" else int(waiting.timer is None)
            dropped = range(start, start + drops)
            for place in dropped:
                units.unit.outputs.append(self._letter(one, self._kept(one, place)))
            if waiting.timer is not None:
                give_up(units, self._cells.tables[actor.index], one[1], waiting.timer)
        after = replace(waiting, start=start + len(dropped), timer=None, releasing=True)
        self._change(units, one, after, removed=dropped)

    def _letter(self, one: KeyOf, kept: Kept) -> Any:
        """The dead letter of a record that is dropped."""
        plan, actor = self._plan, self._plan.actors[one[0]]
        said: dict[str, object] = {
            REASON_HEADER: DROPPED,
            "tailrace-error": "dropped from quarantine by a decision",
            "tailrace-topic": kept.input,
            "tailrace-partition": self._cells.partition,
            "tailrace-offset": kept.offset,
            "tailrace-actor": actor.name,
            "tailrace-key": one[1],
        }
        others = {
            route.operator
            for bound in self.inputs
            if bound.plan.name == kept.input and not bound.plan.is_inbox
            for route in bound.plan.routes
        }
        if others - {actor.index}:
            said[OPERATORS_HEADER] = actor.name
        headers = [(name, str(value).encode(errors="backslashreplace")) for name, value in said.items()]
        return plan.dead_letters_topic, kept.key, kept.value, kept.timestamp_ms, (*kept.headers, *headers)

    # --- timers

    def put_aside(self, firing: Firing) -> None:
        """Take the due timers of keys that wait out of the queues."""
        of_operator, now = firing.marks.of_operator, firing.units.context.now
        for domain, queues in ((rows.EVENT_TIME, firing.events), (rows.PROCESSING_TIME, firing.processing)):
            for actor, queue in enumerate(queues):
                decode, until = self._plan.actors[actor].key_codec.decode, of_operator[actor]
                while queue.due_ms <= (now if domain else until):
                    one = actor, decode(queue.first[2])
                    if one not in self.keys:
                        break
                    self.put(one, (domain, queue.pop()))

    def put(self, one: KeyOf, aside: _Aside) -> None:
        """Put a due timer aside, also one that has failed."""
        found = self._aside.setdefault(one, [])
        if aside not in found:
            insort(found, aside)

    def _due(self, one: KeyOf, until_ms: int | None) -> _Aside | None:
        """The next timer of a key: of event time, up to ``until_ms``; None: any that is due."""
        found = self._aside.get(one)
        if not found:
            return None
        domain, entry = found[0]
        return found[0] if until_ms is None or (domain == rows.EVENT_TIME and entry[0] <= until_ms) else None

    def _fire(self, firing: Firing, one: KeyOf, aside: _Aside) -> None:
        self._aside[one].remove(aside)
        try:
            firing.fire(*aside, self._cells.tables[one[0]])
        except BaseException:
            self.put(one, aside)
            raise

    # --- releases

    def released(self) -> KeyOf | None:
        """The key that is released next, if any is."""
        found = [(one.failure, key) for key, one in self.keys.items() if one.releasing] if self.keys else None
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def release(self, firing: Firing, one: KeyOf) -> None:
        """Handle the next unit of a key that is released."""
        waiting, of_operator, (actor, _) = self.keys[one], firing.marks.of_operator, one
        kept = self._kept(one, waiting.start) if waiting.start < waiting.stop else None
        due = self._due(one, None if kept is None else kept.watermark)
        now_ms = of_operator[actor]
        if kept is not None:
            of_operator[actor] = kept.watermark  # what its handlers see
        try:
            if due is not None:
                self._fire(firing, one, due)
            elif kept is not None:
                self._again(firing.units, one, waiting, kept)
        finally:
            of_operator[actor] = now_ms
        self.free(firing, one)

    def free(self, firing: Firing, one: KeyOf) -> None:
        """End the quarantine of a key that is released, if nothing of it is left."""
        waiting = self.keys.get(one)
        if waiting is None or not waiting.releasing or waiting.start < waiting.stop:
            return
        self.put_aside(firing)
        table = self._cells.tables[one[0]]
        while (due := self._due(one, None)) is not None:
            domain, (time_ms, _, key_bytes, name) = due
            if table.fires(domain, time_ms, key_bytes, name):
                return
            self._fire(firing, one, due)  # it is not valid any more
        self._cells.begin()
        self._change(firing.units, one, None)
        self._aside.pop(one, None)

    def _again(self, units: Units, one: KeyOf, waiting: Waiting, kept: Kept) -> None:
        """Handle the first record that was kept."""
        unit, context, (actor, key) = units.unit, units.context, one
        bound = self._bound(kept.input, one)
        number, record = bound.plan.index, kept.record
        self._cells.begin()
        context.key, context.event_time = key, kept.time_ms
        unit.input, unit.salt, unit.origin = number, bound.salt, kept.offset
        units.late = frozenset((actor,)) if kept.is_late else frozenset()
        mark, after = len(unit.outputs), replace(waiting, start=waiting.start + 1)
        units.operator = actor
        failed = self._totals.failed
        try:
            if not self._failed_before(units, number, kept.offset, record, one):
                plan = self._plan.actors[actor]
                unit.route = Route(
                    plan, _nothing, f"{plan.name} (release)", 0, actor
                )  # to whom a failure to decode belongs
                routes = self._routes(bound, one, record)
                self._change(units, one, after, removed=(waiting.start,))
                for route, table in routes:
                    units.invoke(route[0], table, key, route[1])
                if unit.chained:
                    units.deliver_chained(key)
                if self._plan.tracing:
                    units.trace(number, record, mark, released=True)
        except Exception as error:  # noqa: BLE001  # any exception of a handler fails its unit
            units.failed(error, mark, number, kept.offset, record)
        finally:
            units.operator, units.late, context.is_late = tape.ALL, frozenset(), False
            self.has_failed = False
        self._totals.released += 1
        if self._totals.failed > failed and self.keys[one].releasing:
            # It went to the dead letters, as its topic says.
            self._cells.begin()
            self._change(units, one, after, removed=(waiting.start,))

    def _failed_before(self, units: Units, number: int, offset: int, record: InputRecord, one: KeyOf) -> bool:
        """In a replay: whether the record has failed in the first run. Then it fails without a call."""
        headers = units.skips.get((number, offset, one[0]))
        if headers is None:
            return False
        units.skip(number, offset, record)
        if (failure := failure_of(headers)) is not None:
            self.fail(units, one, failure, None)
        return True

    def _bound(self, name: str, one: KeyOf) -> BoundInput:
        found = next((bound for bound in self.inputs if bound.plan.name == name), None)
        if found is None:
            raise IncompatibleStateError(
                f"events of {name!r} wait in quarantine for {self._plan.actors[one[0]].name} {one[1]!r}, and the app does "
                "not read this topic any more",
                hint="Declare it again until they are released or dropped.",
            )
        return found

    def _routes(self, bound: BoundInput, one: KeyOf, record: InputRecord) -> list[Any]:
        """The actor's handlers of a record, each with the event and the table. Raises BadRecordError."""
        ((_, _, _, event, _),) = self.decode(bound.plan.index, (record,))
        if isinstance(event, Refused):
            raise BadRecordError(event.detail, reason=event.reason, hint=event.hint)
        routes = bound.takers(event) if bound.inbox else bound.routes
        event = event.message if bound.inbox else event
        return [
            ((route, event), table)
            for route, table in routes
            if route.operator == one[0] and route.deletes is (event is DELETED)
        ]


def give_up(units: Units, table: Table, key: Any, timer: PendingTimer) -> None:
    """Use up a timer that has failed and is a dead letter. What its handler has declared for this is called in its place."""
    plan, unit, context = table.plan, units.unit, units.context
    which, instance = timer[:2], table.instance(key)
    handlers = plan.processing_timers if timer.domain else plan.event_timers
    route = handlers.get(table.timer_name(timer.name)[0])
    if route is None or route.failed is None:
        units.use_up(table, instance, which)
        return
    context.key, context.event_time, context.is_late = key, timer.time_ms, False
    context.watermark = units.marks.of_operator[plan.index]
    unit.salt, unit.fired = 1, (timer.domain, timer.time_ms)
    try:
        units.invoke_timer(dataclasses.replace(route, call=route.failed), table, instance, which)
    finally:
        unit.fired = None


def _nothing(*_: object) -> None:
    """In place of a handler."""


def failure_of(headers: Headers) -> int | None:
    """The number of the failure that the dead letter with these headers is of; None if no key waits after it."""
    if (REASON_HEADER, QUARANTINED.encode()) not in headers:
        return None
    return int(dict(headers)[FAILURE_HEADER])
