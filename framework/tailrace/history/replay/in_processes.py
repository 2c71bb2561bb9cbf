"""A replay in several processes: each replays some partitions, and opens the log itself.

The replay of a partition depends on the log only, and not on the replay of another: messages between
partitions are in the log, as input. So processes report only their progress, and at the end their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace.history.comparing.replayed_state import LiveFolder
from tailrace.history.reading.generations import located
from tailrace.history.replay.replaying import replay
from tailrace.history.replay.report import ReplayOptions, ReplayReport, ReplayStatus
from tailrace.log.opening import Past, open_past
from tailrace.processes.app_loading import find_app
from tailrace.processes.child_process import ChildProcess, Conduct, Pipe, wait_for
from tailrace.processes.environment import another_seed, given_seed

_IF_MEMORY_IS_SHORT = "If the system ended it for want of memory, replay with fewer workers."


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """A replay in a form that can be sent to another process."""

    app: str
    """A reference for ``find_app``."""
    past: Past
    options: ReplayOptions
    """Without an observer."""
    state: Path | None = None
    """The service's folder to compare with."""


def run_job(job: ReplayJob, on_progress: Callable[[ReplayStatus], None] | None = None) -> ReplayReport:
    """Run a job in this process. Raises the errors of ``replay``."""
    plan = find_app(job.app).plan()
    compare = job.options.compare and job.state is not None
    with (
        closing(open_past(job.past)) as log,
        closing(LiveFolder(job.state or Path(), located(plan, log))) as live,
    ):
        report = replay(
            plan, log, job.options, live=live.states if compare else None, on_progress=on_progress
        )
        for note in live.notes if compare and not job.options.limits.any else ():
            report.note(note)
        return report


def replay_apart(
    job: ReplayJob, workers: int, on_progress: Callable[[ReplayStatus], None] | None = None
) -> ReplayReport:
    """Run a job in ``workers`` processes, but at most one for each partition.

    They have another hash seed than this process, which shows results that depend on the order of a set.
    ``seconds`` is the longest time of one process.
    Raises the error of the first process that failed, or WorkerLostError.
    """
    options = job.options
    numbers = sorted(
        range(find_app(job.app).plan().partitions) if options.partitions is None else options.partitions
    )
    conduct = Conduct(hash_seed=None if given_seed() is None else another_seed())
    with ExitStack() as closing_all:
        children: list[ChildProcess] = []
        for index in range(max(1, min(workers, len(numbers)))):
            share = replace(job, options=replace(options, partitions=numbers[index::workers]))
            child = ChildProcess(
                "a process of the replay", _work, share, conduct=conduct, hint=_IF_MEMORY_IS_SHORT
            )
            closing_all.callback(child.close)
            children.append(child)
        reports = _reports(children, on_progress)
        for child in children:
            child.leave()
    return merged(reports)


def merged(reports: list[ReplayReport]) -> ReplayReport:
    """The reports of several processes as one report."""
    whole = ReplayReport()
    for one in reports:
        for name in ("partitions", "commits", "records", "timers", "outputs", "rows"):
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        whole.met |= one.met
        whole.limit_reached |= one.limit_reached
        whole.seconds = max(whole.seconds, one.seconds)
        whole.differences.add_all(one.differences)
        whole.compared += [name for name in one.compared if name not in whole.compared]
        for note in one.notes:
            whole.note(note)
    return whole


def _reports(
    children: Sequence[ChildProcess], on_progress: Callable[[ReplayStatus], None] | None
) -> list[ReplayReport]:
    """Receive messages until every process has sent its report."""
    records = dict.fromkeys(children, 0)
    reports: dict[ChildProcess, ReplayReport] = {}
    while silent := [child for child in children if child not in reports]:
        for child in wait_for(silent):
            message: ReplayStatus | ReplayReport = child.receive()
            if isinstance(message, ReplayReport):
                reports[child] = message
            elif on_progress is not None:
                records[child] = message.records
                on_progress(replace(message, records=sum(records.values())))
    return [reports[child] for child in children]


def _work(pipe: Pipe, job: ReplayJob) -> None:
    pipe.send(run_job(job, pipe.send))
