"""Background work of a service: a separate process of lower priority, which may be killed at any moment.

It does work that is slow and not urgent: cleaning the log, taking snapshots. It ends with the process that started it, even if
that one is killed. So the work must tolerate a kill at any point.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tailrace.core.errors import WorkerLostError
from tailrace.processes.child_process import ChildProcess, Conduct, Pipe
from tailrace.processes.logs import LogFormat

_log = logging.getLogger("tailrace.beside")

_NICER = 10


class BackgroundProcess:
    """Runs ``work(*arguments)`` in a process, one at a time. ``work`` and its arguments must be picklable."""

    def __init__(self, name: str, log_format: LogFormat, work: Callable[..., None]) -> None:
        self._name = f"the process for the {name}"
        self._conduct = Conduct(log_format=log_format, niceness=_NICER)
        self._work = work
        self._process: ChildProcess | None = None
        self._begun_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a process was started and not closed yet."""
        return self._process is not None

    @property
    def is_done(self) -> bool:
        """Whether the started process has ended."""
        return self._process is not None and not self._process.is_alive

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process, negative for a signal; None if it has not ended."""
        return None if self._process is None or self._process.is_alive else self._process.exit_code

    @property
    def took_s(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._begun_s

    def begin(self, *arguments: Any) -> None:
        """Start a process. If the system cannot start one, log a warning; there is no process then."""
        self.close()
        self._begun_s = time.monotonic()
        try:
            self._process = ChildProcess(self._name, _live, self._work, arguments, conduct=self._conduct)
        except WorkerLostError as error:
            _log.warning("%s", error)

    def join(self, timeout_s: float) -> None:
        """Wait until the process ends, at most ``timeout_s``."""
        if self._process is not None:
            self._process.join(timeout_s)

    def close(self) -> None:
        """Kill the process if it still runs, and release it."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _live(_pipe: Pipe, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    work(*arguments)
