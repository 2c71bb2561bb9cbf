"""Processes of tests: in a session each, so that all of their descendants can be found by it, signalled and ended."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

ROOT = Path(__file__).resolve().parents[2]
DUMP = signal.SIGUSR1
"""Makes a process of the soak print the stacks of its threads; see ``tests/soak/apps.py``."""
UNLIMITED = resource.RLIM_INFINITY
PATIENCE_S = 180.0
"""Generous: it only passes where something is broken, or the machine is very busy."""


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


def limit_files(pid: int, size: int) -> None:
    """Let a process write files up to this size only. What it writes past that is refused, as by a full disk."""
    try:
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size if size >= 0 else most, most))
    except ProcessLookupError:
        pass


class Process:
    """A Python module as a process, and its descendants. What it says goes to a file, which counts where its files are limited."""

    def __init__(self, said: Path, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        self.said = said
        with said.open("wb") as stderr:
            self._start(arguments, environment, stderr)

    def _start(
        self, arguments: Sequence[object], environment: Mapping[str, str] | None, stderr: BinaryIO | int
    ) -> None:
        path = os.pathsep.join(
            filter(None, [str(ROOT / "framework"), str(ROOT), os.environ.get("PYTHONPATH")])
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path, **(environment or {})},
        )  # fmt: skip
        self.pid = self.process.pid

    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        return self.process.poll()

    def ended(self) -> int:
        """Its exit code, once it and all its descendants have ended."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.signal(DUMP, *self.members())
            time.sleep(1.0)
            raise AssertionError(f"{self.pid} does not end; its threads: {self.text()[-6_000:]}") from None
        wait_until(lambda: not self.members(), f"the descendants of {self.pid} have ended")
        return code

    def members(self) -> list[int]:
        """All processes of its session that live, itself included."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                state, _, _, session = [*_stat(int(entry.name)), "", "", "", ""][:4]
                if session == str(self.pid) and state not in "ZX":
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

    def signal(self, number: signal.Signals, *pids: int) -> None:
        """To some of its processes; to it alone by default. Those that have ended are passed over."""
        for pid in pids or (self.pid,):
            if pid == self.pid and self.code() is not None:
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
        for pid in members:
            self.signal(signal.SIGKILL, pid)
        return self.code() is not None and not members

    def text(self) -> str:
        """All it has said so far."""
        return self.said.read_text("utf-8", errors="replace")


class Running(Process):
    """A ``tailrace`` process that is read from. A context manager: at its end nothing of it is left."""

    def __init__(self, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self._start(("tailrace", *arguments), environment, subprocess.PIPE)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as said:
            for line in said:
                self.lines.append(line.decode("utf-8", errors="replace"))

    def text(self) -> str:
        return "".join(self.lines)

    def ended(self) -> int:
        code = super().ended()
        self._reader.join(PATIENCE_S)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reader.join()

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The log lines so far."""
        return [msgspec.json.decode(line) for line in self.lines if line.startswith("{")]

    @property
    def complaint(self) -> str:
        """What was said in words."""
        last = [one["message"] for one in self.logged if "exit_code" in one]
        return "".join([*(line for line in self.lines if not line.startswith("{")), *last])

    def started_workers(self) -> list[int]:
        """The numbers of the worker processes that were started, dead ones included."""
        return [one["worker_process"] for one in self.logged if one["message"] == "a worker is started"]

    def wait_for(self, message: str, times: int = 1) -> None:
        """Until a log line has come so many times."""

        def come() -> bool:
            ended = self.code() is not None
            found = sum(message in one["message"] for one in self.logged) >= times
            assert found or not ended, self.lines
            return found

        wait_until(come, f"{message!r} is logged")


def _stat(pid: int) -> list[str]:
    """State, parent, group, session and more of a process; nothing if it is not there any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    return _stat(pid)[:1] not in ([], ["Z"])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    return _stat(pid)[:1] == ["T"]


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal that was sent to a process has not reached it yet."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace").splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(one >> (number - 1) & 1 for one in pending)
