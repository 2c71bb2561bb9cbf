"""What a rebuild has done: for a program a struct, for a person a few lines."""

from __future__ import annotations

import msgspec

from tailrace.core.counting import counted
from tailrace.runtime.rebuilding.job import Job, Phases, UnitResult


class RebuildReport(msgspec.Struct, kw_only=True):
    """What was rebuilt. Counts are those of the tasks at their cuts, since their history began."""

    app: str
    snapshot: str
    """Its id."""
    uri: str
    """Where its folder is, without secrets."""
    order: str
    engine: str
    base: str | None = None
    resumed: bool = False
    """It went on with what an interrupted driver had begun."""
    environment: dict[str, str] = {}
    partitions: int = 0
    commits: int = 0
    """That this run went through; an interrupted one had done others."""
    events: int = 0
    taken: int = 0
    """Records that this run went through."""
    keys: int = 0
    rows: int = 0
    timers: int = 0
    """Timers fired and entries expired."""
    late: int = 0
    outputs: int = 0
    refused: int = 0
    dead_letters: int = 0
    """Units that failed."""
    failed_here: int = 0
    """Units and records that failed here, and had not failed when they ran first: all went to the dead letters."""
    failed: list[str] = []
    """The first of them."""
    same_rows: int = 0
    """Rows that were held against what the service has stored, and are the same, byte for byte."""
    other_rows: int = 0
    """Those that are not."""
    written: int = 0
    """Outputs written where they were asked for."""
    seconds: float = 0.0
    phases: Phases = msgspec.field(default_factory=Phases)
    """Seconds of all processes together."""
    notes: list[str] = []

    def add(self, result: UnitResult) -> None:
        """Add what a task's last unit has made."""
        totals = result.totals
        self.partitions += 1
        self.events += totals.records
        self.timers += totals.fired
        self.late += totals.late
        self.outputs += totals.outputs
        self.refused += totals.refused
        self.dead_letters += totals.failed
        self.failed_here += result.failed_here
        self.failed += result.dead_letters
        self.keys += result.keys
        self.rows += result.rows
        self.same_rows += result.same_rows
        self.other_rows += result.other_rows
        self.written += sum(one.rows for one in result.outputs)

    def note(self, said: str) -> None:
        """Add a note, once."""
        if said not in self.notes:
            self.notes.append(said)

    def _counts(self) -> str:
        return (
            f"{counted(self.events, 'event')}, {counted(self.keys, 'key')}, {counted(self.rows, 'row')}, "
            f"{counted(self.timers, 'timer')} fired, {counted(self.outputs, 'output')}, "
            f"{self.late:,} late, {self.refused:,} refused, {self.dead_letters:,} failed"
        )

    def lines(self) -> list[str]:
        """For a person."""
        rate = self.taken / self.seconds if self.seconds else 0.0
        phases = ", ".join(
            f"{name} {seconds:.1f} s"
            for name, seconds in msgspec.structs.asdict(self.phases).items()
            if seconds
        )
        how = "along the tape" if self.order == "tape" else "in canonical order"
        said = [
            f"rebuilt {self.app} {how}: snapshot {self.snapshot} in {self.uri}",
            self._counts(),
            f"{self.seconds:.1f} s with the {self.engine} engine ({rate:,.0f} events/s); all processes: {phases}",
            f"environment: {', '.join(f'{name} {version}' for name, version in self.environment.items())}",
        ]
        if self.same_rows or self.other_rows:
            same = f"{self.same_rows:,} rows are those of the service, byte for byte"
            said.insert(2, f"{same}; {self.other_rows:,} are not" if self.other_rows else same)
        if self.base is not None:
            said.insert(1, f"from snapshot {self.base}")
        if self.resumed:
            said.append(f"went on with an interrupted rebuild: {self.taken:,} of the events were left to do")
        if self.written:
            said.append(f"{counted(self.written, 'output')} written")
        if self.failed_here:
            said.append(f"{self.failed_here:,} failed that had not failed when they ran first:")
        said += [f"dead letter: {one}" for one in self.failed]
        return [*said, *(f"note: {one}" for one in self.notes)]


def report_of(job: Job, engine: str) -> RebuildReport:
    """A report of a job, before anything is done."""
    return RebuildReport(
        app=job.app,
        snapshot=job.snapshot,
        uri=job.folder,
        order=job.order,
        engine=engine,
        base=job.base,
        notes=list(job.notes),
    )
