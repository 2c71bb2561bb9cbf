"""The current unit: what the engine sets before it calls a handler, for the handler's context to use.

These values are internal. A handler sees them only through ``Context``; the engine sets and resets them.

    register              set                       used for
    route, table          before each handler       checking what it may emit; timers and state of the actor
    instance              before each handler       the same
    cause                 per record or firing      its id, computed only on demand: ``call_id``. It is the record, the timer that
                                                    fires, or of an event of a stream: the emitter's cause and operator, and n
    draws, sends, random  by the context            how often the call has drawn, or sent and emitted to streams; its ``Random``
    used                  by the context            whether one of these is set: then they are reset before the next call
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
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from tailrace.core.declare.plan import Route
from tailrace.core.declare.topic import Stream, Topic
from tailrace.core.durations import NO_WATERMARK
from tailrace.core.names import is_passed_on
from tailrace.core.records import RECORD_BYTES, Headers, RawOutput, too_large
from tailrace.core.unit_ids import ORIGIN_HEADER


class CurrentUnit:
    """The registers of the current unit. See the head of this file."""

    __slots__ = (
        "_id",
        "_known",
        "cause",
        "chained",
        "count_dropped",
        "decided_ms",
        "depth",
        "draws",
        "fired",
        "id_of",
        "input",
        "inside",
        "instance",
        "most_bytes",
        "operators",
        "outputs",
        "random",
        "route",
        "sends",
        "table",
        "taken",
        "used",
        "watermark",
    )

    def __init__(self) -> None:
        self.outputs: list[RawOutput] = []
        self.chained: deque[tuple[Stream[Any, Any], Any, int, tuple[Any, bytes, int]]] = deque()
        """Stream, event, event time, cause."""
        self.route: Route | None = None
        """The running handler; None between two handlers."""
        self.table: Any = None
        """The ``engine.actor_table.Table`` of the running handler's actor."""
        self.instance: Any = None
        self.input = -1
        self.cause: Any = None
        self._known: Any = None
        self._id = b""
        """The id of the cause ``_known``."""
        self.id_of: Callable[[Any], bytes]
        """Computes the id of a cause."""
        self.inside: Collection[str] = ()
        """The topics that the app reads itself."""
        self.operators: Sequence[bytes] = ()
        """Their names."""
        self.draws = self.sends = self.taken = 0
        self.used = False
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

    def reset(self) -> None:
        """Begin a call: it has drawn and sent nothing."""
        self.draws, self.sends, self.random, self.used = 0, 0, None, False

    def call_id(self) -> bytes:
        """The id of the cause of the running call."""
        cause = self.cause
        if self._known is not cause:
            self._id, self._known = self.id_of(cause), cause
        return self._id

    def sent(self) -> Headers:
        """Number what is sent to the app itself, and return its header, with a ``Sent`` as its value until the output is taken."""
        number, operator, cause = 0, b"", self.cause
        if self.route is not None:  # else a late event that the task passes on
            number, operator = self.sends, self.operators[self.route.operator]
            self.sends, self.used = number + 1, True
        if self._known is not cause:
            self._id, self._known = self.id_of(cause), cause
        sent: Any = self._id, number, operator
        return ((ORIGIN_HEADER, sent),)

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
        self.outputs.append((topic, key, value, time_ms, self.sent() if topic in self.inside else ()))
