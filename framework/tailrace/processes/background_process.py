"""Work beside a service: in a process of its own, nicer than the service, that may be ended at any moment.

It does what takes long and is not urgent: cleaning the log, taking snapshots. It ends with whoever began it, however that
ended; what the process does has to bear that.
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
    """One process at a time that runs ``work(*arguments)``, which can be sent to it."""

    def __init__(self, name: str, log_format: LogFormat, work: Callable[..., None]) -> None:
        self._name = f"the process for the {name}"
        self._conduct = Conduct(log_format=log_format, niceness=_NICER)
        self._work = work
        self._process: ChildProcess | None = None
        self._begun_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a process was begun and has not been closed."""
        return self._process is not None

    @property
    def is_done(self) -> bool:
        """Whether the process that was begun has come to its end."""
        return self._process is not None and not self._process.is_alive

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative for a signal; None if it has not."""
        return None if self._process is None or self._process.is_alive else self._process.exit_code

    @property
    def took_s(self) -> float:
        """For how long the process has been there."""
        return time.monotonic() - self._begun_s

    def begin(self, *arguments: Any) -> None:
        """Begin a process. Where the system gives none, that is said, and it is as if nothing had been begun."""
        self.close()
        self._begun_s = time.monotonic()
        try:
            self._process = ChildProcess(self._name, _live, self._work, arguments, conduct=self._conduct)
        except WorkerLostError as error:
            _log.warning("%s", error)

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long."""
        if self._process is not None:
            self._process.join(timeout_s)

    def close(self) -> None:
        """End it, if it is under way, and forget it."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


def _live(_pipe: Pipe, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    work(*arguments)
