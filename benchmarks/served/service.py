"""A `tailrace` service as a process: started, waited for, looked at through /proc, and ended by its number."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
"""For how long nothing new may come. Generous: it only passes where something is broken."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LONGEST_NAP_S = 0.01


class BenchmarkError(Exception):
    """A case could not be measured."""


def wait_until(condition: Callable[[], bool], what: str, service: Service | None = None) -> None:
    """Look again and again, which costs a hundredth of a core. ``service``, if given, has to live meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if service is not None:
            service.require_life()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited in vain until {what}")
        time.sleep(_LONGEST_NAP_S)


class Service:
    """``tailrace run``, its worker processes included. A context manager: at its end nothing of it is left."""

    def __init__(self, said: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT / "framework"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._said = said
        with said.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "run", *map(str, arguments), "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # so that Ctrl-C reaches the benchmark alone, which then ends it
                env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **(environment or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- its life

    def wait_for_partitions(self, count: int) -> None:
        """Until so many have been restored and are at work."""
        wait_until(lambda: self.running() >= count, "the partitions run", self)

    def running(self) -> int:
        """How many have been restored so far."""
        return sum(one["message"] == "a partition runs" for one in self._logged())

    def stop(self) -> None:
        """Let it commit and leave; its workers leave before it does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """kill -9. Workers of a service that has several leave by themselves."""
        self._process.kill()
        self._process.wait()

    def require_life(self) -> None:
        """Raises BenchmarkError, with what it has said, if it has ended."""
        if self._process.poll() is not None:
            raise BenchmarkError(f"the service has ended:\n{self._said.read_text('utf-8')}")

    # --- what can be seen of it

    def processor_s(self) -> float:
        """Processor time of its workers so far, all their threads together."""
        return sum(map(_processor_s, self._workers()))

    def resident_bytes(self) -> int:
        """Memory that its workers have now."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._workers())
        return sum(pages) * resource.getpagesize()

    def settle(self) -> None:
        """Until it rests: what it does after a commit has become visible belongs to it too."""
        before = self.processor_s()
        while True:
            time.sleep(0.05)
            now = self.processor_s()
            if now - before < 0.01:
                return
            before = now

    def _workers(self) -> list[int]:
        started = [one["worker_process"] for one in self._logged() if one["message"] == "a worker is started"]
        return started or [self._process.pid]

    def _logged(self) -> list[dict[str, Any]]:
        lines = self._said.read_bytes().splitlines(keepends=True)
        return [msgspec.json.decode(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]


def _processor_s(pid: int) -> float:
    # The number of the clock is what clock_getcpuclockid(3) gives on Linux; /proc/<pid>/stat only counts hundredths.
    return time.clock_gettime(~pid << 3 | 2)


class Cores:
    """How many cores of the machine were free for what is measured: those that nobody else kept busy."""

    def __init__(self) -> None:
        self._before = _machine()
        self._own_s = time.process_time()

    def free(self, measured_s: float) -> float:
        """Since it was made; ``measured_s`` is the processor time of what is measured. This process is not others."""
        own_s = measured_s + time.process_time() - self._own_s
        busy, idle = (now - before for now, before in zip(_machine(), self._before, strict=True))
        cores = os.cpu_count() or 1
        others = max(0.0, busy - own_s) / max(busy + idle, 0.01)
        return cores * (1 - others)


def _machine() -> tuple[float, float]:
    """Seconds that all cores together have been busy, and idle."""
    fields = [int(one) / TICKS_PER_S for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, idle
