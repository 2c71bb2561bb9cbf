"""``run_unit``: runs one part of a rebuild in any process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from tailrace.core.counting import listed
from tailrace.core.declare.plan import Plan
from tailrace.core.engine.observer import Watch
from tailrace.core.errors import ReplayDivergedError, TailraceError
from tailrace.history.provenance.topics import check_same_topics
from tailrace.history.rebuilding.code_digest import differences
from tailrace.history.rebuilding.failures import naming_stages
from tailrace.history.rebuilding.job import Job, Unit, UnitKind
from tailrace.history.rebuilding.past import HistorySource, opened_past
from tailrace.history.rebuilding.results import Failure, UnitResult
from tailrace.history.rebuilding.stage_unit import run_stage
from tailrace.history.rebuilding.tape_unit import run_task
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.history.replay.replaying import seldom_collected
from tailrace.processes.app_loading import find_app
from tailrace.processes.network_guard import watch_network

_SHOWN = 5


def run_unit(unit: Unit, watch: Watch | None = None) -> UnitResult:
    """Run a part of a rebuild, or return its result if it is done already. It may run anywhere, again, and
    twice at once. ``watch`` is of this process, and sees what is run.

    An error that would occur again is returned in the result (``failure``): a retry is pointless. Any other
    error is raised: the unit may be run again.
    """
    work = WorkFolder(Path(unit.job.work))
    done = work.result(unit.name)
    if done is not None:
        return done
    watch_network()
    attempt = uuid4().hex[:12]
    try:
        plan = find_app(unit.job.request.app).plan()
        _check(plan, unit.job)
        taped = unit.job.order == "tape"
        with opened_past(unit.job.request, plan, taped=taped) as past, seldom_collected():
            check_same_topics(past.log, unit.job.topics)
            with naming_stages() if taped else nullcontext():
                result = _RUNS[unit.kind](unit, past, work, attempt, watch)
    except TailraceError as error:
        return UnitResult(unit=unit.name, attempt=attempt, failure=Failure.of(error))
    return work.finish(unit, result)


def _check(plan: Plan, job: Job) -> None:
    """Check that this process has the code of the job: another machine may have other code."""
    here = (plan.app, plan.version, plan.partitions)
    if here != (job.app, job.version, job.partitions):
        raise ReplayDivergedError(
            f"the rebuild is of app {job.app!r} version {job.version!r} with {job.partitions} partitions, "
            f"{job.request.app!r} is here {here[0]!r} version {here[1]!r} with {here[2]}",
            hint="Every process of a rebuild needs the same code.",
        )
    other = _other_code(tuple(job.code.items()))
    if other:
        raise ReplayDivergedError(
            f"the code of the app {job.app!r} is not the same in a process of the rebuild as where it "
            f"was begun: {listed(other, _SHOWN)}",
            hint="Install the same code for every process, or ship it again (Spark: --py-files). If it was "
            "changed meanwhile, run the same command again: it begins with the code as it is.",
        )


@lru_cache(8)
def _other_code(noted: tuple[tuple[str, str], ...]) -> list[str]:
    """The differences in code, computed once per process: imported code does not change any more."""
    return differences(dict(noted))


_RUNS: dict[UnitKind, Callable[[Unit, HistorySource, WorkFolder, str, Watch | None], UnitResult]] = {
    "task": run_task,
    "stage": run_stage,
}
