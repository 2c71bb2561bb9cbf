"""The context of a handler: time, output, timers, randomness.

One context serves all handlers of a task. It is valid only while a handler runs. All of its values are functions of the
causes on the tape, so a replay gets the same values. Randomness is a function of the id of the call's cause (see
``tailrace.core.unit_ids``), the operator, the key and the number of the draw. So it is the same in a rebuild of some keys, with other
actors, and in any order of arrival of what the app sends to itself.
"""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Any, Generic, overload
from uuid import UUID

from typing_extensions import TypeVar

from tailrace.core import rows
from tailrace.core.declare.context_timers import ContextTimers
from tailrace.core.declare.current_unit import CurrentUnit
from tailrace.core.declare.event_time import refuse_seconds
from tailrace.core.declare.plan import ActorBase, Plan
from tailrace.core.declare.topic import Edge, Stream, Table, Topic, refuse_unless_table
from tailrace.core.declare.user_metrics import Metrics
from tailrace.core.durations import to_ms
from tailrace.core.errors import EmittedTypeError, UnfitValueError, UsageError
from tailrace.core.handling.promises import Behind, Cause, Instance, Promises
from tailrace.core.records import OWN_KEY, Headers, too_large
from tailrace.core.unit_ids import drawn
from tailrace.core.values.event_values import change_of
from tailrace.core.values.types import CODEC_ERRORS

K = TypeVar("K", default=Any)
E = TypeVar("E")
T = TypeVar("T")


