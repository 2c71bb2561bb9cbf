"""A service as a process of its own, started by ``tailrace run``, and how far it has come by the log."""

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
    """A service has ended otherwise than it should, or comes no further."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the services work."""

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
        """What is rebuilt."""
        return self.base / "snapshots"

    @property
    def rebuilt(self) -> Path:
        """The state of both services after they were started from what was rebuilt."""
        return self.base / "state-rebuilt"


class Service:
    """One service; at most one process at a time. ``reference`` names its app: ``package.module:app``."""

    def __init__(
        self, app: tr.App, reference: str, folders: Folders, log: EmbeddedLog, interval: str
    ) -> None:
        self.name = app.name
        self.reference = reference
        self.plan = app.plan()
        self.words = folders.base / f"{app.name}.log"
        """Where its processes log to."""
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
        """Start a process. With ``until_end`` it leaves when it has read everything there is."""
        command = [sys.executable, "-m", "tailrace", "run", self.reference]
        command += ["--log", str(self._folders.log), "--state", str(self.state)]
        command += ["--commit-interval", self._interval, "--log-format", "json"]
        command += [] if from_snapshot is None else ["--from-snapshot", str(from_snapshot)]
        command += ["--until-end"] if until_end else []
        with self.words.open("ab") as words:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> bool:
        """SIGKILL: it gets no chance to do anything more. False if it had left before."""
        assert self._process is not None
        if self._process.poll() is not None:
            return False
        os.kill(self._process.pid, signal.SIGKILL)
        return self._process.wait() == -signal.SIGKILL

    def terminate(self) -> None:
        """SIGTERM: it commits and leaves."""
        assert self._process is not None
        self._process.terminate()

    def has_left(self) -> bool:
        """Whether it has ended, in good order.

        Raises:
            ServiceFailed: It has ended, and not in good order.
        """
        assert self._process is not None
        code = self._process.poll()
        if code:
            said = self.words.read_text("utf-8", errors="replace").splitlines()[-5:]
            raise ServiceFailed("\n   ".join([f"{self.name} has ended with {code}; its last words:", *said]))
        return code == 0

    def end(self) -> None:
        """Leave no process behind."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # --- how far it is

    def committed(self) -> int:
        """How many records are behind it for good."""
        return sum(self._log.committed_offsets(self.name, self._places).values())

    def waiting(self) -> int:
        """How many there are for it in the log so far, with those that are behind it."""
        return sum(self._log.end_offset(*place) for place in self._places)
