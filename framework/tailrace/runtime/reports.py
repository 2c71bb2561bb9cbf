"""What a service logs of itself: its progress, and its dead letters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tailrace.log.interface import ServiceLog
from tailrace.runtime.companions import Companion
from tailrace.runtime.dead_letter_monitor import DeadLetterMonitor, Kind
from tailrace.runtime.progress import ProgressLog, Status
from tailrace.runtime.worker import system_clock

_EVERY_S = 1.0


class Reports:
    """The reports of a service, in one process or several."""

    def __init__(self, app: str, log: ServiceLog) -> None:
        self._progress = ProgressLog(app)
        self._letters = DeadLetterMonitor(log, app)
        self._begun_s = self._told_s = time.monotonic()

    def look(self, status: Callable[[], Status | None]) -> None:
        """Report, if a second has passed since the last report. ``status`` returns None if there is nothing to show."""
        now_s = time.monotonic()
        if now_s - self._told_s < _EVERY_S:
            return
        self._told_s = now_s
        self._letters.look()
        found = status()
        if found is not None:
            self._progress.report(found, now_s - self._begun_s, system_clock())

    def finish(self) -> Counter[Kind]:
        """Log the number of dead letters and return it by kind, once all workers have stopped."""
        return self._letters.finish()


class Reporting(Companion):
    """The reports of a service in one process."""

    name = "the report of progress and dead letters"

    def __init__(self) -> None:
        self.letters = Counter[Kind]()
        """Of the run, once it is closed."""
        self._reports: Reports | None = None

    def begin(self) -> None:
        assert self.host is not None
        self._reports = Reports(self.host.plan.app, self.host.log)

    def look(self) -> None:
        assert self.host is not None
        assert self._reports is not None
        self._reports.look(self.host.worker.status)

    def close(self) -> None:
        if self._reports is not None:
            self.letters = self._reports.finish()
