"""The clocks of a service, and what it does if the wall clock cannot be right.

Theory. *Durations* (``idle_after``, the commit interval, the time that an operator is held) are measured by the monotonic
clock: a correction of the wall clock neither makes an input idle nor delays a commit. *Instants* (``ctx.now``, processing-time
timers, times in records) are wall time. A task's clock never goes back, so one reading that is far ahead fires every
processing-time timer up to it, and then stops processing time until the wall clock is there, too. Two checks prevent this:

    while running     between two readings the wall clock advances by the same time as the time since boot, which counts
                      a suspended machine too. A difference of more than a day is an error, ahead or back
    at a start        the reading may be more than a day after the last one of the task only if the service was stopped
                      for so long: a record in an input that is less than a day from the reading shows that time has
                      passed. Otherwise, and if the reading is more than a day *before* the last one, the start is refused

Less than a day is taken as it is. From a minute on, a clock that is set, and a task that starts ahead of the clock, are logged.

A running task reads the clock at least every six hours, so the last reading of a task that was stopped a moment ago is recent,
even if no record has come for weeks. A bounded run reads it only with a record or a timer, and is checked then: with nothing
to do it changes nothing. ``--accept-clock`` and a start from a snapshot, whose last reading may be a time in a history that
was rebuilt, skip the check at the start, and take the reading at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from tailrace.core.declare.plan import Plan
from tailrace.core.durations import A_DAY_MS, A_MINUTE_MS, spelled
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.task import Task
from tailrace.core.errors import ClockError
from tailrace.history.reading.stretches import last
from tailrace.history.status.inspection import stands_still
from tailrace.log.interface import Log

_log = logging.getLogger("tailrace.service")

Clock: TypeAlias = Callable[[], int]
"""Gives the present instant in milliseconds since the epoch."""

READ_EVERY_MS = A_DAY_MS // 4
"""The longest time between two clock readings of a running task."""
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ms() -> int:
    """Milliseconds by a clock that nobody sets. It stands still while the machine is suspended."""
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _since_boot_ms() -> int:
    return time.clock_gettime_ns(_BOOT) // 1_000_000


class WallClock:
    """The wall clock, checked at each reading against the time since boot."""

    def __init__(self, wall_ms: Clock = _wall_ms, since_boot_ms: Clock = _since_boot_ms) -> None:
        self._wall_ms, self._since_boot_ms = wall_ms, since_boot_ms
        self._offset_ms = wall_ms() - since_boot_ms()
        """Between the two clocks at the last reading. Slow corrections change it."""

    def __call__(self) -> int:
        """The present instant, in milliseconds since the epoch. Raises ClockError if it has jumped."""
        now_ms = self._wall_ms()
        offset_ms = now_ms - self._since_boot_ms()
        jumped_ms = offset_ms - self._offset_ms
        if abs(jumped_ms) > A_DAY_MS:
            raise ClockError(
                f"the clock was set {_days(jumped_ms)} {'ahead' if jumped_ms > 0 else 'back'} while the service was running: it "
                f"reads {instant(now_ms)}",
                hint="Nothing was done by this reading. Set the clock, and start the service again. If the clock is right "
                "now, start with --accept-clock.",
            )
        self._offset_ms = offset_ms
        if abs(jumped_ms) > A_MINUTE_MS:
            _log.warning(
                "the clock was set %s %s while the service was running, and reads %s%s",
                spelled(abs(jumped_ms) // 1_000 * 1_000),
                "ahead" if jumped_ms > 0 else "back",
                instant(now_ms),
                "" if jumped_ms > 0 else ": processing time stands still until it is as far as before",
            )
        return now_ms


def steps_forward(clock: Clock) -> Clock:
    """The time that passes by a simulated clock: the sum of its steps forward."""
    reading_ms, passed_ms = clock(), 0

    def elapsed_ms() -> int:
        nonlocal reading_ms, passed_ms
        now_ms = clock()
        passed_ms += max(0, now_ms - reading_ms)
        reading_ms = now_ms
        return passed_ms

    return elapsed_ms


def check_start(task: Task, log: Log, now_ms: int) -> None:
    """Check the reading with which a task continues. Raises ClockError: see the head of this file."""
    ahead_ms = now_ms - task.now
    if not task.now or abs(ahead_ms) <= A_DAY_MS or (ahead_ms > 0 and _is_confirmed(task.plan, log, now_ms)):
        if -ahead_ms > A_MINUTE_MS:
            _log.warning("%s", stands_still(task.partition, task.now, now_ms), extra={"app": task.plan.app})
        return
    what = (
        f"the clock reads {instant(now_ms)}, {_days(ahead_ms)} {'after' if ahead_ms > 0 else 'before'} the last reading of "
        f"task {task.partition} of the app {task.plan.app!r} ({instant(task.now)})"
    )
    if ahead_ms < 0:
        raise ClockError(
            f"{what}: processing time would stand still until then",
            hint="Set the clock, or start again from a snapshot that was taken before that reading. With --accept-clock the "
            "service runs, and processing-time timers up to that instant have fired.",
        )
    raise ClockError(
        f"{what}, and no input has a record within a day of it",
        hint="A wrong reading would fire all processing-time timers up to it, and cannot be undone. If the clock is right (the "
        "service, and all that writes to its inputs, were stopped for so long): start with --accept-clock.",
    )


def _is_confirmed(plan: Plan, log: Log, now_ms: int) -> bool:
    """Whether an input has a record from about this time. An input whose events may lie in the future cannot tell."""
    inputs = [
        one.name
        for one in plan.inputs
        if not one.own and not one.is_inbox and (one.ahead_of_clock_ms or 0) <= A_DAY_MS
    ]
    newest = (last(log, name, number) for name in inputs for number in range(plan.partitions))
    return any(one is not None and abs(now_ms - one.timestamp_ms) <= A_DAY_MS for one in newest)


def _days(by_ms: int) -> str:
    """A time of more than a day, in whole days."""
    return spelled(abs(by_ms) // A_DAY_MS * A_DAY_MS)
