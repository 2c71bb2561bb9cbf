"""The progress of a service: measured by workers, summed over processes, logged while it catches up."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from tailrace.core.declare.plan import Plan

_log = logging.getLogger("tailrace.progress")

BEHIND = 1_000
"""A service that is this many records behind is catching up. Smaller numbers come and go with a producer's commits."""
_EVERY_S = 10.0
"""Interval of the log lines."""

STARTING = -1
"""The phase in which the workers of a service start their tasks, and none takes a record.

An input that was idle before a stop counts again after it, and a task publishes this with its first commit. The readers of
its outputs, in any process, must learn of it before they take a record.
"""

READING = 0
"""The phase in which inputs are read: the only one of a run until the end of the log, which ends no input.

The end of input has more phases. In the first one idle inputs count again: the end moves from level to level, and an operator whose
turn has not come holds its readers. Then there are two phases for each level of the app's operators: the inputs of the level end,
and the actors of the level rise to their latest timers until all have fired. Between two phases all consequences of the one before
are done, in all tasks.
"""


def last_phase(plan: Plan, *, ends_input: bool = True) -> int:
    """The phase after which a bounded run stops: the one in which all stages have finished, if its inputs end."""
    return 1 + 2 * plan.stages if ends_input else READING


class Status(msgspec.Struct, frozen=True):
    """The status of one worker."""

    partitions: int
    running: int
    """Number of running partitions; the others wait for another try."""
    records: int
    """Taken since the worker began."""
    lag: int
    """Records that are there to be read by the running partitions."""
    watermark_ms: int | None
    """The least of its tasks; None as long as one of them has none."""
    phase: int
    quiet: bool
    """The last turn found nothing to do, nothing to read and nothing to commit."""
    turns: int
    """In which something was done. Between two equal ones nothing has happened."""
    started: bool = True
    """Its tasks were started, and have committed what they owed."""


def total(statuses: Iterable[Status]) -> Status:
    """Several workers as one."""
    found = list(statuses)
    marks = [one.watermark_ms for one in found]
    known = [mark for mark in marks if mark is not None]
    return Status(
        partitions=sum(one.partitions for one in found),
        running=sum(one.running for one in found),
        records=sum(one.records for one in found),
        lag=sum(one.lag for one in found),
        watermark_ms=min(known) if known and len(known) == len(marks) else None,
        phase=min((one.phase for one in found), default=READING),
        quiet=all(one.quiet for one in found),
        turns=sum(one.turns for one in found),
        started=all(one.started for one in found),
    )


class ProgressLog:
    """Logs the progress of a service that catches up, at intervals.

    A service with a task that waits for another try has not caught up: the lag of such a task is not known.
    """

    def __init__(self, app: str) -> None:
        self._app = app
        self._before = (0.0, 0)
        self._catching_up = False
        self._logged_s = 0.0

    def report(self, status: Status, elapsed_s: float, now_ms: int) -> None:
        """Called each second. ``elapsed_s`` is by a clock that only goes forward."""
        rate = 0.0
        if elapsed_s > self._before[0]:
            # A worker that was started again counts from nothing.
            rate = max(0, status.records - self._before[1]) / (elapsed_s - self._before[0])
        self._before = elapsed_s, status.records
        if self._catching_up:
            ends = status.running == status.partitions and status.lag <= min(BEHIND, max(rate, 1))
        elif status.lag > BEHIND:
            ends, self._logged_s = False, elapsed_s - _EVERY_S
        else:
            return
        self._catching_up = not ends
        if ends or elapsed_s - self._logged_s >= _EVERY_S:
            self._logged_s = elapsed_s
            message = "caught up" if ends else "catching up"
            _log.info(message, extra={"app": self._app, **_fields(status, rate, now_ms)})


def _fields(status: Status, rate: float, now_ms: int) -> dict[str, object]:
    mark = status.watermark_ms
    return {
        "records_per_s": round(rate),
        "lag": status.lag,
        "watermark_ms": mark,
        "watermark_delay_ms": None if mark is None else max(0, now_ms - mark),
        "running": status.running,
        "partitions": status.partitions,
    }
