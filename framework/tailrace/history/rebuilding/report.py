"""The report of a rebuild: a struct for programs, a few lines for people."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace.core.counting import counted
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.results import Phases, TaskResult, UnitResult
from tailrace.processes.environment import environment

_SHOWN = 5


class RebuildReport(msgspec.Struct, kw_only=True):
    """The result of a rebuild. Counts are those of the tasks at their cuts, since their history began."""

    app: str
    snapshot: str
    """Its id."""
    uri: str
    """The URI of its folder, without secrets."""
    order: str
    engine: str
    base: str | None = None
    resumed: bool = False
    """It has continued the work of an interrupted driver."""
    environment: dict[str, str] = {}
    partitions: int = 0
    commits: int = 0
    """Commits that this run replayed; an interrupted run may have replayed others."""
    events: int = 0
    replayed: int = 0
    """Records that this run replayed."""
    keys: int = 0
    rows: int = 0
    timers: int = 0
    """Timers fired and entries expired."""
    late: int = 0
    outputs: int = 0
    refused: int = 0
    dead_letters: int = 0
    """Number of units that failed."""
    failed_here: int = 0
    """In stages, with ``--on-error``: units that failed. All went to the dead letters."""
    failed: list[str] = []
    """The first of these."""
    same_rows: int = 0
    """Rows that were compared with the service's stored rows: they are equal, byte for byte."""
    written: int = 0
    """Outputs written to the requested place."""
    seconds: float = 0.0
    phases: Phases = msgspec.field(default_factory=Phases)
    """Seconds, summed over all processes."""
    notes: list[str] = []

    def add(self, result: UnitResult) -> None:
        """Add the result of a unit."""
        self.commits += result.work.commits
        self.replayed += result.work.replayed
        self.phases.add(result.work.phases)
        self.failed_here += result.new_failures.count
        self.failed += result.new_failures.shown
        self.note(*result.notes)
        for task in result.tasks:
            self._add_task(task)

    def _add_task(self, task: TaskResult) -> None:
        totals = task.totals
        self.partitions += 1
        self.events += totals.records
        self.timers += totals.fired
        self.late += totals.late
        self.outputs += totals.outputs
        self.refused += totals.refused
        self.dead_letters += totals.failed
        self.keys += task.state.keys
        self.rows += task.state.rows
        self.same_rows += task.rows.same
        self.written += sum(one.rows for one in task.outputs)
        if task.rows.note:
            self.note(task.rows.note)

    def note(self, *notes: str) -> None:
        """Add notes, each once."""
        self.notes += [one for one in dict.fromkeys(notes) if one not in self.notes]

    def lines(self) -> list[str]:
        """The report as lines for a person."""
        rate = self.replayed / self.seconds if self.seconds else 0.0
        phases = ", ".join(
            f"{name} {seconds:.1f} s"
            for name, seconds in msgspec.structs.asdict(self.phases).items()
            if seconds
        )
        speed = f"{self.seconds:.1f} s with the {self.engine} engine ({rate:,.0f} events/s)"
        how = "along the tape" if self.order == "tape" else "in stages"
        lines = [
            f"rebuilt {self.app} {how}: snapshot {self.snapshot} in {self.uri}",
            *([] if self.base is None else [f"from snapshot {self.base}"]),
            (
                f"{counted(self.events, 'event')}, {counted(self.keys, 'key')}, {counted(self.rows, 'row')}, "
                f"{counted(self.timers, 'timer')} fired, {counted(self.outputs, 'output')}, "
                f"{self.late:,} late, {self.refused:,} refused, {self.dead_letters:,} failed"
            ),
            *self._compared(),
            f"{speed}; all processes: {phases}",
            f"environment: {', '.join(f'{name} {version}' for name, version in self.environment.items())}",
        ]
        if self.resumed:
            lines.append(f"continued an interrupted rebuild: {self.replayed:,} of the events were left to do")
        if self.written:
            lines.append(f"{counted(self.written, 'output')} written")
        if self.failed_here:
            lines.append(f"{self.failed_here:,} failed, and went to the dead letters:")
        lines += [f"dead letter: {one}" for one in self.failed]
        return [*lines, *(f"note: {one}" for one in self.notes)]

    def _compared(self) -> list[str]:
        """The comparison of the rows with the service's, as a line."""
        if not self.same_rows:
            return []
        return [
            (
                f"{counted(self.same_rows, 'row')} compared with the service's, the schema of each partition included: all equal, byte "
                "for byte; the outputs of each commit are equal, too"
            )
        ]


def report_of(job: Job, engine: str, results: Iterable[UnitResult], *, resumed: bool) -> RebuildReport:
    """The report of a job."""
    report = RebuildReport(
        app=job.app,
        snapshot=job.snapshot,
        uri=job.folder,
        order=job.order,
        engine=engine,
        base=job.base,
        resumed=resumed,
        environment=environment(),
        notes=list(job.notes),
    )
    for result in results:
        report.add(result)
    return report
