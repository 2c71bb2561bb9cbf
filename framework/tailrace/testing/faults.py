"""Faults as values in the list of a service's input, between its events.

    harness.run([(readings, warm), CRASH, (readings, hot), Clock(5_000), END])

The idea is bytewax's (``EOF`` and ``ABORT`` in the input of its test source). A value compares by what it
holds and prints as it is written, so that a failing example of a property test can be copied into a test.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

from tailrace.core.declare.topic import Topic
from tailrace.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault without arguments: ``COMMIT``, ``CRASH``, ``RELOAD``, ``REBALANCE`` or ``END``."""

    name: str

    def __repr__(self) -> str:
        return self.name


CRASH: Final = Fault("CRASH")
"""Kill the worker: uncommitted work is lost. It starts again with the next item, from the log."""
COMMIT: Final = Fault("COMMIT")
"""Commit everything taken so far; outputs and messages become visible."""
RELOAD: Final = Fault("RELOAD")
"""Stop the worker in good order, and restart it on the same state folder: memory is loaded again."""
REBALANCE: Final = Fault("REBALANCE")
"""Hand all partitions over, in good order, to a worker without state, which restores it from the changelog.
"""
END: Final = Fault("END")
"""End all inputs: event time rises to the latest timer pending then. Only faults may follow."""


@dataclass(frozen=True, slots=True)
class _AsWritten:
    def __repr__(self) -> str:
        given = [getattr(self, one.name) for one in fields(self)]
        return f"{type(self).__name__}({', '.join(repr(one) for one in given if one is not None)})"


@dataclass(frozen=True, slots=True, repr=False)
class Clock(_AsWritten):
    """Set the clock to ``to_ms`` (milliseconds). It may jump back; handlers never see it go back."""

    to_ms: int


@dataclass(frozen=True, slots=True, repr=False)
class Watermark(_AsWritten):
    """Raise the watermark to ``to_ms``, as if producers had published it.

    It rises for ``topic``, or by default for every input from outside.
    """

    to_ms: int
    topic: Topic[Any, Any] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Idle(_AsWritten):
    """Make a topic idle: it holds no watermark back any more, in every task that has nothing unread of it."""

    topic: Topic[Any, Any]


@dataclass(frozen=True, slots=True, repr=False)
class At(_AsWritten):
    """An event whose record has ``timestamp_ms``. Events given as (topic, event) have the clock's time."""

    timestamp_ms: int
    topic: Topic[Any, Any]
    event: Any


Item: TypeAlias = tuple[Topic[Any, Any], Any] | At | Clock | Watermark | Idle | Fault
"""An item of the list for ``Harness.run``: an event as (topic, event), or a value of these classes."""


def sent(item: Item) -> tuple[Topic[Any, Any], Any, int | None]:
    """Topic, event and timestamp of an item that is an event; without a timestamp the record bears the
    clock's time.
    Raises UsageError: it is a fault.
    """
    if isinstance(item, At):
        return item.topic, item.event, item.timestamp_ms
    if isinstance(item, tuple) and len(item) == 2:
        return *item, None
    raise UsageError(
        f"{item!r} is not an event",
        hint="Give (topic, event) pairs and At(timestamp_ms, topic, event). Faults come with the schedules.",
    )
