"""Keeping the log small beside a running service: a cleaning when one is due, in a process of its own.

Theory. Who owns partition 0 looks now and then whether a cleaning is due, which reads no records. If one is, a process is
begun for it that is nicer than the service: nothing of the work is done between two commits, and what they may have to
wait for is a frame that names a new segment. Several services on one log may begin one at once; the first cleans, the
others leave. It may be killed at any moment, and ends with whoever began it.

A bounded run is often over before its cleaning is. It cleans once its work is done, before it leaves.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from tailrace.core.errors import TailraceError
from tailrace.log.embedded import EmbeddedLog, LogOptions
from tailrace.runtime import logs
from tailrace.runtime.logs import LogFormat

_log = logging.getLogger("tailrace.housekeeping")

LOOK_S = 10.0
_NICER = 10
_PAUSE = 3
"""So many times longer than a cleaning has taken it is not looked again."""
_NAP_S = 0.1


class Housekeeping:
    """Looks after a log for a service; ``look`` is called often, and ``close`` in the end."""

    def __init__(
        self, log: EmbeddedLog, options: LogOptions, log_format: LogFormat, look_s: float = LOOK_S
    ) -> None:
        self._log = log
        self._options = options
        self._format = log_format
        self._look_s = look_s
        self._look_at_s = time.monotonic() + look_s
        self._process: SpawnProcess | None = None
        self._begun_s = 0.0

    def look(self) -> None:
        """Begin a cleaning if it is time to look, and one is due. Costs next to nothing otherwise."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + self._look_s
        if self._process is not None:
            if not self._process.is_alive():
                self.close()
                # If it could not clean now, as another was at it or there is no room, the next tries later.
                self._look_at_s += _PAUSE * (now_s - self._begun_s)
        elif self._is_due():
            self._begin()

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Clean if that is due, and wait until it is done, or until it is to stop."""
        if self._process is None and self._is_due():
            self._begin()
        while self._process is not None and self._process.is_alive() and not is_stopped():
            self._process.join(_NAP_S)
        self.close()

    def _is_due(self) -> bool:
        try:
            return self._log.cleaning_is_due()
        except TailraceError as error:
            _log.warning("it is not known whether the log is to be cleaned: %s", error)
            return False

    def _begin(self) -> None:
        self._begun_s = time.monotonic()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_work, args=(self._log.path, self._options, self._format), name="cleaning", daemon=True
        )
        self._process.start()

    def close(self) -> None:
        """End a cleaning that is under way; the next goes on where it was."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            process.close()


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


def _work(path: Path, options: LogOptions, log_format: LogFormat) -> None:
    """The whole life of a process that cleans."""
    # What Ctrl-C and SIGTERM mean is for the service to say, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICER)
    logs.configure(log_format)
    try:
        with closing(EmbeddedLog(path, options, create=False)) as log:
            _clean(log)
    except TailraceError as error:
        _log.warning("the log is not cleaned: %s", error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)
