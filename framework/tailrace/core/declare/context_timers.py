"""The timers of a handler's context."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tailrace.core import rows
from tailrace.core.declare.current_unit import CurrentUnit, Instances
from tailrace.core.declare.event_time import refuse_seconds
from tailrace.core.durations import INSTANT_LIMIT_MS, SECONDS_LAST_MS, to_ms
from tailrace.core.errors import TimerLoopError, UsageError
from tailrace.core.suggestions import did_you_mean


class ContextTimers:
    """The part of ``Context`` that is about timers."""

    __slots__ = ()
    key: Any
    event_time: int
    watermark: int
    now: int
    _unit: CurrentUnit
    _timer_cap: int

    def set_timer(self, time: int | datetime, name: str | None = None) -> None:
        """Call the actor's ``@tr.on_timer`` handler when the watermark reaches ``time``.

        ``time`` is milliseconds since 1970, or an aware datetime. With a name, a pending timer of the same
        name is moved; ``"overdue:JFK"`` is handled by ``@tr.on_timer("overdue")``. Without a name, there is
        at most one timer per instant. A timer in the past is due at once, after this step's handlers. Timers
        are durable, and each fires at most once.

        Raises:
            UsageError: The actor has no handler for this timer, the time is not an instant or looks like
                seconds, or this handler is a stateless function, which has no timers.
            TimerLoopError: Timer handlers of one key keep setting timers that are due at once.
        """
        self._set(rows.EVENT_TIME, time, name)

    def set_processing_timer(self, time: int | datetime, name: str | None = None) -> None:
        """Call the actor's ``@tr.on_processing_timer`` handler when the clock reaches ``time``.

        Otherwise like ``set_timer``. After downtime, it may fire before earlier events have been read.
        """
        self._set(rows.PROCESSING_TIME, time, name)

    def cancel_timer(self, timer: str | int | datetime) -> None:
        """Cancel an event-time timer by its name, or an unnamed one by its time, if there is one."""
        self._cancel(rows.EVENT_TIME, timer)

    def cancel_processing_timer(self, timer: str | int | datetime) -> None:
        """Cancel a processing-time timer by its name, or an unnamed one by its time, if there is one."""
        self._cancel(rows.PROCESSING_TIME, timer)

    def _set(self, domain: int, time: int | datetime, name: str | None) -> None:
        unit = self._unit
        table = unit.table or self._own("set a timer")
        # The common case, without a call.
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
                        f"{self._place()} set a timer at or before the time of the timer that just fired, "
                        f"{depth} times in a row",
                        actor=table.plan.name,
                        key=self.key,
                        hint="A timer handler that sets a timer again must set it later than the time at "
                        "which it fired.",
                    )
        table.move_timer(
            unit.instance._tr_parts or table.parts(unit.instance),
            (None if name is None else table.timer_ids[domain].get(name))
            or self._timer_id(domain, time_ms if name is None else name),
            rows.Timer(time_ms, self._draw(), depth),
        )

    def _cancel(self, domain: int, timer: str | int | datetime) -> None:
        table = self._own("cancel a timer")
        if isinstance(timer, str):
            which = self._timer_id(domain, timer)
        else:
            which = domain, rows.unnamed_timer(self._due_ms(timer, domain))
        table.move_timer(table.parts(self._unit.instance), which, None)

    def _due_ms(self, time: int | datetime, domain: int) -> int:
        """The instant at which a timer is due."""
        try:
            time_ms = to_ms(time)
        except UsageError as error:
            hint = error.hint
            if isinstance(time, int) and time < 0:
                hint = (
                    "Before the first event there is no ctx.watermark: compute the time from ctx.event_time."
                )
            raise UsageError(
                f"{self._place()} uses a timer with a wrong time: {error.what}", hint=hint
            ) from None
        if type(time) is int:
            here_ms = self.event_time if domain == rows.EVENT_TIME else self.now
            refuse_seconds(time_ms, here_ms, f"{self._place()} uses a timer")
        return time_ms

    def _timer_id(self, domain: int, timer: str | int) -> tuple[int, bytes]:
        table = self._unit.table
        assert table is not None
        ids, name = table.timer_ids[domain], timer if isinstance(timer, str) else ""
        known = ids.get(name)
        if known is None:
            self._handled(domain, name)
            if len(ids) > 10_000:
                ids.clear()
            known = ids[name] = (domain, b"n" + name.encode())
        return known if isinstance(timer, str) else (domain, rows.unnamed_timer(timer))

    def _handled(self, domain: int, name: str) -> None:
        table = self._unit.table
        assert table is not None
        plan = table.plan
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

    def _draw(self) -> int:
        raise NotImplementedError

    def _own(self, action: str) -> Instances:
        raise NotImplementedError

    def _place(self) -> str:
        raise NotImplementedError
