"""A replay shared among processes: each has some partitions, and its own eyes on the log.

Given the log, a partition's replay depends on no other's: what they sent one another is in the log, as input. So nothing
is told from one process to another but how far they are, and at the end what they found.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeAlias, cast

from tailrace.core.errors import TailraceError, WorkerLostError
from tailrace.core.storage import Store
from tailrace.history.replay.replaying import ReplayOptions, ReplayReport, ReplayStatus, replay
from tailrace.history.state_folders import LiveFolder
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tailrace.processes.hash_seeds import another_seed, given_seed, started_with
from tailrace.processes.signals import held_back
from tailrace.state import StateIdentity, StateMemory, open_store

_Told: TypeAlias = ReplayStatus | ReplayReport | TailraceError
_Childs: TypeAlias = "Connection[_Told, None]"
_Parents: TypeAlias = "Connection[None, _Told]"


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
        WorkerLostError: A process ended without a word, as one that is killed does.
    """
    options = job.options
    numbers = sorted(
        range(find_app(job.app).plan().partitions) if options.partitions is None else options.partitions
    )
    spawn = multiprocessing.get_context("spawn")
    processes: dict[_Parents, SpawnProcess] = {}
    reports: dict[_Parents, ReplayReport] = {}
    try:
        for index in range(max(1, min(workers, len(numbers)))):
            ours, theirs = cast("tuple[_Parents, _Childs]", spawn.Pipe(duplex=False))
            share = replace(job, options=replace(options, partitions=numbers[index::workers]))
            process = spawn.Process(target=_work, args=(share, theirs), daemon=True)
            processes[ours] = process
            with held_back(), started_with(None if given_seed() is None else another_seed()):
                process.start()
            theirs.close()
        _listen(processes, reports, on_progress)
    finally:
        for pipe, process in processes.items():
            if process.pid is not None:
                if pipe not in reports:
                    process.kill()
                process.join()
            pipe.close()
    return merged([reports[pipe] for pipe in processes])


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


def _listen(
    processes: Mapping[_Parents, SpawnProcess],
    reports: dict[_Parents, ReplayReport],
    on_progress: Callable[[ReplayStatus], None] | None,
) -> None:
    """Take what the processes say, until each has given its report."""
    records = dict.fromkeys(processes, 0)
    while silent := [pipe for pipe in processes if pipe not in reports]:
        for pipe in cast("list[_Parents]", wait(silent)):
            try:
                said = pipe.recv()
            except EOFError:
                processes[pipe].join()
                raise WorkerLostError(
                    f"a process of the replay ended with code {processes[pipe].exitcode}, and said nothing",
                    hint="If the system ended it for want of memory, replay with fewer workers.",
                ) from None
            if isinstance(said, TailraceError):
                raise said
            if isinstance(said, ReplayReport):
                reports[pipe] = said
            elif on_progress is not None:
                records[pipe] = said.records
                on_progress(replace(said, records=sum(records.values())))


def _work(job: ReplayJob, pipe: _Childs) -> None:
    """The whole life of a process."""
    # Ctrl-C reaches every process at the terminal; what follows from it is for the parent to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    said: _Told
    try:
        said = run_job(job, pipe.send)
    except TailraceError as error:
        said = error
    except OSError:
        os._exit(1)  # nobody listens any more
    try:
        pipe.send(said)
    except OSError:
        pass
    except Exception:  # noqa: BLE001  # a key, say, that cannot be sent to another process
        pipe.send(TailraceError(str(said)))
