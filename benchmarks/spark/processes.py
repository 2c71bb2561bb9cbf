"""Commands as processes of their own, with the time that they and all they start take."""

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
    """What something has taken. ``processor_s`` is of all its processes, children included."""

    wall_s: float
    processor_s: float


def environment() -> dict[str, str]:
    """What a process needs to find the framework and the apps."""
    path = filter(None, (str(ROOT / "framework"), str(ROOT), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


class Command:
    """A command line of Tailrace on its way. What it prints goes to a file, which is shown if it fails."""

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
        """What it has taken, if it has ended well."""
        return self._reaped(os.WNOHANG)

    def wait(self) -> Spent:
        """Until it has ended well."""
        try:
            spent = self._reaped(0)
        except BaseException:
            self.kill()
            raise
        assert spent is not None
        return spent

    def kill(self) -> None:
        """End it, if it has not ended."""
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
    """Processor time so far of all processes of this one's session: those it started, those they started, those gone."""
    own = os.getsid(0)
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile, and counts with its parent
        if int(fields[_SESSION]) == own:
            ticks += sum(map(int, fields[_TIMES]))
    return ticks / TICKS_PER_S
