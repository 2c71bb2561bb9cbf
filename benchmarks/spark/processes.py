"""Runs commands as processes, and measures the time of these and all their children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from benchmarks.served.service import ROOT, TICKS_PER_S, BenchmarkError

_SESSION, _TIMES = 3, slice(11, 15)
"""Fields of /proc/<pid>/stat behind the name: see proc(5)."""


class Spent(NamedTuple):
    """The time that a command took. ``processor_s`` is of all its processes, including children."""

    wall_s: float
    processor_s: float


def environment() -> dict[str, str]:
    """Environment variables with which a process finds the framework and the apps."""
    path = filter(None, (str(ROOT / "framework"), str(ROOT), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


class Command:
    """A running Tailrace command. Its output goes to a file, which is shown if the command fails."""

    def __init__(self, said: Path, *arguments: object) -> None:
        self._said = said
        self._start = perf_counter()
        with said.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(),
                start_new_session=True,
            )

    def ended(self) -> Spent | None:
        """The time it took, if it has ended successfully; None if it still runs."""
        return self._reaped(os.WNOHANG)

    def wait(self) -> Spent:
        """Wait until it has ended successfully. Returns the time it took."""
        try:
            spent = self._reaped(0)
        except BaseException:
            self.kill()
            raise
        assert spent is not None
        return spent

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def _reaped(self, options: int) -> Spent | None:
        pid, status, used = os.wait4(self._process.pid, options)
        if not pid:
            return None
        took_s = perf_counter() - self._start
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise BenchmarkError(f"the command has failed:\n{self._said.read_text('utf-8')}")
        return Spent(took_s, used.ru_utime + used.ru_stime)


def session_processor_s() -> float:
    """Processor time so far of all processes in this session, including descendants and ended processes."""
    own = os.getsid(0)
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile, and its time counts for its parent
        if int(fields[_SESSION]) == own:
            ticks += sum(map(int, fields[_TIMES]))
    return ticks / TICKS_PER_S
