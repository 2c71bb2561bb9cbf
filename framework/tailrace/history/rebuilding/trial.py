"""Trials: units of a rebuild that run in this process, and of which nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

from tailrace.core.engine.observer import Watch
from tailrace.history.rebuilding.canonical_unit import run_canonical
from tailrace.history.rebuilding.driver import settled_job
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.past import opened_past
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.tape_unit import run_task
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.processes.app_loading import find_app

W = TypeVar("W", bound=WorkFolder)
Run: TypeAlias = Callable[[int, Watch | None], None]
"""Runs the unit of a partition, of the keys of a watch with its observer."""


@contextmanager
def trial(request: Request, made: Callable[[Path], W]) -> Generator[tuple[Job, W, Run]]:
    """The job of a rebuild as it would be settled now, the work folder that is ``made`` for it, and what runs its units.

    All of it lies in the place of the request's snapshot, which the caller removes. Raises what ``rebuild`` raises.
    """
    job, plan = settled_job(request), find_app(request.app).plan()
    taped, work = job.order == "tape", made(Path(job.work))
    work.make()
    with opened_past(job.request, plan, taped=taped) as past:

        def run(partition: int, watch: Watch | None = None) -> None:
            unit = Unit(job=job, kind="task" if taped else "canonical", partition=partition)
            (run_task if taped else run_canonical)(unit, past, work, "trial", watch)

        yield job, work, run
