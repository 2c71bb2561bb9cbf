"""Traces some keys during a replay, and opens a debugger before their handlers.

The trace has a paragraph for each record and timer, with an entry per handler: state changes and outputs::

    2013-01-01T10:17:00.000Z  departures @1234  Departure(tail='N14228', ...)
      Aircraft.departed
        legs: 2 → 3
        timer 'overdue': nothing → 2013-01-01T14:30:00.000Z
        emits to 'legs': Leg(tail='N14228', ...)
"""

from __future__ import annotations

import pdb  # noqa: T100  # to stop in a debugger is what --break is for
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tailrace.cli.console import Part, say
from tailrace.cli.showing import printable
from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.describe_rows import Change, Picture, changes, entry_name, instant, picture
from tailrace.core.engine.observer import Call, Moment, Observer
from tailrace.core.engine.units import TIMER
from tailrace.core.records import Output, RawOutput
from tailrace.history.comparing.outputs import output_event


class DebuggerLeft(BaseException):
    """The user quit the debugger. Not an ``Exception``, which would be a failure of the handler."""


class OutputFailed(BaseException):
    """The trace cannot be written any more. Not a failure of a handler either."""

    def __init__(self, why: OSError) -> None:
        super().__init__(why)
        self.why = why


class _Debugger(pdb.Pdb):
    """Records that the user quit, since ``runcall`` does not return this."""

    left = False

    def set_quit(self) -> None:
        """See ``bdb.Bdb``."""
        self.left = True
        super().set_quit()


class Tracer(Observer):
    """Shows the handler calls for the keys ``traced``; opens a debugger before those for ``stopped_at``."""

    def __init__(self, plan: Plan, *, traced: Collection[Any], stopped_at: Collection[Any]) -> None:
        self._plan = plan
        self._traced = traced
        self._stopped_at = stopped_at
        self._before: Picture = {}
        self._shown: Moment | None = None
        self._debugger: _Debugger | None = None

    # --- Observer

    def begins(self, call: Call) -> None:
        """See ``Observer.begins``."""
        if call.actor is not None and call.moment.key in self._traced:
            self._before = picture(call.actor, call.rows())

    def call(self, call: Call, handler: Callable[..., None], *arguments: Any) -> None:
        """See ``Observer.call``."""
        moment = call.moment
        if moment.key in self._stopped_at:
            say((f"before {call.handler}: ", "yellow"), *self._headline(moment), err=True)
            self._debug(handler, *arguments)
        else:
            handler(*arguments)

    def returned(self, call: Call, outputs: Sequence[RawOutput]) -> None:
        """See ``Observer.returned``."""
        if call.moment.key not in self._traced:
            return
        after = {} if call.actor is None else picture(call.actor, call.rows())
        told = changes(self._before if call.actor is not None else {}, after)
        made = [Output(*one) for one in outputs]
        self._show(call.moment)
        _say("  ", (call.handler, "bold"))
        for one in told:
            _say(f"    {_change(one)}")
        for output in made:
            event = printable(repr(output_event(self._plan, output)))
            _say(f"    emits to {output.topic!r}: ", (event, "green"))
        if not told and not made:
            _say(("    changes nothing", "dim"))

    def passed_over(self, moment: Moment, why: str) -> None:
        """See ``Observer.passed_over``."""
        if moment.key in self._traced:
            self._show(moment)
            _say("  ", (printable(why), "red"))

    def expired(self, moment: Moment, actor: ActorPlan, what: bytes) -> None:
        """See ``Observer.expired``."""
        if moment.key in self._traced:
            name = f"{actor.name}.{entry_name(actor, what)}"
            _say(_time(moment.at), f"  {printable(name)} has expired")
            self._shown = None

    # --- the output

    def _show(self, moment: Moment) -> None:
        """Write the line of a record or timer once, before the first of its handlers."""
        if self._shown is None or (moment.input, moment.at, moment.timer, moment.event) != (
            self._shown.input,
            self._shown.at,
            self._shown.timer,
            self._shown.event,
        ):
            _say(*self._headline(moment))
        self._shown = moment

    def _headline(self, moment: Moment) -> list[Part]:
        if moment.input == TIMER and moment.event is None:
            kind = "processing timer" if moment.domain == rows.PROCESSING_TIME else "timer"
            name = "" if moment.timer is None else f" {moment.timer!r}"
            return [_time(moment.at), f"  {kind}{name}"]
        cause = "a timer" if moment.input == TIMER else f"{self._plan.inputs[moment.input].name} @{moment.at}"
        late = ("  late" if moment.is_late else "", "red")
        return [_time(moment.event_time), f"  {cause}  {printable(repr(moment.event))}", late]

    def _debug(self, handler: Callable[..., None], *arguments: Any) -> None:
        """Call a handler in the debugger, which stops at its first line."""
        if self._debugger is None:
            self._debugger = _Debugger()
        self._debugger.runcall(handler, *arguments)
        if self._debugger.left:
            raise DebuggerLeft


@contextmanager
def _failing() -> Generator[None]:
    """Wrap writes inside a handler call: a closed pipe must not count as a failure of the handler."""
    try:
        yield
    except OSError as error:
        raise OutputFailed(error) from None


def _say(*parts: Part) -> None:
    with _failing():
        say(*parts)


def _time(at_ms: int) -> Part:
    return instant(at_ms), "cyan"


def _change(one: Change) -> str:
    return f"{printable(one.label)}: {printable(one.was)} → {printable(one.is_)}"
