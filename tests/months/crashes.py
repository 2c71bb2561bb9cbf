"""A service that dies: in this process at an operation of the log, or as a process of its own by SIGKILL."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tailrace.log.options import LogOptions
from tailrace.runtime import service as serving
from tailrace.runtime.worker import Worker
from tailrace.testing.strikes import Kill
from tests.soak.struck import StruckLog, drop


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

    run_worker = serving.run_worker

    def run(worker: Worker, steer: Any) -> None:
        try:
            run_worker(worker, steer)
        except Kill:
            drop(worker)
            raise

    with patch.object(serving, "EmbeddedLog", opened), patch.object(serving, "run_worker", run):
        try:
            yield lambda: left <= 0
        except Kill:
            pass
