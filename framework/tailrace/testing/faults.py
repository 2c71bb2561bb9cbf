"""Faults as values: what happens to a service between its events, written in the list of its input.

    harness.run([(readings, warm), CRASH, (readings, hot), Clock(5_000), END])

The idea is bytewax's (``EOF`` and ``ABORT`` in the input of its test source). A value compares by what it holds and
prints as it is written, so that a failing example of a property test can be copied into a test of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tailrace.core.declare.topic import Topic
from tailrace.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault without arguments; there is one value of each."""

    name: str

    def __repr__(self) -> str:
        return self.name


CRASH: Final = Fault("CRASH")
"""The worker dies: what was not committed is lost. It starts again with the next item, from what the log holds."""
COMMIT: Final = Fault("COMMIT")
"""Everything taken so far is committed; messages sent and outputs become visible."""
RELOAD: Final = Fault("RELOAD")
"""The worker stops in good order and starts again on the same state: nothing of it is in memory any more."""
REBALANCE: Final = Fault("REBALANCE")
"""All partitions are handed over, in good order, to a worker that has no state: it restores it from the changelog."""
END: Final = Fault("END")
"""All inputs end: the watermark rises to the latest timer then pending. Nothing but faults may follow."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock shows ``to_ms`` from now on. It may jump back; a task never sees it go back."""

    to_ms: int

    def __repr__(self) -> str:
        return f"Clock({self.to_ms})"


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of every input from outside, or of one, rises to ``to_ms``, as if its producers had published it."""

    to_ms: int
    topic: Topic[Any, Any] | None = None

    def __repr__(self) -> str:
        return (
            f"Watermark({self.to_ms})" if self.topic is None else f"Watermark({self.to_ms}, {self.topic!r})"
        )


@dataclass(frozen=True, slots=True)
class Idle:
    """A topic falls idle: in every task that has nothing unread of it, its watermark holds nobody back any more."""

    topic: Topic[Any, Any]

    def __repr__(self) -> str:
        return f"Idle({self.topic!r})"


@dataclass(frozen=True, slots=True)
class Wake:
    """A topic that is idle counts again, as with its next record, but without one."""

    topic: Topic[Any, Any]

    def __repr__(self) -> str:
        return f"Wake({self.topic!r})"


@dataclass(frozen=True, slots=True)
class At:
    """An event whose record bears the timestamp ``timestamp_ms``; without it, the record bears the clock's time."""

    timestamp_ms: int
    topic: Topic[Any, Any]
    event: Any

    def __repr__(self) -> str:
        return f"At({self.timestamp_ms}, {self.topic!r}, {self.event!r})"


Item: TypeAlias = tuple[Topic[Any, Any], Any] | At | Clock | Watermark | Idle | Wake | Fault
"""What the input of ``Harness.run`` consists of: events as (topic, event), or any of the values above."""


def sent(item: Item) -> tuple[Topic[Any, Any], Any, int | None]:
    """Topic, event and timestamp of an item that is an event; without a timestamp the record bears the clock's time.

    Raises:
        UsageError: It is a fault.
    """
    if isinstance(item, At):
        return item.topic, item.event, item.timestamp_ms
    if isinstance(item, tuple) and len(item) == 2:
        return *item, None
    raise UsageError(
        f"{item!r} is no event",
        mend="Give (topic, event) pairs and At(timestamp_ms, topic, event). Faults come with the schedules.",
    )
