"""Observes a task at work: an observer is called before and after each call of a handler.

A task without a ``Watch`` has no extra cost: a ``Watch`` gives the task another kind of ``Units``, and turns
off the direct calls of handlers in ``Task.run``. A watch can also limit a replay to some keys. Records of
other keys then only advance the watermark, because lateness and the order of timers depend on it; their
handlers are not called.

An observer changes no result: the state that it sees is encoded from the rows that a commit would write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Route
from tailrace.core.engine.actor_table import Table
from tailrace.core.engine.input_decoder import BoundRoute, takers_of
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.key_ranges import KeyRange, RangeUnits
from tailrace.core.engine.units import TIMER, NewFailures, Units
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.records import DELETED, Headers, InputRecord, RawOutput


@dataclass(frozen=True, slots=True)
class Moment:
    """The record or timer that a task handles for a key, and the times that apply.

    ``input`` is the number of the record's input and ``at`` its offset. For a timer ``input`` is -1 and
    ``at`` its due time, in the time domain ``domain``.
    """

    key: Any
    input: int
    at: int
    event: Any
    timer: str | None
    domain: int
    event_time: int
    watermark: int
    now: int
    is_late: bool
    record: InputRecord | None = None
    """The record as the log returned it; None for a timer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a handler. ``actor`` is None for a stateless function."""

    moment: Moment
    actor: ActorPlan | None
    handler: str
    cells: InstanceCache

    def rows(self) -> KeyRows:
        """The key's present rows, including uncommitted changes."""
        return {} if self.actor is None else key_now(self.cells, self.actor, self.moment.key)


class Observer:
    """Receives the calls of a watched task. What is not overridden does nothing, and calls the handler."""

    def meets(self, key: Any, number: int, /) -> None:
        """A record of this key has come, of the input with this number, whether a handler takes it or not."""

    def begins(self, call: Call, /) -> None:
        """A handler is about to be called; the handler has not touched the key yet."""

    def call(self, call: Call, handler: Callable[..., None], /, *arguments: Any) -> None:  # noqa: ARG002
        """Call the handler. Exceptions of the handler must be passed on."""
        handler(*arguments)

    def returned(self, call: Call, outputs: Sequence[RawOutput], /) -> None:
        """The handler has returned, and the objects that it touched are sealed."""

    def passed_over(self, moment: Moment, why: str, /) -> None:
        """No handler is called, or it is undone: a late record that is dropped, or a failure on the tape."""

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes, /) -> None:
        """A field or an entry has expired; ``what`` is its row's ``rest``."""


@dataclass(frozen=True, slots=True)
class Watch:
    """An observer, the keys whose handlers are called (default: all), and what decides about new failures."""

    observer: Observer | None = None
    keys: Collection[Any] | None = None
    new_failures: NewFailures | None = None
    on_time: Callable[[InstanceCache, ActorPlan, int], None] | None = None
    """Called with the event time of each event, timer and expiry, before an actor handles it, and with ``FOREVER`` at the end of a
    stage. Reference data is read ahead, and is no event here.
    """
    range: KeyRange | None = None
    """Handlers are called for its keys only. It goes with ``new_failures`` alone."""
    met: set[Any] = field(default_factory=set[Any], kw_only=True)
    """The keys of ``keys`` that had a record or a timer."""

    def units(self, *of_units: Any) -> Units:
        """The units of a watched task. With all keys and no observer, they are as fast as a service's."""
        if self.range is not None:
            ranged = RangeUnits(self.range, *of_units)
            ranged.new_failures = self.new_failures
            return ranged
        watched = self.observer is not None or self.keys is not None or self.on_time is not None
        units = _WatchedUnits(self, *of_units) if watched else Units(*of_units)
        units.new_failures = self.new_failures
        # Of an observed run nothing is kept but what its observer has seen.
        units.waiting_keys = None if self.observer is None else self.keys
        return units


def stored_now(cells: InstanceCache, actor: ActorPlan, key: Any) -> KeyRows:
    """The fields and entries that a key would have in its rows after a commit now; none if it has no state.

    It takes the time of this key alone. Which timers are in the rows means nothing.
    """
    table: Table = cells.tables[actor.index]
    instance = table.live.get(key, table.old.get(key))
    parts = None if instance is None else instance._tr_parts
    if (instance is None and key in table.dirty) or (instance is not None and table.is_absent(instance)):
        return {}
    prefix = table.prefix + rows.escaped(actor.key_codec.encode(key))
    found: dict[bytes, bytes | None] = {}
    if parts is None or not parts.fresh:
        found.update(cells.state.scan(prefix, rows.prefix_end(prefix)))
    for entries in () if parts is None else parts.collections():
        entries.collect(found)
    if instance is not None:
        encoded = table.encode(instance)
        found[prefix] = None if table.is_bare(instance, encoded) else rows.PLAIN + encoded
    if found.get(prefix) is None:
        return {}
    return {row[len(prefix) :]: one for row, one in found.items() if one is not None}


def key_now(cells: InstanceCache, actor: ActorPlan, key: Any) -> KeyRows:
    """As ``stored_now``, with a row for each pending timer."""
    found = rows.spread(stored_now(cells, actor, key))
    table: Table = cells.tables[actor.index]
    instance = table.live.get(key, table.old.get(key))
    if instance is None:
        return found
    parts = instance._tr_parts
    timers: dict[tuple[int, bytes], rows.Timer] = {} if parts is None else parts.timers
    return {rest: value for rest, value in found.items() if rest[:1] != b"t"} | {
        rows.timer_row(b"", *timer): rows.encode_timer(one) for timer, one in timers.items()
    }


