"""Settings that a driver gives to a task, and the batch of a commit."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.declare.user_metrics import Measurement
from tailrace.core.engine.waiting_runs import Scratch
from tailrace.core.handling.promises import Promises


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How a task works. Only the timer cap and the size limit can change a result."""

    cache_bytes: int = 256 << 20
    """Approximate memory limit for clean live instances; with ordered operators, a quarter of it for events that wait."""
    timers_in_memory: int = 200_000
    """Maximum number of timers in memory per time domain; others are read from the store when due."""
    firing_budget: int = 10_000
    """Maximum number of timers fired before a call returns to its driver."""
    timer_loop_cap: int = 1_000
    """How many times in a row a timer handler may set a timer at or before the time just fired, and at the end of
    input a later one.
    """
    timezones: str = ""
    """The version of this machine's time zone data, for the tape."""
    reload: bool = False
    """Decode every touched instance after each handler, so a live object equals its decoded encoding."""
    scratch: Scratch | None = None
    """Makes the files for events that wait and do not fit into memory; None: they stay in memory."""
    max_record_bytes: int = 1 << 62
    """The size limit of an output, key and value together. What is over it fails its unit, so a replay needs none."""
    promises: Promises | None = None
    """The published watermarks of the topics that the task writes, if its driver publishes any."""
    checked: bool = False
    """Look for state that was changed outside of its own handlers, at each touch and each commit. Decode
    again everything that is emitted and sent. For tests: it takes time.
    """


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """What must become durable together: ``rows`` in changelog and store, ``index_rows`` in the store alone.

    ``cut`` is written after both. ``tape`` is the record of the causes.
    """

    rows: dict[bytes, bytes | None]
    index_rows: dict[bytes, bytes | None]
    cut: bytes
    tape: bytes
    positions: dict[str, int]
    offsets: dict[str, int]
    """By input: the lowest offset that has not been handled."""
    measurements: list[Measurement]
