"""Traces some keys during a replay (see ``history.replay.trace``), and opens a debugger before their handlers."""

from __future__ import annotations

import pdb  # noqa: T100  # to stop in a debugger is what --break is for
from collections.abc import Callable, Collection
from typing import Any

from tailrace.cli.console import say
from tailrace.cli.showing import printable
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.observer import Call, Moment
from tailrace.history.replay.trace import Part, Trace


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


class Tracer(Trace):
    """Shows the handler calls for the keys ``traced``; opens a debugger before those for ``stopped_at``."""

    def __init__(self, plan: Plan, *, traced: Collection[Any], stopped_at: Collection[Any]) -> None:
        super().__init__(plan, traced, _say)
        self._stopped_at = stopped_at
        self._debugger: _Debugger | None = None

    def call(self, call: Call, handler: Callable[..., None], *arguments: Any) -> None:
        """See ``Observer.call``."""
        moment = call.moment
        if moment.key in self._stopped_at:
            say((f"before {call.handler}: ", "yellow"), *self.headline(moment), err=True)
            self._debug(handler, *arguments)
        else:
            handler(*arguments)

    def _debug(self, handler: Callable[..., None], *arguments: Any) -> None:
        """Call a handler in the debugger, which stops at its first line."""
        if self._debugger is None:
            self._debugger = _Debugger()
        self._debugger.runcall(handler, *arguments)
        if self._debugger.left:
            raise DebuggerLeft


def _say(*parts: Part, begins: Moment | None = None) -> None:  # noqa: ARG001  # all lines go to one place
    """Write a line without control characters. A closed pipe must not count as a failure of the handler."""
    try:
        say(*(printable(one) if isinstance(one, str) else (printable(one[0]), one[1]) for one in parts))
    except OSError as error:
        raise OutputFailed(error) from None
