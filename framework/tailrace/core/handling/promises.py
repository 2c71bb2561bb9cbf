"""The watermarks that a task has published for the topics it writes, and its emits behind them.

A published watermark promises that no further event at or before it is emitted. An event emitted behind it is
late for every reader that follows the watermark: a window that emits its start, a handler that answers late
events. This is not an error, since readers handle late events. It is counted by topic and handler, and has no
effect that a handler can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Behind(NamedTuple):
    """A topic, and a handler that emitted to it behind its published watermark."""

    topic: str
    handler: str
    """``Actor.method``, or the name of a function."""


class Promises:
    """The published watermarks of topics, and the number of events emitted at or before them since."""

    __slots__ = ("behind", "marks")

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.behind: Counter[Behind] = Counter()
        """Number of events, including those of handlers that failed."""

    def publish(self, watermarks: Mapping[str, int | None]) -> None:
        """Record published watermarks. None, which holds no reader back, does not lower an earlier one."""
        for topic, watermark_ms in watermarks.items():
            if watermark_ms is not None:
                self.marks[topic] = max(watermark_ms, self.marks.get(topic, watermark_ms))

    def broken(self, topic: str, handler: str) -> None:
        """Count an event that was emitted to a topic at or before its mark."""
        self.behind[Behind(topic, handler)] += 1