def changed_now(cells: InstanceCache, actor: ActorPlan, key: Any) -> dict[bytes, bytes | None] | None:
    """Of ``key_now``, the value, all timers, and the entries that the present unit has changed, None for those that are gone.

    Returns None if other rows may have changed, too: the key has no state, or the unit has cleared a key.
    """
    table: Table = cells.tables[actor.index]
    instance = table.live.get(key, table.old.get(key))
    if instance is None or table.is_absent(instance) or cells.cleared:
        return None
    parts, encoded = instance._tr_parts, table.encode(instance)
    if table.is_bare(instance, encoded):
        return None
    found: dict[bytes, bytes | None] = {b"": rows.PLAIN + encoded}
    if parts is not None:
        start = len(parts.prefix)
        for entries in parts.collections():
            prefix, pending = entries._prefix[start:], entries._pending
            found |= {prefix + name: pending.get(name) for one, name, _ in cells.undo if one is pending}
        found |= {rows.timer_row(b"", *one): rows.encode_timer(timer) for one, timer in parts.timers.items()}
    return found


class _WatchedUnits(Units):
    """Units that report to an observer."""

    direct = False

    def __init__(self, watch: Watch, *of_units: Any) -> None:
        super().__init__(*of_units)
        self._watch = watch
        self._input, self._at, self._event = TIMER, 0, None
        self._record: InputRecord | None = None
        self._timer: tuple[str | None, int] = (None, rows.EVENT_TIME)

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
        """See ``Units.record``. If the key is left out, so are all outputs, even those for late events."""
        keys = self._watch.keys
        if keys is not None and key not in keys:
            del self.unit.outputs[mark:]
            return
        if keys is not None:
            self._watch.met.add(key)
        if self._watch.observer is not None:
            self._watch.observer.meets(key, number)
        self._input, self._at, self._event, self._timer = number, offset, event, (None, rows.EVENT_TIME)
        self._record = record
        if not to and self._watch.observer is not None:
            self._watch.observer.passed_over(self._moment(), "late, and so it goes to no handler")
        elif event is DELETED and not takers_of(event, to) and self._watch.observer is not None:
            self._watch.observer.passed_over(self._moment(), "a deletion, which no handler takes")
        super().record(number, offset, record, to, key, event, mark)

    def invoke(self, route: Route, table: Table | None, key: Any, event: Any) -> None:
        is_ahead = self._input != TIMER and self.plan.inputs[self._input].is_reference
        if self._watch.on_time is not None and table is not None and not is_ahead:
            self._watch.on_time(self.cells, table.plan, self.context.event_time)
        if self._watch.observer is None:
            super().invoke(route, table, key, event)
            return
        before = self._event
        self._event = event  # may be an event of a stream
        if self.apart:
            self.stand(route.operator)
        self._shown(route, table, lambda shown: super(_WatchedUnits, self).invoke(shown, table, key, event))
        self._event = before

    def invoke_timer(self, route: Route, table: Table, instance: Any, timer: tuple[int, bytes]) -> None:
        self._at_timer(timer[0])
        if self._watch.on_time is not None and timer[0] == rows.EVENT_TIME:
            self._watch.on_time(self.cells, table.plan, self.context.event_time)
        if self._watch.keys is not None:
            self._watch.met.add(self.context.key)
        if self._watch.observer is None:
            super().invoke_timer(route, table, instance, timer)
            return
        self._shown(
            route, table, lambda shown: super(_WatchedUnits, self).invoke_timer(shown, table, instance, timer)
        )

    def expire(self, table: Table, instance: Any, domain: int, time_ms: int, name: bytes) -> bool:
        if self._watch.on_time is not None and domain == rows.EVENT_TIME:
            self._watch.on_time(self.cells, table.plan, time_ms)
        expired = super().expire(table, instance, domain, time_ms, name)
        if expired and self._watch.observer is not None:
            self._input, self._at, self._event, self._timer = TIMER, time_ms, None, (None, domain)
            self._record = None
            what = name[len(rows.EXPIRY) :]
            self._watch.observer.expired(self._moment(), table.plan, what)
        return expired

    # --- failures

    def skip(self, number: int, at: int, record: InputRecord | None, headers: Headers | None = None) -> None:
        headers = self.skips[number, at, self.operator] if headers is None else headers
        if number == TIMER and self.unit.fired is not None:
            self._at_timer(self.unit.fired[0])
        if self._watch.observer is not None:
            error = dict(headers).get("tailrace-error", b"").decode(errors="replace")
            self._watch.observer.passed_over(self._moment(), f"it failed, as it did then: {error}")
        super().skip(number, at, record, headers)

    def _at_timer(self, domain: int) -> None:
        fired = self.unit.fired
        self._input, self._event, self._timer = TIMER, None, (self.context.timer_name, domain)
        self._record = None
        self._at = 0 if fired is None else fired[1]

    def _moment(self) -> Moment:
        context = self.context
        return Moment(
            context.key,
            self._input,
            self._at,
            self._event,
            *self._timer,
            context.event_time,
            context.watermark,
            context.now,
            context.is_late,
            self._record,
        )

    def _shown(self, route: Route, table: Table | None, run: Callable[[Route], None]) -> None:
        """Run a route so that the observer calls its handler."""
        observer = self._watch.observer
        assert observer is not None
        call = Call(self._moment(), None if table is None else table.plan, route.name, self.cells)
        mark = len(self.unit.outputs)
        observer.begins(call)
        run(replace(route, call=partial(observer.call, call, route.call)))
        observer.returned(call, self.unit.outputs[mark:])