class Context(ContextTimers, Generic[K]):
    """Gives a handler its key, the time, output, timers and randomness. Instants are epoch milliseconds, UTC.

    ``tr.Context[str]`` declares keys of type str. This is checked against the topics when the app is defined,
    and by type checkers for a topic whose key type they know. In a bare ``tr.Context`` the key is ``Any``: a
    checker does not infer the type of a parameter from the decorator of its function.
    """

    __slots__ = (
        "_allowed",
        "_lineage",
        "_marks",
        "_outputs",
        "_plan",
        "_promises",
        "_receivers",
        "_timer_cap",
        "_unit",
        "event_time",
        "is_late",
        "key",
        "metrics",
        "now",
        "timer_due",
        "timer_name",
        "watermark",
    )

    key: K
    """The key of the event, message or timer. In an actor, it is the key of the instance."""
    event_time: int
    """The event time in milliseconds: of the event, a message's sender, or, in a timer handler, the timer.

    In the handler of a processing-time timer it is the watermark + 1 ms, and 0 before the first watermark.
    """
    watermark: int
    """This actor's watermark in this task, in ms: no further event at or before it is expected.

    It follows only the inputs that this actor takes, and never goes back. Before the first event, and while
    the first event is handled, it is ``tr.NO_WATERMARK``, which is below every instant: no timer can be set
    relative to it.
    """
    now: int
    """Processing time in milliseconds: the last clock reading. It is recorded, so a replay gets the same.

    It never goes back. It is 0 before the first reading, and where the clock is before 1970.
    """
    is_late: bool
    """Whether the event is late: at or before ``watermark`` when it was taken. False in timer handlers."""
    timer_name: str | None
    """In a timer handler, the full name of the timer (``"overdue:JFK"``); None for an unnamed timer."""
    timer_due: int | None
    """In a timer handler, the time that the timer was set to, also of a processing-time timer; None elsewhere."""
    metrics: Metrics
    """The user's own metrics. A replay does not count them again."""

    def __init__(
        self,
        plan: Plan,
        lineage: bytes,
        timer_cap: int,
        promises: Promises | None = None,
        unit: CurrentUnit | None = None,
    ) -> None:
        self._unit = unit or CurrentUnit()
        self._outputs = self._unit.outputs
        self._unit.inside = plan.inside
        self._unit.operators = [one.name.encode() for one in plan.operators]
        self._plan = plan
        self._lineage = lineage
        self._timer_cap = timer_cap
        self._promises = promises or Promises()
        self._marks, self._promises.context = self._promises.marks, self
        self._allowed = tuple(one.emits for one in plan.operators)
        self._receivers = tuple(one.sends for one in plan.operators)
        self.metrics = Metrics()
        self.event_time = self.watermark = self.now = 0
        self.is_late = False
        self.timer_name = self.timer_due = None

    # --- event time ---

    @property
    def fired_to(self) -> int:
        """The instant up to which the event-time timers of this actor have fired, in ms.

        It is ``watermark``, except within a step in which many timers fire: a handler of a stream that is called
        while the timer of another actor fires sees the watermark that all have reached, but its own timers have fired only
        up to just before that timer, or, if it was set in the past, up to where they had fired then. What has been decided at an instant at or before ``fired_to`` is decided.
        """
        fired, decided_ms = self._unit.fired, self._unit.decided_ms
        if fired is None or fired[0] != rows.EVENT_TIME or fired[1] > self.watermark:
            return self.watermark
        return fired[1] - 1 if decided_ms is None else min(decided_ms, self.watermark)

    def count_late(self) -> None:
        """Count this event as dropped: it is late, and this handler leaves it out.

        A service logs the number, and reports it as the metric ``tailrace_dropped_events_total``.
        """
        self._unit.count_dropped()

    # --- output ---

    @overload
    def emit(self, to: Topic[E, Any], event: E, *, at: int | datetime | None = None) -> None: ...
    @overload
    def emit(self, to: Stream[E, Any], event: E, *, at: int | datetime | None = None) -> None: ...
    def emit(
        self,
        to: Topic[E, Any] | Stream[E, Any],
        event: E,
        surplus: object = None,
        at: int | datetime | None = None,
    ) -> None:
        """Write an event to a topic, or pass it to the handlers of a stream.

        Readers see the event after the next commit, together with the state. If this handler fails, the event
        is dropped. Its record has the timestamp ``at`` (default: ``ctx.event_time``), which is the event time
        in a topic with ``event_time=tr.RECORD_TIME``. The event is encoded at once, so it may be changed
        afterwards. A live service checks the type of the event, not the values of its fields; tests check
        these, too (EmittedTypeError).

        The handlers of a stream are called in the same step, with ``at`` as their event time. If it is behind
        their watermark, the event is late for them: they are called, and ``ctx.is_late`` is true.

        Raises:
            UsageError: The event is not of the topic's type, ``at`` is outside of the topic's ``time_range``,
                or the topic is not among the targets of the handler (declare it with ``emits=``).
            EventValueError: The event cannot be written as it is, such as nan in a JSON topic.
            RecordTooLargeError: Its record is over the limit (``tailrace run --max-record-bytes``).
        """
        # ``at`` is keyword-only by the overloads. A star in the signature would cost a lookup per call.
        if surplus is not None:
            raise UsageError(
                f"{self._place()} calls emit with a third positional argument, {surplus!r}",
                hint="Give a time by keyword: at=. There are no other arguments.",
            )
        edge: Any = to  # one test of the kind of edge, without isinstance, for speed
        try:
            types = edge.types
        except AttributeError:
            raise self._wrong_event(edge, event) from None
        if type(event) not in types:
            raise self._wrong_event(edge, event)
        unit = self._unit
        route = unit.route
        if route is None or edge not in self._allowed[route.operator]:
            raise self._not_found(edge)
        headers: Headers = ()
        if edge.is_inside:
            if edge.is_stream:
                stamp_ms = self.event_time if at is None else self._timestamp(edge, at)
                cause = unit.cause, unit.operators[route.operator], unit.sends
                unit.chained.append((edge, event, stamp_ms, cause))
                unit.sends, unit.used = unit.sends + 1, True
                if stamp_ms < self.event_time and stamp_ms <= self.watermark and not self.is_late:
                    self._behind(edge, stamp_ms, self.watermark)
                return
            headers = unit.sent()
        # Local names, here and elsewhere: looking up a method costs more.
        text_of, encode = edge.text_of, edge.encode_emitted
        stamp_ms = self.event_time if at is None else self._timestamp(edge, at)
        if text_of is None or type(text := text_of(event)) is not str:
            key = edge.encode_key(event)
        else:
            key = text.encode()
            if text is self.key and unit.table is not None and not headers:
                headers = OWN_KEY
        try:
            value = encode(event)
        except CODEC_ERRORS as error:
            raise edge.codec.unwritable(event, error) from error
        if len(value) + len(key or b"") > unit.most_bytes:
            raise too_large(edge.name, key, value, unit.most_bytes)
        self._outputs.append((edge.name, key, value, stamp_ms, headers))
        if self._marks and (mark_ms := self._marks.get(edge.name)) is not None:
            # Inline, since it runs for every event. An event without a time of its own has that of its
            # record.
            time_ms = stamp_ms if edge.time_of is None else edge.time_of(event)
            if time_ms is not None and time_ms <= mark_ms:
                self._behind(edge, time_ms, mark_ms)

    def delete(self, table: Table[Any, T], key: T, *, at: int | datetime | None = None) -> None:
        """Delete a key of a table: write a record of it without a value, for ``@tr.on_delete``. Otherwise like ``emit``.

        Raises:
            UsageError: It is not a table, or as for ``emit``.
            BadRecordError: The key is not of the table's type.
        """
        route = self._unit.route
        refuse_unless_table(table, f"{self._place()} deletes a key of")
        if route is None or table not in self._allowed[route.operator]:
            raise self._not_found(table)
        stamp_ms = self.event_time if at is None else self._timestamp(table, at)
        self._unit.write(table.name, table.key_codec.encode(key), None, stamp_ms)
        if (mark_ms := self._marks.get(table.name)) is not None and stamp_ms <= mark_ms:
            self._behind(table, stamp_ms, mark_ms)

    def _wrong_event(self, to: Any, event: Any) -> UsageError:
        if not isinstance(to, Edge):
            return UsageError(
                f"{self._place()} emits to {to!r}, which is not a topic or a stream",
                hint="Give the topic itself, as app.topic returned it.",
            )
        return UsageError(
            f"{self._place()} emits {type(event).__name__} to {to.name!r}, which holds {to.type_name}",
            hint="Emit an event of the declared type, or declare a topic for this one.",
        )

    def _behind(self, to: Any, time_ms: int, mark_ms: int) -> None:
        """Count an event that is emitted behind a watermark, and note where its time comes from."""
        unit = self._unit
        cause: Cause
        if time_ms != self.event_time:
            cause = "at" if to.is_stream or to.time_of is None else "event"
        else:
            cause = "timer" if unit.fired is not None else "late" if self.is_late else "record"
        number = unit.input if unit.fired is None else -1
        name = "" if number < 0 else self._plan.inputs[number].name
        self._promises.broken(Behind(to.name, self._place()), Instance(time_ms, mark_ms, cause, name))

    def _timestamp(self, to: Edge[Any, Any], at: int | datetime) -> int:
        """Check the event time that a handler gives to an event, and return it in milliseconds."""
        at_ms = to_ms(at)
        table = self._unit.table
        if type(at) is int and (table is None or not table.is_operator):
            refuse_seconds(at_ms, self.event_time, f"{self._place()} emits to {to.name!r}")
        if not isinstance(to, Topic):
            route = self._unit.route
            if (
                at_ms != self.event_time
                and route is not None
                and self._plan.operators[route.operator].ordered
            ):
                raise UsageError(
                    f"{self._place()} emits to the stream {to.name!r} at another time than its own, and its "
                    "handlers handle events in event-time order",
                    hint="A stream's event is handled in the step that emits it, so it has the time of that "
                    'step. Leave at= out, emit to a topic, or declare order="arrival".',
                )
            return at_ms
        settings = to.settings
        if not settings.time_min_ms <= at_ms <= settings.time_max_ms:
            raise UnfitValueError(
                f"{self._place()} emits to {to.name!r} at {at_ms} ms, which is outside of "
                f"{settings.time_min_ms} to {settings.time_max_ms} ms",
                hint="Give milliseconds since 1970 or an aware datetime, or declare the topic with another "
                "time_range.",
            )
        return at_ms

    def send(self, actor: type[ActorBase], key: Any, message: Any) -> None:
        """Send a message to an instance of an actor of this app: another actor, or the same.

        ``key`` selects the instance. Its ``@tr.on_message`` method for this type of message is called exactly
        once, after the commit that sends it, possibly in another process, at the event time of this handler.

        Raises:
            UsageError: The actor does not take such a message, the key is not of its type, or the receiver is
                not among the targets of the handler's actor or function (declare it with ``emits=``).
        """
        plan = self._plan.actor_of(actor)
        name = plan.message_names.get(message.__class__)
        if name is None:
            raise UsageError(
                f"{self._place()} sends {type(message).__name__} to {plan.name}, which does not take such "
                "messages",
                hint=f"Give {actor.__name__} a method with @tr.on_message whose message is of that type.",
            )
        unit = self._unit
        route = unit.route
        if route is None or plan.cls not in self._receivers[route.operator]:
            raise self._not_found(plan.cls)
        value = rows.encode_envelope((plan.name, name, plan.messages[name].encode(message)))
        unit.write(self._plan.inbox_topic, plan.key_codec.encode(key), value, self.event_time)

    def clear(self) -> None:
        """Delete this instance: its fields, collections and timers.

        Plain fields have their defaults afterwards. Values that the handler sets after this call are stored
        in a new instance.
        """
        self._own("clear").clear(self._unit.instance)

    # --- randomness ---

    @property
    def random(self) -> Random:
        """A ``random.Random`` with the same numbers in every replay. Each handler call has its own."""
        unit = self._unit
        if unit.random is None:
            unit.random = Random(int.from_bytes(self._digest(), "big"))
        return unit.random

    def uuid(self) -> UUID:
        """A new UUID (in the form of version 4) for each call, the same in every replay."""
        return UUID(bytes=self._digest(), version=4)

    def _digest(self) -> bytes:
        unit = self._unit
        table, route = unit.table, unit.route
        assert route is not None
        unit.draws, unit.used = unit.draws + 1, True
        key = repr(self.key).encode() if table is None else table.plan.key_codec.encode(self.key)
        return drawn(self._lineage, unit.call_id(), unit.operators[route.operator], unit.draws, key)

    # --- misuse ---

    def _not_found(self, to: Any) -> UsageError:
        """The error for a handler that emits or sends to a target that is not allowed."""
        route = self._unit.route
        if route is None:
            return UsageError(
                "an event or message was emitted by a context whose handler has returned",
                hint="Emit and send while the handler runs; do not keep its context.",
            )
        operator = self._plan.operators[route.operator]
        does, what = ("sends", to.__name__) if isinstance(to, type) else ("emits", f"{to.name!r}")
        where = "@app.process" if operator.actor is None else "@app.actor"
        found = [repr(one.name) for one in operator.emits] + [one.__name__ for one in operator.sends]
        if not isinstance(to, type) and to not in self._plan.topics.values() and to not in self._plan.streams:
            return UsageError(
                f"{route.name} emits to {what}, which was declared in another app",
                hint=f"Declare it in the app {self._plan.app!r} as well, and emit to that.",
            )
        return UsageError(
            f"{route.name} {does} to {what}, which was not found in its code: watermarks that depend on it "
            "would be wrong",
            hint=f"List all targets of {operator.name} where it is declared, {where}(emits=[...]): {what}"
            f"{''.join(f', {one}' for one in sorted(found))}.",
        )

    def _own(self, action: str) -> Any:
        table = self._unit.table
        if table is None:
            raise UsageError(
                f"{self._place()} cannot {action}",
                hint="Only the handlers of an actor have state and timers, and only while they run.",
            )
        return table

    def _place(self) -> str:
        route = self._unit.route
        return "a handler that has returned" if route is None else route.name


class CheckedContext(Context[K]):
    """Refuses events and messages whose readers would get a different value.

    msgspec does not check the values of a struct.
    """

    __slots__ = ()

    def emit(self, to: Any, event: Any, *surplus: Any, **at: Any) -> None:
        """Like ``Context.emit``; raises EmittedTypeError if readers would get a different value."""
        super().emit(to, event, *surplus, **at)
        if not to.is_stream:
            to.codec.check(event)

    def send(self, actor: type[ActorBase], key: Any, message: Any) -> None:
        """Like ``Context.send``; raises EmittedTypeError if the receiver would get a different value."""
        super().send(actor, key, message)
        plan = self._plan.actor_of(actor)
        codec = plan.messages[plan.message_names[message.__class__]]
        change = change_of(message, codec.encode, codec.decode, json=False)
        if change is not None:
            raise EmittedTypeError(
                f"a message of type {type(message).__name__} to {plan.name} cannot be sent as it is: "
                f"{change}",
                field=change.path or None,
                hint="Convert it before it is sent, or declare the field with the type that it holds.",
            )
