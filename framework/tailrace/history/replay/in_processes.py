"""A replay shared among processes: each has some partitions, and its own eyes on the log.

Given the log, a partition's replay depends on no other's: what they sent one another is in the log, as input. So nothing
is told from one process to another but how far they are, and at the end what they found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace.core.storage import Store
from tailrace.history.replay.replaying import ReplayOptions, ReplayReport, ReplayStatus, replay
from tailrace.history.state_folders import LiveFolder
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.processes.child_process import ChildProcess, Conduct, Pipe, wait_for
from tailrace.processes.hash_seeds import another_seed, given_seed
from tailrace.state import StateIdentity, StateMemory, open_store

_IF_MEMORY_IS_SHORT = "If the system ended it for want of memory, replay with fewer workers."


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What is replayed, in words that another process understands. ``options.observer`` has to be None.

    ``to``: the folder that keeps the state that is made, as a service's; ``state``: that of the service to compare with.
    """

    app: str
    """As ``find_app`` takes it."""
    log: Path
    options: ReplayOptions
    to: Path | None = None
    state: Path | None = None


def run_job(job: ReplayJob, on_progress: Callable[[ReplayStatus], None] | None = None) -> ReplayReport:
    """Run a job in this process; raises what ``replay`` raises."""
    plan = find_app(job.app).plan()
    memory = StateMemory()

    def open_to(number: int) -> Store:
        assert job.to is not None
        return open_store(job.to / plan.app / str(number), StateIdentity(plan.app, number), memory)

    compare = job.options.compare and job.state is not None
    with (
        closing(EmbeddedLog(job.log, create=False)) as log,
        LiveFolder(job.state or Path(), plan.app) as live,
    ):
        report = replay(
            plan,
            log,
            job.options,
            open_store=None if job.to is None else open_to,
            live=live.states if compare else None,
            on_progress=on_progress,
        )
        for note in live.notes if compare and not job.options.limits.any else ():
            report.note(note)
        return report


def replay_apart(
    job: ReplayJob, workers: int, on_progress: Callable[[ReplayStatus], None] | None = None
) -> ReplayReport:
    """Run a job in so many processes, or in as many as there are partitions if these are fewer.

    They have another hash seed than this process, so that what depends on the order of a set shows. The report is that of
    all; ``seconds`` is the time of the one that took longest. Ended early, it ends its processes.

    Raises:
        TailraceError: What the first process that failed has raised; see ``replay``.
        WorkerLostError: A process ended without a word, as one that is killed does, or cannot be started.
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
    """What several processes have done and found, as one."""
    whole = ReplayReport()
    for one in reports:
        for name in ("partitions", "commits", "records", "timers", "outputs", "rows", "for_others"):
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        whole.met |= one.met
        whole.limit_reached |= one.limit_reached
        whole.seconds = max(whole.seconds, one.seconds)
        whole.differences.add_all(one.differences)
        whole.compared += [said for said in one.compared if said not in whole.compared]
        for note in one.notes:
            whole.note(note)
    return whole


def _reports(
    children: Sequence[ChildProcess], on_progress: Callable[[ReplayStatus], None] | None
) -> list[ReplayReport]:
    """Listen until each of the processes has given its report."""
    records = dict.fromkeys(children, 0)
    reports: dict[ChildProcess, ReplayReport] = {}
    while silent := [child for child in children if child not in reports]:
        for child in wait_for(silent):
            said: ReplayStatus | ReplayReport = child.receive()
            if isinstance(said, ReplayReport):
                reports[child] = said
            elif on_progress is not None:
                records[child] = said.records
                on_progress(replace(said, records=sum(records.values())))
    return [reports[child] for child in children]


def _work(pipe: Pipe, job: ReplayJob) -> None:
    pipe.send(run_job(job, pipe.send))
