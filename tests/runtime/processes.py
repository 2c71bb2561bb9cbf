"""``tailrace run`` as real processes: started, read, signalled and ended by their numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec

from tests.soak.processes import PATIENCE_S, wait_until

__all__ = ["PATIENCE_S", "ROOT", "Running", "is_alive", "is_pending", "is_stopped", "wait_until"]

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """A ``tailrace`` process. A context manager: at its end nothing of it is left.

    What is signalled is found by a mark in the environment, which its children inherit, and not by a number that was
    logged: by then the number may be another process's.
    """

    def __init__(self, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        self._mark = f"TAILRACE_TEST_RUN={uuid4().hex}"
        name, _, mark = self._mark.partition("=")
        path = os.pathsep.join([str(ROOT / "framework"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, name: mark, **(environment or {})},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait_until(self._killed, "all of the process is ended")
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The log lines so far."""
        return [msgspec.json.decode(line) for line in self.lines if line.startswith("{")]

    @property
    def complaint(self) -> str:
        """What was said in words."""
        last = [one["message"] for one in self.logged if "exit_code" in one]
        return "".join([*(line for line in self.lines if not line.startswith("{")), *last])

    def workers(self) -> list[int]:
        """The numbers of the worker processes that were started, dead ones included."""
        return [one["worker_process"] for one in self.logged if one["message"] == "a worker is started"]

    def signal(self, number: signal.Signals, pid: int | None = None) -> None:
        """To it, or to one of its children; ``ProcessLookupError`` if that is gone."""
        pid = self.process.pid if pid is None else pid
        process = os.pidfd_open(pid)
        try:
            # One that is just being started has no environment for a moment.
            wait_until(lambda: _environment(pid) or not is_alive(pid), f"{pid} is started")
            if not self._is_of_it(pid):
                raise ProcessLookupError(pid)
            signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)

    def wait_for(self, message: str, times: int = 1) -> None:
        """Until a log line has come so many times."""

        def come() -> bool:
            assert self.process.poll() is None or self._come(message) >= times, self.lines
            return self._come(message) >= times

        wait_until(come, f"{message!r} is logged")

    def ended(self) -> int:
        """Its exit code, once it has one."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def members(self) -> list[int]:
        """It and its descendants, as far as they live."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and self._is_of_it(int(entry.name))
        ]

    def _is_of_it(self, pid: int) -> bool:
        return self._mark.encode() in _environment(pid).split(b"\0")

    def _killed(self) -> bool:
        members = self.members()
        for pid in members:
            try:
                self.signal(signal.SIGKILL, pid)
            except ProcessLookupError:
                continue
        return not members

    def _come(self, message: str) -> int:
        return sum(message in one["message"] for one in self.logged)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)


def _environment(pid: int) -> bytes:
    """What a process was started with; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    try:
        return ") T" in Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return False


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal that was sent to a process has not reached it yet."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace").splitlines()
    pending = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(one >> (number - 1) & 1 for one in pending)
