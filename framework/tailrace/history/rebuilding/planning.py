"""The plan of a rebuild: what it would do, in which order and why, and about how long it takes. Nothing is made.

The time is that of a sample: the largest unit runs for two seconds in a temporary folder, and its pace is taken for that
of the whole. It is the time of handling; writing the snapshot and comparing its rows come on top.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.errors import TailraceError
from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.trial import trial
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.processes.app_loading import find_app

_SAMPLE_S = 2.0


class PlannedUnit(msgspec.Struct, frozen=True):
    """A unit of work. ``partition``: None for all partitions as one. ``records``: about so many."""

    partition: int | None
    records: int


class RebuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild would do. ``refused``: the error with which the sample has ended, if it has."""

    app: str
    version: str
    order: str
    base: str | None
    units: tuple[PlannedUnit, ...]
    rounds: int
    """In canonical order, the rounds in which each unit is run; 0: in one piece."""
    records: int
    processes: int | None
    sampled: int
    seconds: float | None
    """About how long all units take; None: the sample was too small to tell, or the engine is not local."""
    refused: str
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The plan for people."""
        order = "along the tape" if self.order == "tape" else "in canonical order"
        found = [f"{self.app} version {self.version}, {order}: about {counted(self.records, 'record')}"]
        found += [f"continues from {self.base}"] if self.base else []
        for one in self.units:
            what = "all partitions as one" if one.partition is None else f"partition {one.partition}"
            rounds = f", in {self.rounds} rounds" if self.rounds else ""
            found.append(f"  {what}{rounds}: about {counted(one.records, 'record')}")
        found += [f"note: {one}" for one in self.notes]
        if self.refused:
            found.append(f"it would be refused: {self.refused}")
        elif self.seconds is not None:
            found.append(
                f"about {self.seconds:,.0f} s of handling with --workers {self.processes}, as a sample of "
                f"{counted(self.sampled, 'record')} tells"
            )
        return found


class _Enough(Exception):
    """The sample is large enough."""


class _Sample(WorkFolder):
    """Ends a unit after some time, and before it writes anything into a snapshot."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.records, self.until_s = 0, time.monotonic() + _SAMPLE_S
        self._first: tuple[float, int] | None = None
        self.pace = 0.0
        """Records per second."""

    def report(self, unit: str, records: int, of: int, *, now: bool = False) -> None:  # noqa: ARG002
        """See ``WorkFolder.report``."""
        at_s = time.monotonic()
        first_s, before = self._first = self._first or (at_s, records)
        self.records = records
        if at_s > first_s and records > before:
            self.pace = (records - before) / (at_s - first_s)
        if now or at_s >= self.until_s:
            raise _Enough


def plan_rebuild(request: Request, processes: int | None) -> RebuildPlan:
    """The plan of a rebuild by so many local processes; None for another engine. Raises what ``rebuild`` raises before it begins."""
    plan, refused = find_app(request.app).plan(), ""
    with TemporaryDirectory(prefix="tailrace-plan-") as folder:
        execution = replace(request.execution, work=None)
        asked = replace(request, to=replace(request.to, uri=folder), execution=execution)
        with trial(asked, _Sample) as (job, sample, run):
            whole = job.delivers_sends and not job.rounds
            units = [PlannedUnit(None if whole else at, of) for at, of in enumerate(_records(job, plan))]
            largest = max(units, key=lambda one: one.records)
            try:
                run(largest.partition or 0, None)
            except _Enough:
                pass
            except TailraceError as error:
                refused = str(error)
    records, seconds = sum(one.records for one in units), None
    if sample.pace and processes is not None:
        seconds = max(largest.records, records / min(processes, len(units))) / sample.pace
    of_job = {name: getattr(job, name) for name in ("app", "version", "order", "base", "rounds", "notes")}
    return RebuildPlan(
        **of_job,
        units=tuple(units),
        records=records,
        processes=processes,
        sampled=sample.records,
        seconds=seconds,
        refused=refused,
    )


def _records(job: Job, plan: Plan) -> list[int]:
    """The records of each unit: those that the service has handled, or those of the inputs from outside."""
    if job.order == "tape":
        return [0 if one.cut is None else tape.decode_cut(one.cut).totals.records for one in job.targets]
    own = own_inputs(plan) if job.delivers_sends else ()
    names = [one.name for one in plan.inputs if one.name in job.ends and one.name not in own]
    found = [sum(job.ends[name][number] for name in names) for number in range(plan.partitions)]
    return [sum(found)] if job.delivers_sends and not job.rounds else found
