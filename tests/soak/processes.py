"""Processes of the soak: in a session each, so that all of their descendants can be found by it, and ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0
"""Generous: it only passes where something is broken, or the machine is very busy."""
DUMP = signal.SIGUSR1
"""Makes a process of the soak print the stacks of its threads; see ``apps``."""


def wait_until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Ask again and again. What takes long to ask is asked less often: the processes that are waited for need the processor."""
    deadline_s = time.monotonic() + patience_s
    while True:
        asked_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        assert now_s < deadline_s, f"waited in vain until {what}"
        time.sleep(min(0.5, max(0.02, 3 * (now_s - asked_s))))


UNLIMITED = resource.RLIM_INFINITY


def limit_files(pid: int, size: int) -> None:
    """Let a process write files up to this size only. What it writes past that is refused, as by a full disk."""
    try:
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size if size >= 0 else most, most))
    except ProcessLookupError:
        pass


class Process:
    """One process and its descendants. What it says goes to a file."""

    def __init__(self, said: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        self.said = said
        path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
        with said.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            )
        self.pid = self._process.pid

    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    def ended(self) -> int:
        """Its exit code, once it and all its descendants have ended."""
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.signal(DUMP, self.members())
            time.sleep(1.0)
            raise AssertionError(
                f"{self.said.name} does not end; its threads: {self.text()[-6_000:]}"
            ) from None
        wait_until(lambda: not self.members(), f"the descendants of {self.pid} have ended")
        return code

    def members(self) -> list[int]:
        """All processes of its session that live, itself included."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (
                        (entry / "stat").read_text("ascii", errors="replace").rpartition(")")[2].split()[:4]
                    )
                except (OSError, ValueError):
                    continue  # it has ended meanwhile
                if int(session) == self.pid and state not in "ZX":
                    found.append(int(entry.name))
        return sorted(found)

    def workers(self) -> list[int]:
        """The worker processes; the process itself, if it works itself."""
        found: list[int] = []
        for pid in self.members():
            try:
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found or [pid for pid in self.members() if pid == self.pid]

    def signal(self, number: signal.Signals, pids: list[int] | None = None) -> None:
        """To some of its processes; to it alone by default. Those that have ended are passed over."""
        for pid in [self.pid] if pids is None else pids:
            if pid == self.pid and self._process.poll() is not None:
                continue
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """End all of it, and wait for that."""
        wait_until(self._killed, f"all of {self.pid} is ended")

    def _killed(self) -> bool:
        members = self.members()
        self.signal(signal.SIGKILL, members)
        return self._process.poll() is not None and not members

    def text(self) -> str:
        """All it has said so far."""
        return self.said.read_text("utf-8", errors="replace")
