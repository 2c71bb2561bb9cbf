"""Runs ``tailrace`` commands in processes of their own, as a user would, and several at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from services.demo.console import Console
from services.demo.process import Service, ServiceFailed

_LOOK_S = 0.05

_Of = TypeVar("_Of")
_Result = TypeVar("_Result")


class SideBySide:
    """Runs functions that wait for processes: as many at once as there are cores, and one more, as each computes only at times."""

    def __init__(self, threads: ThreadPoolExecutor, console: Console) -> None:
        self._threads, self._console = threads, console

    def begin(self, run: Callable[[_Of], _Result], *of: _Of) -> list[Future[_Result]]:
        """Run a function for each of these."""
        return [self._threads.submit(run, one) for one in of]

    def results(self, begun: Sequence[Future[_Result]], what: str) -> list[_Result]:
        """Wait until all have ended, and show as progress ``what`` they do. Raises the first error."""
        begun_s = time.monotonic()
        while wait(begun, _LOOK_S).not_done:
            self._console.progress(f"{time.monotonic() - begun_s:4.0f} s   {what}")
        return [one.result() for one in begun]


@contextmanager
def side_by_side(console: Console) -> Generator[SideBySide]:
    """What has not begun when the block ends is left out."""
    threads = ThreadPoolExecutor(1 + len(os.sched_getaffinity(0)))
    try:
        yield SideBySide(threads, console)
    finally:
        threads.shutdown(cancel_futures=True)


def run_command(service: Service, command: str, arguments: Sequence[str | Path]) -> tuple[int, bytes]:
    """Run a command. Returns its exit code and its output."""
    with _words(service, command).open("wb") as words:
        done = subprocess.run(
            [sys.executable, "-m", "tailrace", command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            check=False,
        )
    return done.returncode, done.stdout


def failed(service: Service, command: str, code: int) -> ServiceFailed:
    """The error for a command that has failed, with its last lines."""
    words = _words(service, command).read_text("utf-8", errors="replace").splitlines()[-3:]
    return ServiceFailed(
        "\n   ".join(
            [f"tailrace {command} of {service.name} has exited with code {code}; its last output:", *words]
        )
    )


def _words(service: Service, command: str) -> Path:
    """The file with the logs of a command."""
    return service.words.with_suffix(f".{command}.log")
