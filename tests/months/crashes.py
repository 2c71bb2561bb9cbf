"""A service that dies: in this process at an operation of the log, or as a process of its own by SIGKILL."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tailrace.log.options import LogOptions
from tailrace.runtime import host
from tailrace.runtime.worker import Worker
from tests.cast.world import StruckLog, drop
from tests.proof.strikes import Kill


@contextmanager
def killed_after(operations: int) -> Generator[Callable[[], bool]]:
    """A service that runs in here dies at an operation of the log; yields whether it did."""
    left = operations

    def tick(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Kill

    def opened(path: Path, options: LogOptions, *, create: bool) -> StruckLog:
        return StruckLog(path, tick, options)

    live = Worker.live

    def until_killed(worker: Worker, begin: Callable[[], None]) -> None:
        try:
            live(worker, begin)
        except Kill:
            drop(worker)
            raise

    with patch.object(host, "open_log", opened), patch.object(Worker, "live", until_killed):
        try:
            yield lambda: left <= 0
        except Kill:
            pass
