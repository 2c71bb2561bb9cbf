"""What a handler is given besides its event: time, output, timers, randomness.

One context serves all handlers of a task; it is valid only while the handler runs. Everything it tells is a function
of the causes on the tape, so a replay is told the same. Randomness is seeded by what caused the call (an input
position, or the seed that a timer was given when it was set), the actor, the key and the number of the draw: the same
draw in a rebuild of some keys, in another split of the work, or in a shadow beside other actors.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from random import Random
from typing import Any, Generic, NamedTuple, overload
from uuid import UUID

from typing_extensions import TypeVar

from tailrace.core import rows
from tailrace.core.declare.current_unit import CurrentUnit, Instances
from tailrace.core.declare.plan import ActorBase, Plan
from tailrace.core.declare.topic import Stream, Topic
from tailrace.core.durations import (
    BESIDE_NO_WATERMARK_MS,
    INSTANT_LIMIT_MS,
    NO_WATERMARK,
    SECONDS_FIRST_MS,
    SECONDS_LAST_MS,
    to_datetime,
    to_ms,
)
from tailrace.core.errors import TimerLoopError, UsageError
from tailrace.core.handling.entries import MISSING
from tailrace.core.handling.promises import Promises
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.types import CODEC_ERRORS

K = TypeVar("K", default=Any)
E = TypeVar("E")

_MASK = (1 << 64) - 1
_OF_TODAY_MS = 1_000 * SECONDS_FIRST_MS
"""A handler that stands here or later, in 2001, has nothing to do in the first weeks of 1970."""
_EARLIEST_TIMER_MS = NO_WATERMARK - BESIDE_NO_WATERMARK_MS


class Measurement(NamedTuple):
    """A change of a user's metric: ``kind`` is "count", "gauge" or "observe"."""

    kind: str
    name: str
    value: float


class Metrics:
    """A user's own metrics: ``ctx.metrics``.

    They are reported with the commit of what they measure, so nothing is counted twice after a crash, and a replay does not
    report them.
    """

    __slots__ = ("_noted", "_undo")

    def __init__(self) -> None:
        self._noted: dict[int, Measurement] = {}
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def _bind(self, undo: list[tuple[dict[Any, Any], Any, Any]]) -> None:
        """Have what a unit measures taken back with the unit."""
        self._undo = undo

    def _take(self) -> list[Measurement]:
        """All that was measured since ``_clear``."""
        return list(self._noted.values())

    def _clear(self) -> None:
        """What was measured is on its way."""
        self._noted.clear()

    def _note(self, measurement: Measurement) -> None:
        number = len(self._noted)
        self._undo.append((self._noted, number, MISSING))
        self._noted[number] = measurement

    def count(self, name: str, n: float = 1) -> None:
        """Add ``n`` to the counter ``name``."""
        self._note(Measurement("count", name, n))

    def gauge(self, name: str, value: float) -> None:
        """Set the gauge ``name`` to a value."""
        self._note(Measurement("gauge", name, value))

    def observe(self, name: str, value: float) -> None:
        """Add a value to the histogram ``name``."""
        self._note(Measurement("observe", name, value))


