"""The timers of a handler's context."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.declare.current_unit import CurrentUnit
from tailrace.core.declare.event_time import refuse_seconds
from tailrace.core.declare.plan import ActorPlan, Route
from tailrace.core.durations import INSTANT_LIMIT_MS, SECONDS_LAST_MS, to_ms
from tailrace.core.errors import DurableValueError, TimerLoopError, UsageError
from tailrace.core.records import RECORD_BYTES, row_too_large
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.types import CODEC_ERRORS, refusal


class KeyTimer(NamedTuple):
    """A pending timer: ``due`` in milliseconds, ``name`` (None without one), the kind of time, and its payload."""

    due: int
    name: str | None
    domain: Literal["event", "processing"]
    payload: Any


def route_of(plan: ActorPlan, domain: int, name: str) -> Route:
    """The handler of a timer, which must exist."""
    handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
    return handlers[name.partition(":")[0]]


def key_timers(plan: ActorPlan, timers: Mapping[rows.TimerId, rows.Timer]) -> list[KeyTimer]:
    """The timers of a key that its handlers have set, by the time at which they are due."""
    found = [
        KeyTimer(
            one.time_ms,
            name[1:].decode() if name[:1] == b"n" else None,
            "event" if domain == rows.EVENT_TIME else "processing",
            payload_of(plan, domain, name, one),
        )
        for (domain, name), one in timers.items()
        if name[:1] != rows.EXPIRY
    ]
    return sorted(found, key=lambda one: (one.due, one.domain, one.name or ""))


def payload_of(plan: ActorPlan, domain: int, name: bytes, timer: rows.Timer) -> Any:
    """The payload of a timer, by its handler's type if there is one."""
    handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
    route = handlers.get("" if name[:1] == b"u" else name[1:].decode().partition(":")[0])
    if timer.payload is None:
        return None
    return (msgspec.msgpack.decode if route is None or route.payload is None else route.payload[1])(
        timer.payload
    )


