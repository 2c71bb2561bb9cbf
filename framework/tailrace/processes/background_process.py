"""Work beside a service: in a process of its own, nicer than the service, that may be ended at any moment.

It does what takes long and is not urgent: cleaning the log, taking snapshots. It ends with whoever began it, however that
ended; what the process does has to bear that.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

from tailrace.processes import logs
from tailrace.processes.logs import LogFormat
from tailrace.processes.signals import held_back

_log = logging.getLogger("tailrace.beside")

_NICER = 10


class BackgroundProcess:
    """One process at a time that runs ``work(*arguments)``, which can be sent to it."""

    def __init__(self, name: str, log_format: LogFormat, work: Callable[..., None]) -> None:
        self._name = name
        self._format = log_format
        self._work = work
        self._process: SpawnProcess | None = None
        self._begun_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a process was begun and has not been closed."""
        return self._process is not None

    @property
    def is_done(self) -> bool:
        """Whether the process that was begun has come to its end."""
        return self._process is not None and not self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """How it ended; negative for a signal; None if it has not."""
        return None if self._process is None else self._process.exitcode

    @property
    def took_s(self) -> float:
        """For how long the process has been there."""
        return time.monotonic() - self._begun_s

    def begin(self, *arguments: Any) -> None:
        """Begin a process. Where the system gives none, that is said, and it is as if nothing had been begun."""
        self.close()
        self._begun_s = time.monotonic()
        process = multiprocessing.get_context("spawn").Process(
            target=_life, args=(self._format, self._work, arguments), name=self._name, daemon=True
        )
        try:
            with held_back():
                process.start()
        except OSError as error:
            _log.warning("no process can be begun for the %s: %s", self._name, error)
            return
        self._process = process

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long."""
        if self._process is not None:
            self._process.join(timeout_s)

    def close(self) -> None:
        """End it, if it is under way, and forget it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            process.close()


def _life(log_format: LogFormat, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # What Ctrl-C and SIGTERM mean is for the service to say, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICER)
    logs.configure(log_format)
    work(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)
