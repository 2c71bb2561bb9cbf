"""Cleans the log while a service runs: when a cleaning is due, in a process of its own.

Theory. The owner of partition 0 checks at intervals whether a cleaning is due, without reading records. If it is, the owner
starts a process with a lower priority than the service. No part of the cleaning is done between two commits; a commit may
only have to wait for one of its short transactions. If several services on one log start a cleaning at once, the first
cleans and the others exit. The process may be killed at any moment, and ends with the process that started it.

A bounded run often ends before its cleaning does. It cleans after its work, before it exits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tailrace.core.errors import TailraceError
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions
from tailrace.processes.background_process import BackgroundProcess
from tailrace.processes.logs import LogFormat
from tailrace.runtime.automatic_snapshots import AutomaticSnapshots

_log = logging.getLogger("tailrace.housekeeping")

LOOK_S = 10.0
_PAUSE = 3
"""So many times longer than a cleaning has taken it is not looked again."""
_NAP_S = 0.1


class Housekeeping:
    """Cleans the log and takes the snapshots of a service. ``look`` is called often, and ``close`` at the end."""

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
            _log.warning("cannot find out whether the log must be cleaned: %s", error)
            return False

    def _begin(self) -> None:
        self._cleaning.begin(self._log.path, self._options)

    def close(self) -> None:
        """Stop a cleaning in progress. The next one resumes where it stopped."""
        self._cleaning.close()
        if self._snapshots is not None:
            self._snapshots.close()


def _clean(log: EmbeddedLog) -> None:
    begun_s = time.monotonic()
    done = log.clean()
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


def _work(path: Path, options: LogOptions) -> None:
    """The whole work of a process that cleans."""
    try:
        with closing(EmbeddedLog(path, options, create=False)) as log:
            _clean(log)
    except TailraceError as error:
        _log.warning("the log was not cleaned: %s", error)