class ContextTimers:
    """The part of ``Context`` that is about timers."""

    __slots__ = ()
    key: Any
    event_time: int
    watermark: int
    now: int
    _unit: CurrentUnit
    _timer_cap: int

    def set_timer(self, time: int | datetime, name: str | None = None, payload: Any = None) -> None:
        """Call the actor's ``@tr.on_timer`` handler when the watermark reaches ``time``.

        ``time`` is milliseconds since 1970, or an aware datetime. With a name, a pending timer of the same
        name is moved; ``"overdue:JFK"`` is handled by ``@tr.on_timer("overdue")``. Without a name, there is
        at most one timer per instant. A timer in the past is due at once, after this step's handlers. Timers
        are durable, and each fires at most once. A handler with a ``payload`` type gets the ``payload`` of this call.

        Raises:
            UsageError: The actor has no handler for this timer or its payload, the time is not an instant or looks like
                seconds or a duration, or this handler is a stateless function, which has no timers.
            TimerLoopError: Timer handlers of one key keep setting timers that are due at once.
        """
        self._set(rows.EVENT_TIME, time, name, payload)

    def set_processing_timer(
        self, time: int | datetime, name: str | None = None, payload: Any = None
    ) -> None:
        """Call the actor's ``@tr.on_processing_timer`` handler when the clock reaches ``time``.

        Otherwise like ``set_timer``. After downtime, it may fire before earlier events have been read.
        """
        self._set(rows.PROCESSING_TIME, time, name, payload)

    def cancel_timer(self, timer: str | int | datetime) -> None:
        """Cancel an event-time timer by its name, or an unnamed one by its time, if there is one."""
        self._cancel(rows.EVENT_TIME, timer)

    def cancel_processing_timer(self, timer: str | int | datetime) -> None:
        """Cancel a processing-time timer by its name, or an unnamed one by its time, if there is one."""
        self._cancel(rows.PROCESSING_TIME, timer)

    def timers(self) -> list[KeyTimer]:
        """The pending timers of this key, by the time at which they are due. A timer that fires is not among them."""
        table = self._own("read timers")
        return key_timers(table.plan, table.parts(self._unit.instance).timers)

    def _set(self, domain: int, time: int | datetime, name: str | None, payload: Any) -> None:
        unit = self._unit
        table = unit.table or self._own("set a timer")
        here_ms = self.event_time if domain == rows.EVENT_TIME else self.now
        # The common cases, without a call: only where the handler's time is of this century, small ones are refused.
        if (
            type(time) is int
            and -INSTANT_LIMIT_MS < time < INSTANT_LIMIT_MS
            and (time > SECONDS_LAST_MS or here_ms <= SECONDS_LAST_MS)
        ):
            time_ms = time
        else:
            time_ms = self._due_ms(time, domain, name)
        depth, decided_ms = 0, None
        if domain == rows.EVENT_TIME and time_ms <= self.watermark and time_ms <= self.fired_to:
            decided_ms = self.fired_to
        if unit.fired is not None:
            fired_domain, fired_ms = unit.fired
            reached = self.watermark if domain == rows.EVENT_TIME else self.now
            if time_ms <= (fired_ms if domain == fired_domain else reached):
                depth = unit.depth + 1
                if depth > self._timer_cap:
                    raise TimerLoopError(
                        f"{self._place()} set a timer at or before the time of the timer that just fired, {depth} times in a row",
                        actor=table.plan.name,
                        key=self.key,
                        hint="A timer handler that sets a timer again must set it later than the time at which it fired.",
                    )
        known, encoded = table.timer_ids[domain].get(name or ""), None
        if known is None or payload is not None:
            known = self._timer_id(domain, name or "")
            encoded = self._encoded(domain, name or "", payload)
            size = len(encoded or b"") + len(known[1]) + len(unit.instance._tr_row)
            if size > RECORD_BYTES:
                raise row_too_large(size, table.plan.name, self.key)
        table.move_timer(
            unit.instance._tr_parts or table.parts(unit.instance),
            known if name is not None else (domain, rows.unnamed_timer(time_ms)),
            rows.Timer(time_ms, unit.call_id(), depth, encoded, decided_ms),
        )

    def _cancel(self, domain: int, timer: str | int | datetime) -> None:
        table = self._own("cancel a timer")
        if isinstance(timer, str):
            which = self._timer_id(domain, timer)
        else:
            which = domain, rows.unnamed_timer(self._due_ms(timer, domain))
        table.move_timer(table.parts(self._unit.instance), which, None)

    def _due_ms(self, time: int | datetime, domain: int, name: str | None = None) -> int:
        """The instant at which a timer is due. The library's times follow from those of events, which may be of 1970 too."""
        try:
            time_ms = to_ms(time)
        except UsageError as error:
            hint = error.hint
            if isinstance(time, int) and time < 0:
                hint = (
                    "Before the first event there is no ctx.watermark: compute the time from ctx.event_time."
                )
            raise type(error)(
                f"{self._place()} uses a timer with a wrong time: {error.what}", hint=hint
            ) from None
        if type(time) is int and not self._unit.table.is_of_library(b"n" + (name or "").encode()):
            here_ms = self.event_time if domain == rows.EVENT_TIME else self.now
            refuse_seconds(time_ms, here_ms, f"{self._place()} uses a timer")
        return time_ms

    def _timer_id(self, domain: int, name: str) -> tuple[int, bytes]:
        table = self._unit.table
        ids: dict[str, tuple[int, bytes]] = table.timer_ids[domain]
        known = ids.get(name)
        if known is None:
            self._handled(domain, name)
            if len(ids) > 10_000:
                ids.clear()
            known = (domain, b"n" + name.encode())
            if route_of(table.plan, domain, name).payload is None:  # else ``_set`` must look at each payload
                ids[name] = known
        return known

    def _encoded(self, domain: int, name: str, payload: Any) -> bytes | None:
        """The payload of a timer, checked against the type that its handler declares."""
        codec = route_of(self._unit.table.plan, domain, name).payload
        if codec is None and payload is None:
            return None
        cause: Exception | None = None
        kind: type[UsageError] = DurableValueError
        wrong = "its handler takes none" if codec is None else "there is none"
        if codec is not None and payload is not None:
            try:
                encoded = codec[0](payload)
                codec[1](encoded)
            except (*CODEC_ERRORS, AttributeError) as error:
                cause, wrong, kind = error, str(error), refusal(error)
            else:
                return encoded
        raise kind(
            f"{self._place()} sets the timer {name!r} with the payload {payload!r}, which does not fit: {wrong}",
            hint="Give it a value of the type that payload= of the timer's handler names.",
        ) from cause

    def _handled(self, domain: int, name: str) -> None:
        plan = self._unit.table.plan
        handlers = plan.event_timers if domain == rows.EVENT_TIME else plan.processing_timers
        family = name.partition(":")[0]
        if family not in handlers:
            decorator = "on_timer" if domain == rows.EVENT_TIME else "on_processing_timer"
            decorated = f'@tr.{decorator}("{family}")' if family else f"@tr.{decorator}"
            what = f"the timer {name!r}" if name else "an unnamed timer"
            raise UsageError(
                f"{self._place()} uses {what}, which {plan.cls.__name__} does not handle",
                hint=did_you_mean(
                    family, filter(None, handlers), f"Give {plan.cls.__name__} a method with {decorated}."
                ),
            )

    @property
    def fired_to(self) -> int:
        """The instant up to which the event-time timers of this actor have fired, in ms."""
        raise NotImplementedError

    def _own(self, action: str) -> Any:
        raise NotImplementedError

    def _place(self) -> str:
        raise NotImplementedError
