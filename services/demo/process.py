"""A service as a separate process, started with ``tailrace run``; its progress is read from the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tailrace as tr
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog


class ServiceFailed(Exception):
    """A service has failed or exited too early, or makes no progress."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of the services."""

    base: Path

    @property
    def log(self) -> Path:
        """The event log."""
        return self.base / "log"

    @property
    def state(self) -> Path:
        """The state of both services."""
        return self.base / "state"

    @property
    def snapshots(self) -> Path:
        """The rebuilt snapshots."""
        return self.base / "snapshots"

    @property
    def rebuilt(self) -> Path:
        """The state of both services after their start from the rebuilt snapshots."""
        return self.base / "state-rebuilt"


class Service:
    """One service, with at most one process at a time. ``reference`` names its app: ``package.module:app``."""

    def __init__(
        self, app: tr.App, reference: str, folders: Folders, log: EmbeddedLog, interval: str
    ) -> None:
        self.name = app.name
        self.reference = reference
        self.plan = app.plan()
        self.words = folders.base / f"{app.name}.log"
        """The file with the logs of its processes."""
        self.state = folders.state
        self._folders = folders
        self._log = log
        self._interval = interval
        self._process: subprocess.Popen[bytes] | None = None
        self._places = [
            TopicPartition(one.name, number)
            for one in self.plan.inputs
            for number in range(self.plan.partitions)
        ]

    # --- its process

    def start(self, *, until_end: bool, from_snapshot: Path | None = None) -> None:
        """Start a process. With ``until_end`` it exits when it has handled all records in the log."""
        command = [sys.executable, "-m", "tailrace", "run", self.reference]
        command += ["--log", str(self._folders.log), "--state", str(self.state)]
        command += ["--commit-interval", self._interval, "--log-format", "json"]
        command += [] if from_snapshot is None else ["--from-snapshot", str(from_snapshot)]
        command += ["--until-end"] if until_end else []
        with self.words.open("ab") as words:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words)

    @property
    def pid(self) -> int:
        """Process id of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> bool:
        """Send SIGKILL: the process ends at once. False if it had already exited."""
        assert self._process is not None
        if self._process.poll() is not None:
            return False
        os.kill(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def terminate(self) -> None:
        """Send SIGTERM: the process commits and exits."""
        assert self._process is not None
        self._process.terminate()

    def has_left(self) -> bool:
        """Whether the process has exited, with code 0.

        Raises:
            ServiceFailed: The process has exited with another code.
        """
        assert self._process is not None
        code = self._process.poll()
        if code:
            said = self.words.read_text("utf-8", errors="replace").splitlines()[-5:]
            raise ServiceFailed(
                "\n   ".join([f"{self.name} has exited with code {code}; its last log lines:", *said])
            )
        return code == 0

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # --- how far it is

    def committed(self) -> int:
        """Number of records whose handling is committed."""
        return sum(self._log.committed_offsets(self.name, self._places).values())

    def waiting(self) -> int:
        """Number of records in the log for this service so far, including the committed ones."""
        return sum(self._log.end_offset(*place) for place in self._places)
