"""What every soak has: a round with a seed, a folder and processes of its own, and the lines that are printed of rounds.

A round that fails raises its error with a note: the seed, what was done until then, and what the processes have said last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.runtime.processes import Process
from tests.soak import checks

_STEPS_SHOWN, _PROCESSES_SHOWN, _SAID_SHOWN = 80, 6, 2_000


@dataclass(slots=True)
class Report:
    """What a round has done, and found to be right."""

    seed: int
    variant: str
    faults: Counter[str] = field(default_factory=Counter[str])
    starts: int = 0
    seconds: float = 0.0
    figures: checks.Figures = field(default_factory=lambda: checks.Figures(0, 0, 0, 0))

    def __str__(self) -> str:
        figures = self.figures
        return (
            f"seed {self.seed}, {self.variant}: {self.faults.total()} faults, {self.starts} starts, {self.seconds:.0f} s, "
            f"{figures.events:,} events, {figures.outputs:,} outputs, {figures.timers:,} timers, "
            f"{figures.commits:,} commits: all as it must be"
        )


def summary(reports: Sequence[Report], seconds: float) -> str:
    """All rounds, as a table of faults and a line of totals."""
    faults = sum((one.faults for one in reports), Counter[str]())
    figures = [one.figures for one in reports]
    total = (
        f"{faults.total():,} faults in {seconds / 60:.1f} minutes, {len(reports)} rounds, "
        f"{sum(one.starts for one in reports):,} starts, {sum(one.events for one in figures):,} events, "
        f"{sum(one.outputs for one in figures):,} outputs, {sum(one.timers for one in figures):,} timers, "
        f"{sum(one.commits for one in figures):,} commits: nothing lost, nothing repeated"
    )
    return "\n".join([*(f"{count:6,}  {name}" for name, count in faults.most_common()), total])


class SoakRound:
    """A round. Its faults follow from the seed: ``random`` draws them."""

    def __init__(self, folder: Path, seed: int, variant: str, kind: str, said: Path | None = None) -> None:
        self.folder = folder
        self.seed = seed
        self.random = Random(f"{kind} {seed}")
        self.report = Report(seed, variant)
        self.trace: list[str] = []
        self.processes: list[Process] = []
        self._said = said or folder / "said"
        self._said.mkdir(parents=True, exist_ok=True)
        self._begun_s = time.monotonic()

    def started(self, name: str, *arguments: object, environment: dict[str, str] | None = None) -> Process:
        """A process that is ended with the round."""
        process = Process(self._said / f"{name}.log", *arguments, environment=environment)
        self.processes.append(process)
        return process

    def note(self, what: str) -> None:
        """Keep a step for the note of an error."""
        self.trace.append(f"{time.monotonic() - self._begun_s:7.2f} s  {what}")
        with (self._said / "steps.txt").open("a") as steps:
            steps.write(f"{self.trace[-1]}\n")

    @contextmanager
    def told(self) -> Generator[None]:
        """A block that is all of the round. Its processes are ended with it, and an error gets the note."""
        try:
            yield
        except BaseException as error:
            last = "\n".join(
                f"--- {one.said.name}, {one.code()}\n{one.text()[-_SAID_SHOWN:]}"
                for one in self.processes[-_PROCESSES_SHOWN:]
            )
            steps = "\n  ".join(self.trace[-_STEPS_SHOWN:])
            error.add_note(f"seed {self.seed}, {self.report.variant}\n  {steps}\n{last}")
            raise
        finally:
            for process in self.processes:
                process.kill()
        self.report.seconds = time.monotonic() - self._begun_s

    def check_what_was_said(self) -> None:
        """No process has shown a traceback."""
        for process in self.processes:
            found = [line for line in process.text().splitlines() if "Traceback" in line]
            assert not found, f"{process.said.name}: {found[0]}"
