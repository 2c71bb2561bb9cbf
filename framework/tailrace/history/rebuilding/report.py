"""The report of a rebuild: a struct for programs, a few lines for people."""

from __future__ import annotations

import msgspec

from tailrace.core.counting import counted
from tailrace.history.rebuilding.job import Job, Phases, UnitResult

_SHOWN = 5


class RebuildReport(msgspec.Struct, kw_only=True):
    """The result of a rebuild. Counts are those of the tasks at their cuts, since the beginning of their history."""

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
    taken: int = 0
    """Records that this run replayed."""
    keys: int = 0
    rows: int = 0
    timers: int = 0
    """Timers fired and entries expired."""
    late: int = 0
    became_idle: list[str] = []
    """In canonical order, inputs that became idle by the clock before events were late: ``topic partition number``."""
    late_after_idle: int = 0
    """Late events after that; with a longer ``idle_after=`` on these inputs, some might be in time."""
    outputs: int = 0
    refused: int = 0
    dead_letters: int = 0
    """Number of units that failed."""
    failed_here: int = 0
    """Units and records that failed in the rebuild, but not in the service: all went to the dead letters."""
    failed: list[str] = []
    """The first of these."""
    settled: int = 0
    """In canonical order, records that had failed in the service, and were handled."""
    same_rows: int = 0
    """Rows that were compared with the service's stored rows, and are equal, byte for byte."""
    other_rows: int = 0
    """Rows that were compared and differ."""
    written: int = 0
    """Outputs written to the requested place."""
    seconds: float = 0.0
    for_others: int = 0
    """Records that were redriven for other apps, and skipped."""
    gaps: dict[str, int] = {}
    """In canonical order, by compacted input: offsets that were read and hold no record. See ``compacted_inputs``."""
    phases: Phases = msgspec.field(default_factory=Phases)
    """Seconds, summed over all processes."""
    notes: list[str] = []

    def add(self, result: UnitResult) -> None:
        """Add the result of a task's last unit."""
        totals = result.totals
        self.partitions += 1
        self.events += totals.records
        self.timers += totals.fired
        self.late += totals.late
        self.late_after_idle += result.late_after_idle
        self.became_idle += (f"{name} partition {number}" for name, number in result.idle)
        self.outputs += totals.outputs
        self.refused += totals.refused
        self.dead_letters += totals.failed
        self.for_others += totals.for_others
        self.failed_here += result.failed_here
        self.failed += result.dead_letters
        self.settled += sum(map(len, result.handled.values()))
        self.keys += result.keys
        self.rows += result.rows
        self.same_rows += result.same_rows
        self.other_rows += result.other_rows
        self.written += sum(one.rows for one in result.outputs)
        for name, gaps in result.gaps.items():
            self.gaps[name] = self.gaps.get(name, 0) + gaps

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

    def note_gaps(self) -> None:
        """Note the compacted inputs of which records are missing."""
        for name, gaps in sorted(self.gaps.items()):
            self.note(
                f"{name} is compacted, and {counted(gaps, 'offset')} of it {'holds' if gaps == 1 else 'hold'} no record any "
                "more: the state differs from that of a service that has read those records"
            )

    def note_letters(self) -> None:
        """Note records that were redriven for other apps, and dead letters that the rebuild has settled."""
        if self.for_others:
            self.note(f"{counted(self.for_others, 'record')} redriven for other apps, skipped")
        if self.settled:
            self.note(
                f"{counted(self.settled, 'record')} handled that had failed in the service: a service that starts from this "
                "snapshot does not redrive them"
            )

    def note_idle(self) -> None:
        """Note that events were late after inputs had become idle."""
        if not self.late_after_idle:
            return
        more = len(self.became_idle) - _SHOWN
        named = f"{', '.join(self.became_idle[:_SHOWN])}{f' and {more:,} more' if more > 0 else ''}"
        self.note(
            f"{counted(self.late_after_idle, 'event')} late after inputs without further records had become idle ({named}): an "
            "idle input does not hold back the watermark; if it should, declare a longer idle_after= for its topic"
        )

    def lines(self) -> list[str]:
        """The report as lines for a person."""
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
            compared = self.same_rows + self.other_rows
            said.insert(
                2,
                f"{counted(compared, 'row')} compared with the service's, the schema of each partition included: "
                + (_differing(self.other_rows) if self.other_rows else "all equal, byte for byte")
                + " (values of outputs are not compared: tailrace replay --compare does that)",
            )
        if self.base is not None:
            said.insert(1, f"from snapshot {self.base}")
        if self.resumed:
            said.append(f"continued an interrupted rebuild: {self.taken:,} of the events were left to do")
        if self.written:
            said.append(f"{counted(self.written, 'output')} written")
        if self.failed_here:
            said.append(f"{self.failed_here:,} failed that had not failed when they ran first:")
        said += [f"dead letter: {one}" for one in self.failed]
        return [*said, *(f"note: {one}" for one in self.notes)]


def report_of(job: Job, engine: str) -> RebuildReport:
    """The report of a job before any work is done."""
    return RebuildReport(
        app=job.app,
        snapshot=job.snapshot,
        uri=job.folder,
        order=job.order,
        engine=engine,
        base=job.base,
        notes=list(job.notes),
    )


def _differing(rows: int) -> str:
    return f"{rows:,} differs" if rows == 1 else f"{rows:,} differ"
