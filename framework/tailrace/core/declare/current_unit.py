"""The unit under way: what the engine sets before it calls a handler, and what the handler's context works with.

A user sees none of it. ``Context`` is the view of a handler; the engine owns these registers and resets them.

    register              set                       read for
    route, table          before each handler       who may emit what; timers and state of the actor
    instance              before each handler       the same
    origin, salt, draws   per record or firing      seeds of randomness: what caused the call, and the number of the draw
    fired, depth          while a timer fires       its domain and time; timers in a row that were due at once
    outputs, chained      taken by the task         what was emitted to topics and streams, in order
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Protocol

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan, Route
from tailrace.core.declare.topic import Stream, Topic
from tailrace.core.records import RawOutput


class Instances(Protocol):
    """What a context needs of the instances of its actor; the engine's ``Table`` is one."""

    @property
    def plan(self) -> ActorPlan:
        """The actor."""
        ...

    def parts(self, instance: Any, /) -> Any:
        """The collections and timers of an instance."""
        ...

    def move_timer(self, parts: Any, timer: tuple[int, bytes], to: rows.Timer | None, /) -> None:
        """Set a timer, move it, or cancel it."""
        ...

    def clear(self, instance: Any, /) -> None:
        """Forget all that a key has."""
        ...


class CurrentUnit:
    """The registers of the unit under way. See the head of this file."""

    __slots__ = (
        "chained",
        "depth",
        "draws",
        "fired",
        "instance",
        "origin",
        "outputs",
        "random",
        "route",
        "salt",
        "table",
    )

    def __init__(self) -> None:
        self.outputs: list[RawOutput] = []
        self.chained: deque[tuple[Stream[Any], Any]] = deque()
        self.route: Route | None = None
        """The handler that runs; None between two."""
        self.table: Instances | None = None
        self.instance: Any = None
        self.salt = self.origin = self.draws = 0
        self.random: Random | None = None
        self.fired: tuple[int, int] | None = None
        """Domain and time of the timer that fires."""
        self.depth = 0

    def leave(self) -> None:
        """No handler runs any more: what a handler keeps of its context fails from here on."""
        self.table = self.instance = self.route = None

    def pass_on(self, to: Topic[Any, Any], event: Any, time_ms: int) -> None:
        """Forward an event unchanged: a late one to the topic for late events, one with another key to the topic by key.

        It is not counted as behind a published watermark: a late event is expected to be late there, too.
        """
        self.outputs.append((to.name, to.encode_key(event), to.encode_emitted(event), time_ms, ()))
