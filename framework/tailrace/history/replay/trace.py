"""The trace of some keys: what happens to them while history is run again.

The trace has a paragraph for each record and timer, with an entry per handler: state changes and outputs::

    2013-01-01T10:17:00.000Z  departures @1234  Departure(tail='N14228', ...)
      Aircraft.departed
        legs: 2 → 3
        timer 'overdue': nothing → 2013-01-01T14:30:00.000Z
        emits to 'legs': Leg(tail='N14228', ...)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeAlias

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.describe_rows import Picture, changes, entry_name, instant, picture
from tailrace.core.engine.observer import Call, Moment, Observer
from tailrace.core.engine.units import TIMER
from tailrace.core.records import Output, RawOutput
from tailrace.history.comparing.outputs import output_event

Part: TypeAlias = str | tuple[str, str]
"""A part of a line: text, or text with its style, such as ``("late", "red")``."""


class Write(Protocol):
    """Writes a line of a trace."""

    def __call__(self, *parts: Part, begins: Moment | None = None) -> None:
        """``begins``: the moment, if the line begins a paragraph."""


class Trace(Observer):
    """Writes the handler calls for the keys ``traced``."""

    def __init__(self, plan: Plan, traced: Collection[Any], write: Write) -> None:
        self._plan, self._traced, self._write = plan, traced, write
        self._before: Picture = {}
        self._shown: Moment | None = None

    def begins(self, call: Call) -> None:
        """See ``Observer.begins``."""
        if call.actor is not None and call.moment.key in self._traced:
            self._before = picture(call.actor, call.rows())

    def returned(self, call: Call, outputs: Sequence[RawOutput]) -> None:
        """See ``Observer.returned``."""
        if call.moment.key not in self._traced:
            return
        after = {} if call.actor is None else picture(call.actor, call.rows())
        told = changes(self._before if call.actor is not None else {}, after)
        made = [Output(*one) for one in outputs]
        self._show(call.moment)
        self._write("  ", (call.handler, "bold"))
        for one in told:
            self._write(f"    {one.label}: {one.was} → {one.is_}")
        for output in made:
            event = repr(output_event(self._plan, output))
            self._write(f"    emits to {output.topic!r}: ", (event, "green"))
        if not told and not made:
            self._write(("    changes nothing", "dim"))

    def passed_over(self, moment: Moment, why: str) -> None:
        """See ``Observer.passed_over``."""
        if moment.key in self._traced:
            self._show(moment)
            self._write("  ", (why, "red"))

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes) -> None:
        """See ``Observer.expired``."""
        if moment.key in self._traced:
            name = f"{actor.name}.{entry_name(actor, what)}"
            self._write(_time(moment.at), f"  {name} has expired", begins=moment)
            self._shown = None

    def _show(self, moment: Moment) -> None:
        """Write the line of a record or timer once, before the first of its handlers."""
        if self._shown is None or (moment.input, moment.at, moment.timer, moment.event) != (
            self._shown.input,
            self._shown.at,
            self._shown.timer,
            self._shown.event,
        ):
            self._write(*self.headline(moment), begins=moment)
        self._shown = moment

    def headline(self, moment: Moment) -> list[Part]:
        """The first line of a paragraph."""
        if moment.input == TIMER and moment.event is None:
            kind = "processing timer" if moment.domain == rows.PROCESSING_TIME else "timer"
            name = "" if moment.timer is None else f" {moment.timer!r}"
            return [_time(moment.at), f"  {kind}{name}"]
        cause = "a timer" if moment.input == TIMER else f"{self._plan.inputs[moment.input].name} @{moment.at}"
        late = ("  late" if moment.is_late else "", "red")
        return [_time(moment.event_time), f"  {cause}  {moment.event!r}", late]


def _time(at_ms: int) -> Part:
    return instant(at_ms), "cyan"
