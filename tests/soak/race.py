"""One round of the race: processes on one embedded log are killed, stopped, continued and replaced; then the model is asked.

The roles are in race_processes.py, and what must hold in race_model.py. The faults are drawn from a seed. When each strikes a
process depends on the machine, so a seed repeats the faults and the records, and not the exact run.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tailrace.log.embedded import EmbeddedLog
from tests.soak import race_processes
from tests.soak.processes import Process, wait_until
from tests.soak.race_model import Found, Notes, violations
from tests.soak.race_processes import LOG, NOTES, READERS_END, WRITERS, WRITERS_END

_AT_ONCE = {**dict.fromkeys(WRITERS, 2), "cleaner": 1, "follower": 3}
"""By role, the most processes. Two writers of one id are a take-over."""
_READERS = ("follower",)


@dataclass(slots=True)
class Report:
    """What there was in a race, and what must not have been."""

    seed: int
    figures: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Racer:
    """A process, and what was done to it."""

    role: str
    run: str
    process: Process
    stopped: bool = False
    killed: bool = False


class Race:
    """The processes of a round in a folder, which must be empty."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.report = Report(seed)
        self._random = Random(f"race {seed}")
        self._racers: list[Racer] = []
        self._faults: list[Callable[[str], None]] = [
            *(4 * [self._kill]),
            *(4 * [self._stop]),
            *(4 * [self._continue]),
            *(3 * [self._start_another]),
            *(3 * [self._replace_a_stopped_one]),
        ]

    def run(self) -> Report:
        """Race, wait for the end of all processes, and compare the log with the model."""
        race_processes.create(self.folder)
        try:
            for one in [self._start(role) for role in _AT_ONCE]:
                if one.role in WRITERS:
                    self._wait_for_a_commit(one)
            self._replace_a_stopped_one(WRITERS[0])
            end_s = time.monotonic() + self.seconds
            while time.monotonic() < end_s:
                time.sleep(self._random.uniform(0.05, 0.5))
                self._bury()
                self._random.choice(self._faults)(self._random.choice(list(_AT_ONCE)))
            self._end(WRITERS_END, [one for one in self._racers if one.role not in _READERS])
            self._start("follower")
            self._end(READERS_END, self._racers)
        finally:
            for one in self._racers:
                one.process.kill()
        self._compare()
        return self.report

    # --- faults

    def _kill(self, role: str) -> None:
        for one in self._some(role):
            one.killed = True
            one.process.signal(signal.SIGKILL)
            self.report.figures["kills"] += 1

    def _stop(self, role: str) -> None:
        for one in self._some(role):
            one.stopped = True
            one.process.signal(signal.SIGSTOP)
            self.report.figures["stops"] += 1

    def _continue(self, role: str) -> None:
        for one in self._of(role):
            if one.stopped:
                one.stopped = False
                one.process.signal(signal.SIGCONT)

    def _start_another(self, role: str) -> None:
        if len(self._of(role)) < _AT_ONCE[role]:
            self._start(role)

    def _replace_a_stopped_one(self, role: str) -> None:
        """A writer sleeps in the middle of its work, another one commits under its id, and then the first one wakes up."""
        writers = self._of(role) if role in WRITERS else []
        if len(writers) != 1 or not self._commits(writers[0]):
            return
        (sleeper,) = writers
        sleeper.process.signal(signal.SIGSTOP)
        before = self._commits(sleeper)
        other = self._start(role)
        taken_over = self._wait_for_a_commit(other)
        sleeper.process.signal(signal.SIGCONT)
        if not taken_over:
            return
        wait_until(
            # The first may have been made before it slept, and noted after it. The second one the model will find.
            lambda: sleeper.process.code() is not None or self._commits(sleeper) > before + 1,
            f"{sleeper.run} has ended",
        )
        self.report.figures["stops"] += 1
        self.report.figures["sleepers replaced"] += 1

    def _commits(self, writer: Racer) -> int:
        """How many commits a writer has noted."""
        notes = self.folder / NOTES / writer.run
        return notes.read_text("ascii").count("acknowledged") if notes.exists() else 0

    def _wait_for_a_commit(self, writer: Racer) -> bool:
        """Wait until a writer has committed, or has ended without a commit; whether it has committed."""
        wait_until(
            lambda: self._commits(writer) or writer.process.code() is not None, f"{writer.run} has committed"
        )
        return self._commits(writer) > 0

    # --- processes

    def _of(self, role: str) -> list[Racer]:
        return [one for one in self._racers if one.role == role and one.process.code() is None]

    def _some(self, role: str) -> list[Racer]:
        """One of a role, or none if none is left."""
        racers = self._of(role)
        return [self._random.choice(racers)] if racers else []

    def _start(self, role: str) -> Racer:
        self.report.figures["starts"] += 1
        run = f"{role}.{self.report.figures['starts']}"
        process = Process(
            self.folder / f"said-{run}",
            *("tests.soak.race_processes", role, self.folder, self.report.seed, run),
        )
        racer = Racer(role, run, process)
        self._racers.append(racer)
        return racer

    def _bury(self) -> None:
        """Forget those that have ended, and start each role again of which none is left."""
        for one in [one for one in self._racers if one.process.code() is not None]:
            self._racers.remove(one)
            self._ended(one)
        for role in _AT_ONCE:
            if not self._of(role):
                self._start(role)

    def _ended(self, one: Racer) -> None:
        code = one.process.code()
        if code not in (0, -signal.SIGKILL if one.killed else 0):
            self.report.violations.append(f"{one.run} has ended with {code}: {one.process.text()[-500:]}")

    def _end(self, marker: str, racers: list[Racer]) -> None:
        """Tell processes to end, and wait for it."""
        (self.folder / marker).touch()
        for one in racers:
            one.process.signal(signal.SIGCONT)
        for one in racers:
            one.process.ended()
            self._ended(one)
        self._racers = [one for one in self._racers if one not in racers]

    def _compare(self) -> None:
        notes = Notes.of(self.folder)
        log = EmbeddedLog(self.folder / LOG, create=False)
        try:
            found = Found.of(log)
        finally:
            log.close()
        self.report.violations += violations(self.report.seed, notes, found)
        figures = self.report.figures
        figures["commits"] = sum(found.positions.values())
        figures["records"] = sum(map(len, found.records.values()))
        figures["acknowledged"] = len(notes.acknowledged)
        figures["aborted"] = len(notes.aborted)
        figures["take-overs"] = len(notes.epochs) - len(WRITERS)
        figures["transactions refused"] = len(notes.refused)
        figures["reads"] = len(notes.prefixes)
        figures["followers at the end"] = len(notes.ended)
        figures["blocks rewritten by cleaning"] = notes.rewritten
        figures["refused as the append lock was not free"] = notes.unavailable
