"""Runs a `tailrace` service as a process, observes it through /proc, and ends it by its process id."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
"""How long there may be no progress. Generous, as it expires only if something is broken."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LONGEST_NAP_S = 0.01


class BenchmarkError(Exception):
    """A case could not be measured."""


def wait_until(condition: Callable[[], bool], what: str, service: Service | None = None) -> None:
    """Poll a condition, which costs a hundredth of a core. ``service``, if given, must stay alive meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if service is not None:
            service.require_life()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited in vain until {what}")
        time.sleep(_LONGEST_NAP_S)


def settled(processor_s: Callable[[], float]) -> None:
    """Wait until what uses this processor time is idle."""
    before = processor_s()
    while True:
        time.sleep(0.05)
        now = processor_s()
        if now - before < 0.01:
            return
        before = now


class Service:
    """``tailrace run`` with its worker processes. A context manager; at its end no process is left."""

    def __init__(self, said: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join([str(ROOT / "framework"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._said = said
        with said.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "run", *map(str, arguments), "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # so that Ctrl-C reaches only the benchmark, which then ends the service
                env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), **(environment or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- its life

    def wait_for_partitions(self, count: int) -> None:
        """Wait until this many partitions are restored and running."""
        wait_until(lambda: self.running() >= count, "the partitions run", self)

    def running(self) -> int:
        """Number of partitions restored so far."""
        return sum(one["message"] == "a partition runs" for one in self._logged())

    def port(self) -> int:
        """The port at which it answers over HTTP, once it does."""
        wait_until(lambda: port_of(self._logged()) > 0, "it answers over HTTP", self)
        return port_of(self._logged())

    def wait_for_tasks(self, count: int) -> None:
        """Wait until the group has given exactly this number of tasks to this process, on Kafka. They may not run yet."""
        wait_until(lambda: self.tasks() == count, "the group has given its tasks", self)

    def wait_for_standbys(self, count: int) -> None:
        """Wait until this process has a copy of the state of exactly this number of tasks of others, on Kafka."""
        wait_until(lambda: self.standbys() == count, "standbys have the state", self)

    def tasks(self) -> int:
        """On Kafka, the number of tasks that the group has given to this process."""
        return len(group_tasks(self._logged()).owned)

    def standbys(self) -> int:
        """On Kafka, the number of tasks of others whose state this process has got a copy of."""
        return len(group_tasks(self._logged()).copied)

    def stop(self) -> None:
        """Stop the service: it commits and exits, after its workers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """kill -9. If the service has several workers, they exit by themselves."""
        self._process.kill()
        self._process.wait()

    def require_life(self) -> None:
        """Raise BenchmarkError with its output if the service has ended."""
        if self._process.poll() is not None:
            raise BenchmarkError(f"the service has ended:\n{self._said.read_text('utf-8')}")

    # --- what can be seen of it

    def processor_s(self) -> float:
        """Processor time of its workers so far, of all threads together."""
        return sum(map(_processor_s, self._workers()))

    def resident_bytes(self) -> int:
        """Current memory of its workers."""
        pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._workers())
        return sum(pages) * resource.getpagesize()

    def settle(self) -> None:
        """Wait until the service is idle: work after a visible commit counts, too."""
        settled(self.processor_s)

    def _workers(self) -> list[int]:
        started = [one["worker_process"] for one in self._logged() if one["message"] == "a worker is started"]
        return started or [self._process.pid]

    def _logged(self) -> list[dict[str, Any]]:
        return logged(self._said)


def logged(said: Path) -> list[dict[str, Any]]:
    """The log lines that a process has written to a file so far."""
    lines = said.read_bytes().splitlines(keepends=True)
    return [msgspec.json.decode(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]


def port_of(lines: Iterable[Mapping[str, Any]]) -> int:
    """The port at which a process answers over HTTP; 0 if it does not say it yet."""
    return next((one["port"] for one in lines if one["message"] == "answering"), 0)


class GroupTasks(NamedTuple):
    """The tasks of an app that a process owns, and those of which it has had a copy of the state since it last owned them."""

    owned: set[int]
    copied: set[int]


def group_tasks(logged: Iterable[Mapping[str, Any]]) -> GroupTasks:
    """What the log lines of a process say of the tasks that its group has given to it."""
    owned: set[int] = set()
    copied: set[int] = set()
    for line in logged:
        match line["message"]:
            case "tasks were given to this process":
                owned |= set(line["partitions"])
                copied -= owned
            case "tasks were given back":
                owned -= set(line["partitions"])
            case "a standby has the state of a task":
                copied.add(line["partition"])
            case _:
                pass
    return GroupTasks(owned, copied)


def _processor_s(pid: int) -> float:
    # The clock id of clock_getcpuclockid(3) on Linux; /proc/<pid>/stat counts only in hundredths of a second.
    return time.clock_gettime(~pid << 3 | 2)


class Cores:
    """The number of cores that were not used by other processes during a measurement."""

    def __init__(self) -> None:
        self._before = _machine()
        self._own_s = time.process_time()

    def free(self, measured_s: float) -> float:
        """Free cores since the creation of this object. The measured work (``measured_s`` of processor time) and this process
        do not count as others."""
        own_s = measured_s + time.process_time() - self._own_s
        busy, idle = (now - before for now, before in zip(_machine(), self._before, strict=True))
        cores = os.cpu_count() or 1
        others = max(0.0, busy - own_s) / max(busy + idle, 0.01)
        return cores * (1 - others)


def _machine() -> tuple[float, float]:
    """Busy and idle seconds of all cores together."""
    fields = [int(one) / TICKS_PER_S for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, idle