class Context(Generic[K]):
    """What a handler knows and can do. All instants are milliseconds since the epoch, UTC.

    ``tr.Context[str]`` says that keys are of type str; that is checked against the topics when the app is defined, and by
    type checkers for a topic whose key type they know. In a bare ``tr.Context`` the key is ``Any``: a checker does not take the
    type of a parameter from the decorator around its function.
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
        "_timer_ids",
        "_unit",
        "event_time",
        "is_late",
        "key",
        "metrics",
        "now",
        "timer_name",
        "watermark",
    )

    key: K
    """The key of the event, message or timer. In an actor, it is the key of the instance."""
    event_time: int
    """The event time in milliseconds: the event's, for a message that of its sender, in a timer handler the timer's.

    In the handler of a processing-time timer it is the watermark + 1 ms. While there is no watermark it is 0, or the beginning
    of the ``time_range`` of the actor's inputs if that is before 1970. The same holds for a timer that was set relative to
    ``tr.NO_WATERMARK``, which is not an instant.
    """
    watermark: int
    """The watermark of this actor in this task, in milliseconds: no event at or before it is expected any more.

    It follows the inputs that this actor takes, and no others. Before the first event it is ``tr.NO_WATERMARK``, which is below
    every instant; the first event itself is still handled under it. A timer set to ``ctx.watermark`` + a duration is accepted
    then, too, and fires with the first watermark. It never goes back.
    """
    now: int
    """Processing time in milliseconds: the last reading of the clock, which is recorded, so that a replay sees the same.

    It never goes back. It is 0 before the first reading, and for a clock before 1970.
    """
    is_late: bool
    """Whether the event is late: its time was at or before ``watermark`` when it was taken. False in timer handlers."""
    timer_name: str | None
    """In a timer handler the full name that the timer was set under (``"overdue:JFK"``); None for an unnamed timer."""
    metrics: Metrics
    """The user's own metrics, which a replay does not count again."""

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
        self._plan = plan
        self._lineage = lineage
        self._timer_cap = timer_cap
        self._promises = promises or Promises()
        self._marks = self._promises.marks
        self._allowed = tuple(one.emits for one in plan.operators)
        self._receivers = tuple(one.sends for one in plan.operators)
        self.metrics = Metrics()
        self._timer_ids: dict[tuple[int, int, str], tuple[int, bytes]] = {}
        self.event_time = self.watermark = self.now = 0
        self.is_late = False
        self.timer_name = None

    # --- output ---

    @overload
    def emit(self, to: Topic[E, Any], event: E, *, at: int | datetime | None = None) -> None: ...
    @overload
    def emit(self, to: Stream[E], event: E) -> None: ...
    def emit(
        self,
        to: Topic[E, Any] | Stream[E],
        event: E,
        surplus: object = None,
        at: int | datetime | None = None,
    ) -> None:
        """Write an event to a topic, or hand it to the handlers of a stream.

        The event becomes visible to readers with the next commit, together with the state, and not at all if this handler fails.
        The topic's declaration gives its key. Its record has the timestamp ``at`` (default: ``ctx.event_time``), which is the
        event time in a topic with ``event_time=tr.RECORD_TIME``. The event is encoded at once, so it may be changed afterwards.

        Raises:
            UsageError: The event is of another type than the topic's; ``at`` is outside of the topic's ``time_range``, or was
                given with a stream, whose handlers run in the same step; or the code does not show that this handler emits to
                the topic (declare it with ``emits=``).
            EventValueError: The event cannot be written as it is, such as nan in a JSON topic.
        """
        # ``at`` is by keyword only, as the overloads say. A star in this line would cost Python a search per call.
        if surplus is not None:
            raise UsageError(
                f"{self._place()} emits with the third argument {surplus!r}",
                hint="Give a time by its name, at=, and nothing else.",
            )
        edge: Any = to  # which of the two it is, is asked once, and not of its class
        try:
            types = edge.types
        except AttributeError:
            raise UsageError(
                f"{self._place()} emits to {to!r}, which is no topic and no stream",
                hint="Give the topic itself, as app.topic returned it.",
            ) from None
        if type(event) not in types:
            raise UsageError(
                f"{self._place()} emits {type(event).__name__} to {to.name!r}, which holds {to.type_name}",
                hint="Emit an event of the declared type, or declare a topic for this one.",
            )
        route = self._unit.route
        if route is None or edge not in self._allowed[route.operator]:
            raise self._not_found(edge)
        if edge.is_stream:
            if at is not None:
                raise UsageError(
                    f"{self._place()} emits to the stream {to.name!r} with a time of its own",
                    hint="Leave at= out: those who take a stream run in the same step, at the same time.",
                )
            self._unit.chained.append((edge, event))
        else:
            # By local names, here and elsewhere: called as methods they would cost Python a search for one.
            encode_key, encode = edge.encode_key, edge.encode_emitted
            stamp_ms = self.event_time if at is None else self._timestamp(edge, at)
            key = encode_key(event)
            try:
                value = encode(event)
            except CODEC_ERRORS as error:
                raise edge.codec.unwritable(event, error) from error
            self._outputs.append((edge.name, key, value, stamp_ms, ()))
            if self._marks and (mark_ms := self._marks.get(edge.name)) is not None:
                # In place, as it is done for every event: one without a time of its own has that of its record.
                time_ms = stamp_ms if edge.time_of is None else edge.time_of(event)
                if time_ms is not None and time_ms <= mark_ms:
                    self._promises.broken(edge.name, self._place())

    def _timestamp(self, to: Topic[Any, Any], at: int | datetime) -> int:
        """The timestamp that a handler gives to a record."""
        at_ms, settings = to_ms(at), to.settings
        if type(at) is int:
            self._refuse_seconds(at_ms, self.event_time, f"emits to {to.name!r}")
        if not settings.time_min_ms <= at_ms <= settings.time_max_ms:
            raise UsageError(
                f"{self._place()} emits to {to.name!r} at {at_ms} ms, which is outside of {settings.time_min_ms} to "
                f"{settings.time_max_ms} ms",
                hint="Give milliseconds since 1970 or an aware datetime, or declare the topic with another time_range.",
            )
        return at_ms

    def _pass_on(self, to: Topic[E, Any], event: E) -> None:
        self._unit.pass_on(to, event, self.event_time)

    def send(self, actor: type[ActorBase], key: Any, message: Any) -> None:
        """Send a message to an instance of an actor of this app: another actor, or the same.

        ``key`` selects the instance. Its ``@tr.on_message`` method for this type of message is called exactly once, after the
        commit that sends it, possibly in another process, with this handler's event time as its own.

        Raises:
            UsageError: The actor does not take such a message, the key is not of its type, or the code does not show that
                this handler sends to the actor (declare it with ``emits=``).
        """
        plan = self._plan.actor_of(actor)
        name = plan.message_names.get(message.__class__)
        if name is None or self._plan.inbox_topic is None:
            raise UsageError(
                f"{self._place()} sends {type(message).__name__} to {plan.name}, which does not take it",
                hint=f"Give {actor.__name__} a method with @tr.on_message whose message is of that type.",
            )
        unit = self._unit
        route = unit.route
        if route is None or plan.cls not in self._receivers[route.operator]:
            raise self._not_found(plan.cls)
        value = rows.encode_envelope((plan.name, name, plan.messages[name].encode(message)))
        unit.outputs.append((self._plan.inbox_topic, plan.key_codec.encode(key), value, self.event_time, ()))

    # --- timers ---

    def set_timer(self, time: int | datetime, name: str | None = None) -> None:
        """Have the actor's ``@tr.on_timer`` handler called once the watermark has reached ``time``.

        ``time`` is milliseconds since 1970, or an aware datetime. With a name, a pending timer of the same name is moved;
        ``"overdue:JFK"`` is handled by ``@tr.on_timer("overdue")``. Without one, there is at most one timer per instant. A time
        that has passed already is due at once, after this step's handlers. Timers are durable, and each fires at most once.

        Raises:
            UsageError: The actor has no handler for this timer, the time is not an instant or looks like seconds, or this
                handler is a function, which has no timers.
            TimerLoopError: Timer handlers of one key keep setting timers that are due at once.
        """
        self._set(rows.EVENT_TIME, time, name)

    def set_processing_timer(self, time: int | datetime, name: str | None = None) -> None:
        """Have the ``@tr.on_processing_timer`` handler called once the clock has reached ``time``.

        Otherwise like ``set_timer``. After downtime, such a timer may fire before earlier events have been read.
        """
        self._set(rows.PROCESSING_TIME, time, name)

    def cancel_timer(self, timer: str | int | datetime) -> None:
        """Cancel an event-time timer by its name, or an unnamed one by its time. Nothing happens if there is none."""
        self._cancel(rows.EVENT_TIME, timer)

    def cancel_processing_timer(self, timer: str | int | datetime) -> None:
        """Cancel a processing-time timer by its name, or an unnamed one by its time. Nothing happens if there is none."""
        self._cancel(rows.PROCESSING_TIME, timer)

    def clear(self) -> None:
        """Delete this instance: its fields, collections and timers.

        Plain fields are at their defaults afterwards. What the handler sets after this call is stored as a new instance.
        """
        self._own("clear").clear(self._unit.instance)

    def _set(self, domain: int, time: int | datetime, name: str | None) -> None:
        unit = self._unit
        table = unit.table or self._own("set a timer")
        # What nearly every timer is set to needs no call to be looked at.
        if type(time) is int and SECONDS_LAST_MS < time < INSTANT_LIMIT_MS:
            time_ms = time
        else:
            time_ms = self._due_ms(time, domain)
        depth = 0
        if unit.fired is not None:
            fired_domain, fired_ms = unit.fired
            reached = self.watermark if domain == rows.EVENT_TIME else self.now
            if time_ms <= (fired_ms if domain == fired_domain else reached):
                depth = unit.depth + 1
                if depth > self._timer_cap:
                    raise TimerLoopError(
                        f"{self._place()} has set a timer at or before the one just fired {depth} times in a row",
                        actor=table.plan.name,
                        key=self.key,
                        hint="A timer handler that sets its own timer must set it later than the time it fired at.",
                    )
        table.move_timer(
            unit.instance._tr_parts or table.parts(unit.instance),
            self._timer_id(domain, time_ms if name is None else name, setting=True),
            rows.Timer(time_ms, self._draw(), depth),
        )

    def _cancel(self, domain: int, timer: str | int | datetime) -> None:
        table = self._own("cancel a timer")
        name = timer if isinstance(timer, str) else self._due_ms(timer, domain)
        table.move_timer(table.parts(self._unit.instance), self._timer_id(domain, name), None)

    def _due_ms(self, time: int | datetime, domain: int) -> int:
        """When a timer is due: at an instant, or at a time reckoned from ``NO_WATERMARK``."""
        if type(time) is int and _EARLIEST_TIMER_MS < time < INSTANT_LIMIT_MS:
            self._refuse_seconds(
                time, self.event_time if domain == rows.EVENT_TIME else self.now, "names a timer"
            )
            return time
        try:
            return to_ms(time)
        except UsageError as error:
            raise UsageError(
                f"{self._place()} names a timer by a wrong time: {error.what}", hint=error.hint
            ) from None

    def _refuse_seconds(self, time_ms: int, here_ms: int, does: str) -> None:
        """Refuse a time that can only be seconds: it lies in 1970, and the handler in this century."""
        if here_ms >= _OF_TODAY_MS and SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS:
            meant = to_datetime(time_ms * 1_000).isoformat()
            raise UsageError(
                f"{self._place()} {does} at {time_ms} ms ({to_datetime(time_ms).isoformat()}), which looks like seconds "
                f"since 1970 ({meant}): the handler stands at {to_datetime(here_ms).isoformat()}",
                hint="Times are milliseconds: multiply by 1000, or give an aware datetime.",
            )

    def _timer_id(self, domain: int, timer: str | int, *, setting: bool = False) -> tuple[int, bytes]:
        if isinstance(timer, int):
            if setting:
                self._handled(domain, "")
            return domain, b"u" + rows.time_bytes(timer)
        table = self._unit.table
        assert table is not None
        known = self._timer_ids.get((table.plan.index, domain, timer))
        if known is None:
            self._handled(domain, timer)
            if len(self._timer_ids) > 10_000:
                self._timer_ids.clear()
            known = self._timer_ids[table.plan.index, domain, timer] = (domain, b"n" + timer.encode())
        return known

    def _handled(self, domain: int, name: str) -> None:
        table = self._unit.table
        assert table is not None
        plan = table.plan
        handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
        family = name.partition(":")[0]
        if family not in handlers:
            decorator = "on_timer" if domain == rows.EVENT_TIME else "on_processing_timer"
            said = f'@tr.{decorator}("{family}")' if family else f"@tr.{decorator}"
            what = f"the timer {name!r}" if name else "an unnamed timer"
            raise UsageError(
                f"{self._place()} uses {what}, which {plan.cls.__name__} does not handle",
                hint=did_you_mean(
                    family, filter(None, handlers), f"Give {plan.cls.__name__} a method with {said}."
                ),
            )

    # --- randomness ---

    @property
    def random(self) -> Random:
        """A random generator (``random.Random``) that gives the same numbers in every replay; a new one for each handler call."""
        unit = self._unit
        if unit.random is None:
            unit.random = Random(int.from_bytes(self._digest(), "big"))
        return unit.random

    def uuid(self) -> UUID:
        """A new UUID (version 4 in form) for each call, the same ones in every replay."""
        return UUID(bytes=self._digest(), version=4)

    def _digest(self) -> bytes:
        table, route = self._unit.table, self._unit.route
        assert route is not None
        if table is None:
            owner, key = route.name.encode(), repr(self.key).encode()
        else:
            owner, key = table.plan.name.encode(), table.plan.key_codec.encode(self.key)
        drawn = self._draw().to_bytes(8, "big")
        return blake2b(b"\0".join((self._lineage, owner, drawn, key)), digest_size=16).digest()

    def _draw(self) -> int:
        """The next seed of this call: a mix of what caused it, who handles, and the number of the draw."""
        unit = self._unit
        route = unit.route
        assert route is not None
        unit.draws += 1
        mixed = (
            unit.salt + unit.origin * 0x9E3779B97F4A7C15 + (route.salt ^ unit.draws * 0xD1342543DE82EF95)
        ) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK  # the finaliser of splitmix64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    # --- misuse ---

    def _not_found(self, to: Any) -> UsageError:
        """Why a handler may not emit, or send, to what it does."""
        route = self._unit.route
        if route is None:
            return UsageError(
                "something is emitted by a context whose handler has returned",
                hint="Emit and send while the handler runs; do not keep its context.",
            )
        operator = self._plan.operators[route.operator]
        does, what = ("sends", to.__name__) if isinstance(to, type) else ("emits", f"{to.name!r}")
        where = "@app.process" if operator.actor is None else "@app.actor"
        named = to.__name__ if isinstance(to, type) else "the topic"
        if not isinstance(to, type) and to not in self._plan.topics.values() and to not in self._plan.streams:
            return UsageError(
                f"{route.name} emits to {what}, which was declared in another app",
                hint=f"Declare it in the app {self._plan.app!r} as well, and emit to that.",
            )
        return UsageError(
            f"{route.name} {does} to {what}, which its code does not show: watermarks that follow from it would be wrong",
            hint=f"Name it where {operator.name} is declared: {where}(emits=[{named}]).",
        )

    def _own(self, action: str) -> Instances:
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
