"""What a driver tells a task about the way it works, and what it gets for a commit."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.declare.context import Measurement
from tailrace.core.handling.promises import Promises


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How a task goes about its work. None of it changes any result, except the timer cap."""

    cache_bytes: int = 256 << 20
    """About how much memory clean live instances may take."""
    timers_in_memory: int = 200_000
    """Timers kept in memory per time domain; the others are read from the store when their time comes."""
    firing_budget: int = 10_000
    """Timers fired before a call returns to its driver."""
    timer_loop_cap: int = 1_000
    """How often in a row a timer handler may set a timer at or before the time just fired."""
    timezones: str = ""
    """The version of the time zone data here, for the tape."""
    reload: bool = False
    """Decode every touched instance anew after each handler: a live object must be what its encoding says."""
    promises: Promises | None = None
    """What was published of the topics that the task writes, if its driver publishes anything."""
    checked: bool = False
    """Look for state changed outside its own handlers, at each touch and each commit, and decode again what is emitted and
    sent. For tests: it costs time."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """What has to be made durable together.

    ``rows`` go to the changelog and the store, ``index_rows`` (derived from them) to the store only. ``cut`` stands at
    the end of both, ``tape`` is the record of the causes.
    """

    rows: dict[bytes, bytes | None]
    index_rows: dict[bytes, bytes | None]
    cut: bytes
    tape: bytes
    positions: dict[str, int]
    measurements: list[Measurement]
