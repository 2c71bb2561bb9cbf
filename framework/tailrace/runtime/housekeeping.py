"""Keeping the log small beside a running service: a cleaning when one is due, in a process of its own.

Theory. Who owns partition 0 looks now and then whether a cleaning is due, which reads no records. If one is, a process is
begun for it that is nicer than the service: nothing of the work is done between two commits, and what they may have to
wait for is a frame that names a new segment. Several services on one log may begin one at once; the first cleans, the
others leave. It may be killed at any moment, and ends with whoever began it.

A bounded run is often over before its cleaning is. It cleans once its work is done, before it leaves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tailrace.core.errors import TailraceError
from tailrace.log.embedded import EmbeddedLog, LogOptions
from tailrace.processes.background_process import BackgroundProcess
from tailrace.processes.logs import LogFormat
from tailrace.runtime.automatic_snapshots import AutomaticSnapshots

_log = logging.getLogger("tailrace.housekeeping")

LOOK_S = 10.0
_PAUSE = 3
"""So many times longer than a cleaning has taken it is not looked again."""
_NAP_S = 0.1


class Housekeeping:
    """Looks after a log for a service, and has its snapshots taken; ``look`` is called often, and ``close`` in the end."""

    def __init__(
        self,
        log: EmbeddedLog,
        options: LogOptions,
        log_format: LogFormat,
        look_s: float = LOOK_S,
        snapshots: AutomaticSnapshots | None = None,
    ) -> None:
        self._log = log
        self._options = options
        self._look_s = look_s
        self._look_at_s = time.monotonic() + look_s
        self._cleaning = BackgroundProcess("cleaning", log_format, _work)
        self._snapshots = snapshots

    def look(self) -> None:
        """Begin what it is time for, and is due. Costs next to nothing otherwise."""
        if self._snapshots is not None:
            self._snapshots.look()
        now_s = time.monotonic()
        if now_s < self._look_at_s:
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
        self.close()

    def _is_due(self) -> bool:
        try:
            return self._log.cleaning_is_due()
        except TailraceError as error:
            _log.warning("it is not known whether the log is to be cleaned: %s", error)
            return False

    def _begin(self) -> None:
        self._cleaning.begin(self._log.path, self._options)

    def close(self) -> None:
        """End what is under way; the next goes on where it was."""
        self._cleaning.close()
        if self._snapshots is not None:
            self._snapshots.close()


def _clean(log: EmbeddedLog) -> None:
    begun_s = time.monotonic()
    done = log.clean()
    if done.segments_rewritten or done.segments_deleted:
        _log.info(
            "the log is cleaned",
            extra={
                "bytes_before": done.bytes_before,
                "bytes_after": done.bytes_after,
                "segments_rewritten": done.segments_rewritten,
                "segments_deleted": done.segments_deleted,
                "took_s": round(time.monotonic() - begun_s, 1),
            },
        )


def _work(path: Path, options: LogOptions) -> None:
    """The whole work of a process that cleans."""
    try:
        with closing(EmbeddedLog(path, options, create=False)) as log:
            _clean(log)
    except TailraceError as error:
        _log.warning("the log is not cleaned: %s", error)
