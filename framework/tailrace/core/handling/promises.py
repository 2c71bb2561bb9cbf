"""The watermarks that a task has published for the topics it writes, and its emits behind them.

A published watermark promises that no further event at or before it is emitted. An event emitted behind it is
late for every reader that follows the watermark: a window that emits its start, a handler that answers late
events. This is not an error, since readers handle late events. It is counted by topic and handler, and has no
effect that a handler can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias


class Behind(NamedTuple):
    """A topic, and a handler that emitted to it behind its published watermark.

    Or a stream, and a handler that emitted to it with an ``at`` behind its own watermark.
    """

    topic: str
    handler: str
    """``Actor.method``, or the name of a function."""


Cause: TypeAlias = Literal["event", "at", "timer", "late", "record"]
"""Where the time of an event that was emitted behind comes from: the event itself, ``at=``, a timer that fired
when its time had passed, or a record, which was late or is never late.
"""


class Instance(NamedTuple):
    """One event that was emitted behind a watermark. ``input``: the topic of the record that was handled."""

    time_ms: int
    mark_ms: int
    cause: Cause
    input: str


class Promises:
    """The published watermarks of topics, and the number of events emitted at or before them since."""

    __slots__ = ("behind", "context", "furthest", "marks")

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.context: Any = None
        """The context of the handlers."""
        self.behind: Counter[Behind] = Counter()
        """Number of events, including those of handlers that failed."""
        self.furthest: dict[Behind, Instance] = {}
        """The one that was furthest behind."""

    def publish(self, watermarks: Mapping[str, int | None]) -> None:
        """Record published watermarks. None, which holds no reader back, does not lower an earlier one."""
        for topic, watermark_ms in watermarks.items():
            if watermark_ms is not None:
                self.marks[topic] = max(watermark_ms, self.marks.get(topic, watermark_ms))

    def broken(self, behind: Behind, instance: Instance) -> None:
        """Count an event that was emitted to a topic or stream at or before its watermark."""
        self.behind[behind] += 1
        furthest = self.furthest.get(behind, instance)
        if instance.mark_ms - instance.time_ms >= furthest.mark_ms - furthest.time_ms:
            self.furthest[behind] = instance
