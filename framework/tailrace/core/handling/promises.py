"""What a task has promised of the topics it writes, and which of its emits have broken it.

A published watermark says that nothing at or before it is to come any more. An event that is emitted behind it is late
for everybody who follows it: a window that emits its start, a handler that answers late events. That is no error, since
readers are ready for late events, but it should be known, with who did it. It changes nothing that a handler can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Behind(NamedTuple):
    """Who has emitted behind a published watermark, and where to."""

    topic: str
    handler: str
    """``Actor.method``, or the name of a function."""


class Promises:
    """The watermarks that were published for topics, and what was emitted at or before them since."""

    __slots__ = ("behind", "marks")

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.behind: Counter[Behind] = Counter()
        """How many events, emits of handlers that failed included."""

    def publish(self, watermarks: Mapping[str, int | None]) -> None:
        """These are what others go by from now on. None, holding nobody back, takes nothing back."""
        for topic, watermark_ms in watermarks.items():
            if watermark_ms is not None:
                self.marks[topic] = max(watermark_ms, self.marks.get(topic, watermark_ms))

    def broken(self, topic: str, handler: str) -> None:
        """An event was emitted to a topic at or before its mark."""
        self.behind[Behind(topic, handler)] += 1
