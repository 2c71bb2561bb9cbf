"""A service as a separate process, started with ``tailrace run``; its progress is read from the log."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tailrace as tr
from tailrace.core.engine.tape import Cut, Ordered, Totals, decode_cut
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.stretches import first
from tailrace.log import TopicPartition
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog

_SESSION = "TAILRACE_KAFKA_CONSUMER_SESSION_TIMEOUT_MS"
"""On Kafka, the tasks of a killed process are free after this time: 45 s by default."""
_SESSION_MS = "6000"
_LEAVE_S = 10.0
"""A version that is replaced ends within this time."""
_MOST_MARKERS = 20
"""At the end of a partition; with more offsets left there are records among them."""


class ServiceFailed(Exception):
    """A service has failed or exited too early, or makes no progress."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of the services, and the place of their log."""

    base: Path
    kafka: str = ""
    """The URL of a log on Kafka, instead of the folder."""

    @property
    def log(self) -> Path | str:
        """The event log: its folder, or its URL."""
        return self.kafka or self.base / "log"

    def open_log(self) -> EmbeddedLog | KafkaLog:
        """Open the log. The caller must close it."""
        return KafkaLog(self.kafka) if self.kafka else EmbeddedLog(self.base / "log")

    @property
    def state(self) -> Path:
        """The state of both services."""
        return self.base / "state"

    @property
    def snapshots(self) -> Path:
        """The rebuilt snapshots."""
        return self.base / "snapshots"

    @property
    def upgrades(self) -> Path:
        """What an upgrade has made of history."""
        return self.base / "upgrades"

    @property
    def rebuilt(self) -> Path:
        """The state of both services after their start from the rebuilt snapshots."""
        return self.base / "state-rebuilt"


class Service:
    """One service, with at most one process at a time. ``reference`` names its app: ``package.module:app``."""

    def __init__(
        self, app: tr.App, reference: str, folders: Folders, log: EmbeddedLog | KafkaLog, interval: str
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
        self._read: dict[TopicPartition, tuple[int, int]] = {}
        """Positions and ends between which there is no record."""
        self.on_kafka = isinstance(log, KafkaLog)
        self._process: subprocess.Popen[bytes] | None = None
        self._places = [
            TopicPartition(one.name, number)
            for one in self.plan.inputs
            for number in range(self.plan.partitions)
        ]

    # --- its process

    def start(self, *, end_of_input: bool, from_snapshot: str = "", create_topics: bool = False) -> None:
        """Start a process. With ``end_of_input`` it exits when it has handled all records in the log. ``from_snapshot`` is ``URI#ID``."""
        command = [sys.executable, "-m", "tailrace", "run", self.reference]
        command += ["--log", str(self._folders.log), "--state", str(self.state)]
        command += ["--commit-interval", self._interval, "--log-format", "json"]
        command += ["--from-snapshot", from_snapshot] if from_snapshot else []
        command += ["--end-of-input"] if end_of_input else []
        command += ["--create-topics"] if create_topics else []
        with self.words.open("ab") as words:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env={_SESSION: _SESSION_MS, **os.environ},
            )

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

    def is_replaced(self) -> bool:
        """Whether the process has ended because another version takes over; its last log line says so."""
        assert self._process is not None
        try:
            code = self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            return False
        return bool(code) and b"is being upgraded from version" in self.words.read_bytes()

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # --- how far it is

    def committed(self) -> int:
        """Number of offsets that are handled and committed: what has been read less what waits for its turn. On Kafka,
        markers of transactions have offsets, too.
        """
        return sum(
            sum(cut.positions.values()) - max((_waiting(one) for one in cut.ordered.values()), default=0)
            for cut in self._cuts().values()
        )

    def _positions(self) -> dict[TopicPartition, int]:
        """The positions in the last cuts. The group's offsets are behind them by the events that wait for their turn."""
        return {
            TopicPartition(name, number): offset
            for number, cut in self._cuts().items()
            for name, offset in cut.positions.items()
        }

    def _cuts(self) -> dict[int, Cut]:
        """The last cut of each partition that has one."""
        history = AppHistory(self.plan, self._log)
        found = {number: history.committed(number).cut for number in range(self.plan.partitions)}
        return {number: decode_cut(cut) for number, cut in found.items() if cut is not None}

    def waiting(self) -> int:
        """Number of offsets in the log for this service so far, including the committed ones."""
        return sum(self._log.end_offset(*place) for place in self._places)

    def has_caught_up(self) -> bool:
        """Whether all records in the log so far are read and committed."""
        ends = {place: self._log.end_offset(*place) for place in self._places}
        found = self._positions()
        return all(self._is_read(place, found.get(place, 0), end) for place, end in ends.items())

    def _is_read(self, place: TopicPartition, position: int, end: int) -> bool:
        """Whether no record is between a position and the end. On Kafka a partition ends with markers of transactions."""
        if position >= end or self._read.get(place) == (position, end):
            return True
        if not self.on_kafka or end - position > _MOST_MARKERS or first(self._log, *place, position):
            return False
        self._read[place] = position, end
        return True

    def totals(self) -> Totals:
        """Its totals, summed over the last cuts of its tasks."""
        totals = Totals()
        for cut in self._cuts().values():
            for name in Totals.__struct_fields__:
                setattr(totals, name, getattr(totals, name) + getattr(cut.totals, name))
        return totals


def _waiting(ordered: Ordered) -> int:
    """Number of events that wait for their turn in an operator."""
    return sum(count for _, count, _ in ordered.lows.values())


def kafka_url(given: str) -> str:
    """The URL of a log on Kafka for one run of the demo: without a prefix it gets one of its own."""
    if not given or "/" in given.removeprefix("kafka://").rstrip("/"):
        return given
    return f"{given.rstrip('/')}/flights-2013-{secrets.token_hex(3)}."
