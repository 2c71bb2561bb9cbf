"""Programs that tests run beside them: each a process of its own, ended by the test that began it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.runtime.processes import PATIENCE_S, is_stopped

COMMON = """
import os, signal, sys, time
from pathlib import Path
from tailrace.core.errors import *
from tailrace.core.records import Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions

folder, *arguments = sys.argv[1:]
folder = Path(folder)

def say(*words):
    print(*words, flush=True)
"""


class Process:
    """A program that talks in lines."""

    def __init__(self, program: str, folder: Path, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMON + program, str(folder), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line; empty when there are no more."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def lines(self) -> list[str]:
        """All that is left to say, once the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read().splitlines()

    def report(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        """Wait for its end; its return code, negative for a signal."""
        return self.process.wait(PATIENCE_S)

    def is_stopped(self) -> bool:
        return is_stopped(self.process.pid)


@contextmanager
def running(program: str, folder: Path, *arguments: object) -> Generator[Process]:
    """A process for as long as the block lasts."""
    process = Process(program, folder, *arguments)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        for stream in (process.process.stdin, process.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
