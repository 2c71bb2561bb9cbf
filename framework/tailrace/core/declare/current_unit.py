"""The current unit: what the engine sets before it calls a handler, for the handler's context to use.

These values are internal. A handler sees them only through ``Context``; the engine sets and resets them.

    register              set                       used for
    route, table          before each handler       checking what it may emit; timers and state of the actor
    instance              before each handler       the same
    origin, salt, draws   per record or firing      random seeds: the cause of the call, number of the draw
    fired, depth          while a timer fires       its domain and time; number of timers due at once in a row
    decided_ms            the same                  ``rows.Timer.decided_ms``
    watermark             as the watermark moves    the highest one of the operators that the input concerns
    input                 at the start of a run     the number of the input; in a firing, that of the last run
    taken                 at the end of a run       index of the first head not taken
    outputs, chained      taken by the task         records emitted to topics, events to streams, in order
    most_bytes            by the task               the size limit of an output, key and value together
    count_dropped         by the task               counts an event that the handler leaves out as late
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tailrace.core.declare.plan import Route
from tailrace.core.declare.topic import Stream, Topic
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.names import is_passed_on
from tailrace.core.records import RECORD_BYTES, RawOutput, too_large

MASK = (1 << 64) - 1
SPREAD = 0x9E3779B97F4A7C15  # odd, so that causes that differ give seeds that differ


class CurrentUnit:
    """The registers of the current unit. See the head of this file."""

    __slots__ = (
        "chained",
        "count_dropped",
        "decided_ms",
        "depth",
        "draws",
        "fired",
        "input",
        "instance",
        "most_bytes",
        "origin",
        "outputs",
        "random",
        "route",
        "salt",
        "table",
        "taken",
        "watermark",
    )

    def __init__(self) -> None:
        self.outputs: list[RawOutput] = []
        self.chained: deque[tuple[Stream[Any, Any], Any, int]] = deque()
        """Stream, event, event time."""
        self.route: Route | None = None
        """The running handler; None between two handlers."""
        self.table: Any = None
        """The ``engine.actor_table.Table`` of the running handler's actor."""
        self.instance: Any = None
        self.input = -1
        self.salt = self.origin = self.draws = self.taken = 0
        self.watermark = NO_WATERMARK
        self.random: Random | None = None
        self.fired: tuple[int, int] | None = None
        """Domain and time of the firing timer."""
        self.depth = 0
        self.decided_ms: int | None = None
        self.most_bytes = 1 << 62
        self.count_dropped: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """Note that no handler is running: a context that a handler has kept fails from now on."""
        self.table = self.instance = self.route = None

    def pass_on(self, to: Topic[Any, Any], event: Any, time_ms: int) -> None:
        """Forward an event unchanged: a late one to the topic for late events, or any to the topic by key.

        It does not count as behind a published watermark: a late event is expected to be late there, too.
        """
        self.write(to.name, to.encode_key(event), to.encode_emitted(event), time_ms)

    def write(self, topic: str, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        """Append a record to the outputs. Raises RecordTooLargeError: it is over the limit."""
        # What came from an input is passed on: another limit let it in.
        most = RECORD_BYTES if is_passed_on(topic) else self.most_bytes
        if len(key or b"") + len(value or b"") > most:
            raise too_large(topic, key, value, most)
        self.outputs.append((topic, key, value, time_ms, ()))
