"""Cleans the log while a service runs: when a cleaning is due, in a process of its own.

Theory. The owner of partition 0 checks at intervals whether a cleaning is due, without reading records. If it is, the owner
starts a process with a lower priority than the service. No part of the cleaning is done between two commits; a commit may
only have to wait for one of its short transactions. If several services on one log start a cleaning at once, the first
cleans and the others exit. The process may be killed at any moment, and ends with the process that started it.

A bounded run cleans after its work, before it exits. On Kafka the brokers delete and compact: no cleaning is ever due there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing

from tailrace.core.errors import TailraceError
from tailrace.log.interface import StoredLog
from tailrace.log.opening import open_log
from tailrace.log.options import LogOptions
from tailrace.processes.child_process import BackgroundProcess
from tailrace.processes.logs import LogFormat
from tailrace.runtime.companions import Companion

_log = logging.getLogger("tailrace.housekeeping")

LOOK_S = 10.0
_PAUSE = 3
"""After a cleaning, the next look is later by so many times its duration."""
_NAP_S = 0.1


class Housekeeping(Companion):
    """Cleans the log of a service."""

    name = "cleaning the log"

    def __init__(
        self, log: StoredLog, options: LogOptions, log_format: LogFormat, look_s: float = LOOK_S
    ) -> None:
        self._log = log
        self._options = options
        self._look_s = look_s
        self._look_at_s = time.monotonic() + look_s
        self._cleaning = BackgroundProcess("cleaning", log_format, _work)

    def look(self) -> None:
        """Begin a cleaning if it is time to look for one, and one is due."""
        now_s = time.monotonic()
        if now_s < self._look_at_s or not self.is_here:
            return
        self._look_at_s = now_s + self._look_s
        if self._cleaning.is_busy:
            if self._cleaning.is_done:
                # If it could not clean now, as another was at it or there is no room, the next tries later.
                self._look_at_s += _PAUSE * self._cleaning.took_s
                self._cleaning.close()
        elif self._is_due():
            self._begin()

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Clean if that is due, and wait until it is done, or until it is to stop."""
        if not self._cleaning.is_busy and self._is_due():
            self._begin()
        while self._cleaning.is_busy and not self._cleaning.is_done and not is_stopped():
            self._cleaning.join(_NAP_S)
        self._cleaning.close()

    def close(self) -> None:
        """Clean at the end of a bounded run. Otherwise stop a cleaning in progress: the next one resumes where it stopped."""
        host = self.host
        if host is not None and host.has_ended:
            self.finish(lambda: host.stopped)
        self._cleaning.close()

    def _is_due(self) -> bool:
        try:
            return self._log.cleaning_is_due()
        except TailraceError as error:
            _log.warning("cannot find out whether the log must be cleaned: %s", error)
            return False

    def _begin(self) -> None:
        self._cleaning.begin(self._log.place, self._options)


def _work(place: str, options: LogOptions) -> None:
    """The whole work of a process that cleans."""
    begun_s = time.monotonic()
    try:
        with closing(open_log(place, options)) as log:
            done = log.clean()
    except TailraceError as error:
        _log.warning("the log was not cleaned: %s", error)
        return
    if done.blocks_rewritten or done.blocks_deleted:
        _log.info(
            "cleaning the log",
            extra={
                "bytes_before": done.bytes_before,
                "bytes_after": done.bytes_after,
                "blocks_rewritten": done.blocks_rewritten,
                "blocks_deleted": done.blocks_deleted,
                "took_s": round(time.monotonic() - begun_s, 1),
            },
        )
