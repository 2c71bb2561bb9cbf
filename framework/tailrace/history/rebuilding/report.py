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
    retried: int = 0
    """Records and timers that had failed in the service, and were run again in their original place."""
    failed_again: int = 0
    """Those that failed again."""
    again: list[str] = []
    """The first of these."""
    passed_over: int = 0
    """Redriven records that were skipped because their originals were handled in their original place."""
    left_to_redriven: int = 0
    """Records that had failed and were not run again, because their redriven records take effect elsewhere or later."""
    undelivered: int = 0
    """Messages and events to the app itself that these records and timers have sent, and that are not in the log."""
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
        self.again += result.retries.shown
        self.retried += result.retries.run
        self.failed_again += result.retries.again
        self.passed_over += result.retries.passed_over
        self.left_to_redriven += result.retries.left
        self.undelivered += result.retries.undelivered
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

    def note_retries(self, *, limited: bool) -> None:
        """Note the outcome of running failed records and timers again, and of redriven records.

        ``limited``: the rebuild may have stopped within a commit, of which the tape has no counts.
        """
        if self.retried:
            many = "1 record or timer" if self.retried == 1 else f"{self.retried:,} records and timers"
            again = f"; {self.failed_again:,} failed again" if self.failed_again else ""
            self.note(f"what had failed when it ran first was run again in its place: {many}{again}")
        if self.retried and self.order == "tape":
            of = ", up to the last whole commit" if limited else ""
            self.note(
                "so state and outputs are not the service's; events, timers, outputs and failures are counted as its tape has "
                f"them{of}"
            )
        if self.for_others:
            self.note(f"{counted(self.for_others, 'record')} redriven for other apps, skipped")
        if self.passed_over:
            self.note(
                f"{counted(self.passed_over, 'redriven record')} skipped, as the original was handled in its place"
            )
        if self.left_to_redriven:
            self.note(
                f"{counted(self.left_to_redriven, 'record')} that had failed not run again: the redriven record counts, which "
                "is in another partition, or behind the end of this rebuild"
            )
        if self.undelivered:
            self.note(
                "messages and events to the app itself, sent by what was run again, are not delivered, as the log does not "
                f"hold them: {self.undelivered:,}"
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
        said += [f"failed again: {one}" for one in self.again]
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
