"""The progress of a service: measured by workers, summed over processes, shown while it catches up."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.processes.logs import CLEAR_LINE
from tailrace.runtime.partition import Partition

_log = logging.getLogger("tailrace.progress")

BEHIND = 1_000
"""A service that is this many records behind is catching up. Smaller numbers come and go with a producer's commits."""
_EVERY_LOGGED_S = 10.0


STARTING = -1
"""The phase in which the workers of a service start their tasks, and none takes a record.

An input that was idle before a stop counts again after it, and a task publishes this with its first commit. The readers of
its outputs, in any process, must learn of it before they take a record.
"""

READING = 0
"""The phase of a bounded run in which its inputs are read.

In the next phase idle inputs count again: the end of input moves from level to level, and an operator whose turn has not come
holds its readers. Then there are two phases for each level of the app's operators: the inputs of the level end, and the
actors of the level rise to their latest timers. Between two phases all consequences of the one before are done, in all tasks.
"""


def last_phase(plan: Plan) -> int:
    """The phase in which all levels have finished."""
    return 1 + 2 * plan.levels


def enter_phases(partition: Partition, phase: int) -> None:
    """Bring a partition that was just restored to a phase. What has ended before, and was committed, ends no second time."""
    for one in range(1, phase + 1):
        enter_phase(partition, one)


def enter_phase(partition: Partition, phase: int) -> None:
    """Have a partition do what a phase of a bounded run asks for."""
    if phase == 1:
        partition.begin_end()
        return
    level, second = divmod(phase - 2, 2)
    if second:
        partition.finish(level)
    else:
        partition.end_inputs(level)


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
    """Shows the progress of a service that catches up: one line that is overwritten on a terminal, else log lines at intervals.

    ``terminal`` is where the line goes; None if there is none. A service with a task that waits for another try has not caught
    up: the lag of such a task is not known.
    """

    def __init__(self, app: str, terminal: TextIO | None) -> None:
        self._app = app
        self._terminal = terminal
        self._before = (0.0, 0)
        self._catching_up = False
        self._logged_s = 0.0

    def report(self, status: Status, elapsed_s: float, now_ms: int) -> None:
        """Tell if there is something to tell. ``elapsed_s``: by a clock that only goes forward; call it each second."""
        rate = 0.0
        if elapsed_s > self._before[0]:
            # A worker that was started again counts from nothing.
            rate = max(0, status.records - self._before[1]) / (elapsed_s - self._before[0])
        self._before = elapsed_s, status.records
        if not self._catching_up:
            if status.lag <= BEHIND:
                return
            self._catching_up = True
            self._logged_s = elapsed_s - _EVERY_LOGGED_S
        elif status.running == status.partitions and status.lag <= min(BEHIND, max(rate, 1)):
            self._catching_up = False
            self.clear()
            _log.info("caught up", extra={"app": self._app, **_fields(status, rate, now_ms)})
            return
        if self._terminal is not None:
            self._terminal.write(f"{CLEAR_LINE}{progress_line(self._app, status, rate, now_ms)}")
            self._terminal.flush()
        elif elapsed_s - self._logged_s >= _EVERY_LOGGED_S:
            self._logged_s = elapsed_s
            _log.info("catching up", extra={"app": self._app, **_fields(status, rate, now_ms)})

    def clear(self) -> None:
        """Take the line away."""
        if self._terminal is not None:
            self._terminal.write(CLEAR_LINE)
            self._terminal.flush()


def progress_line(app: str, status: Status, rate: float, now_ms: int) -> str:
    """``flights: 98,765 records/s, 1,234,567 to go (12s), event time 2013-04-05 12:00 (12y behind)``."""
    left = f" ({_roughly(status.lag / rate)})" if rate >= 1 else ""
    line = f"{app}: {rate:,.0f} records/s, {status.lag:,} to go{left}"
    if status.watermark_ms is not None:
        at = datetime.fromtimestamp(status.watermark_ms / 1000, UTC)
        behind = _roughly(max(0, now_ms - status.watermark_ms) / 1000)
        line += f", event time {at:%Y-%m-%d %H:%M} ({behind} behind)"
    if status.running < status.partitions:
        line += f", {status.partitions - status.running} of {status.partitions} partitions are not running"
    return line


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


def _roughly(seconds: float) -> str:
    for name, length in (("y", 31_557_600), ("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{name}"
    return f"{seconds:.0f}s"
