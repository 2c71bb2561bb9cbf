"""The driver: it settles the work, has an engine do it, and publishes the snapshot last of all.

It may be killed at any moment and run again: the work folder holds the settled job and the finished units.
Nothing that it makes is visible before it is complete.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from tailrace.core.counting import listed
from tailrace.core.declare.plan import Plan
from tailrace.core.engine import tape
from tailrace.core.engine.stages import own_inputs
from tailrace.core.errors import OptionError, OtherHistoryError, TailraceError
from tailrace.core.values.keys import KeyCodec
from tailrace.history.provenance.judging import (
    Ahead,
    Other,
    judge,
    judge_read,
    last_marks,
    snapshot_provenance,
)
from tailrace.history.provenance.topics import check_same_topics
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.rebuilding.code_digest import changed, code_of
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.rebuilding.job import Job, Unit
from tailrace.history.rebuilding.output_files import outputs_folder, publish_outputs
from tailrace.history.rebuilding.past import HistorySource, opened_past
from tailrace.history.rebuilding.report import RebuildReport, report_of
from tailrace.history.rebuilding.request import Request, checked
from tailrace.history.rebuilding.results import TaskResult, UnitResult, Work
from tailrace.history.rebuilding.stage_unit import joined
from tailrace.history.rebuilding.targets import settle
from tailrace.history.rebuilding.work_folder import UnitProgress, WorkFolder
from tailrace.log.interface import OneCommitLog
from tailrace.log.opening import open_past
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import environment
from tailrace.state.snapshots import Manifest, Place, Snapshots, TaskEntry
from tailrace.state.snapshots.manifest import MANIFEST

_SHOWN = 5
OnProgress: TypeAlias = Callable[[str, UnitProgress], None]
"""Called from time to time with the stage of a rebuild, and the progress of this stage."""


def rebuild(
    request: Request,
    engine: Engine | None = None,
    *,
    on_progress: OnProgress | None = None,
    restart: bool = False,
) -> RebuildReport:
    """Rebuild an app's state from its history into a snapshot, and publish it.

    An interrupted rebuild of the same request, app and code is resumed, up to its settled end; ``restart``
    begins it from the start.

    Raises:
        UsageError: The request makes no sense for this app and this log.
        SnapshotError: The place of the snapshots cannot be written, or the base cannot be used.
        OffsetGoneError: The log has deleted records that the rebuild needs.
        HandlerError, BadRecordError: An event cannot be handled any more, and failures do not go to the dead
        letters.
        ReplayDivergedError: The result differs from that of the service.
        EnvironmentMismatchError: Python, msgspec or tzdata are not those of the first run.
        WorkerLostError: A process has ended; run it again.
    """
    with closing(engine or LocalEngine()) as engine:
        return _Rebuild(request, engine, on_progress).run(restart=restart)


def settled_job(request: Request) -> Job:
    """The job of a rebuild as it would be settled now. Raises what ``rebuild`` raises before it begins."""
    return _Rebuild(request, LocalEngine(), None).settled()


class _Rebuild:
    def __init__(self, request: Request, engine: Engine, on_progress: OnProgress | None) -> None:
        self._request = checked(request)
        self._plan = find_app(request.app).plan()
        self._engine = engine
        self._on_progress = on_progress
        with closing(open_past(self._request.source)) as log:
            self._id = identity(self._request, self._plan, log)
        self._code = code_of(request.app, self._plan)
        self._work = WorkFolder(work_folder(self._request, self._plan, self._id))
        """The work folder of the rebuild; ``_units_work`` is that of the job, which the units use."""
        self._units_work = self._work

    def run(self, *, restart: bool) -> RebuildReport:
        """See ``rebuild``."""
        begun_s = time.perf_counter()
        work = self._work
        if not work.path.exists():
            with opened_past(self._request, self._plan, taped=False):
                pass  # errors about a missing past are raised before a folder is created
        with work.held():
            earlier = job = work.job()
            other = list[str]()
            if job is not None:
                with opened_past(self._request, self._plan, taped=False) as past:
                    other = [*changed(job.code, self._code), *_other_history(job, past)]
            resumed = job is not None and not other and not restart
            if job is None or not resumed:
                job = self._begin(job)
            results = self._results(job)
            tasks = sorted((task for one in results for task in one.tasks), key=attrgetter("partition"))
            report = report_of(job, self._engine.name, results, resumed=resumed)
            self._publish(job, tasks, report)
            # This note is about this run only: the snapshot does not depend on how often the driver was killed.
            if not resumed and earlier is not None and not restart:
                report.note(
                    "nothing of an interrupted rebuild was used, as this has changed since it was begun: "
                    f"{listed(other, _SHOWN)}"
                )
            work.clear()
        report.seconds = time.perf_counter() - begun_s
        return report

    # --- beginning

    def _begin(self, other: Job | None) -> Job:
        """Settle the job. Remove all results of ``other``: other code began it, or it must not resume."""
        if other is not None:
            _discard(other)
        self._work.empty()  # without a job, too: an interrupted removal may have left files
        job = self.settled()
        self._work.begin(job)
        return job

    def settled(self) -> Job:
        """The job. It makes the folder of a snapshot, which is empty."""
        request, plan = self._request, self._plan
        with opened_past(request, plan, taped=False) as past:
            settled = settle(request, past)
            inputs = {one.name for one in plan.inputs} & settled.ends.keys()
            marks = {name: last_marks(past.log, name, settled.ends[name]) for name in sorted(inputs)}
            settled = replace(settled, marks=marks)
        draft = Snapshots(request.to.uri, plan.app).begin()
        return Job(
            **msgspec.structs.asdict(settled),
            id=self._id,
            code=self._code,
            request=request,
            app=plan.app,
            version=plan.version,
            partitions=plan.partitions,
            work=str(self._work.path / draft.id),
            snapshot=draft.id,
            folder=draft.folder_uri,
            created_ms=draft.created_ms,
        )

    # --- the units

    def _results(self, job: Job) -> list[UnitResult]:
        """The results of the units whose tasks make up the snapshot, in the order of the report."""
        self._units_work = WorkFolder(Path(job.work))
        self._units_work.make()
        if job.order == "stages":
            return self._stages(job)
        return self._run([Unit(job=job, kind="task", partition=number) for number in range(job.partitions)])

    def _stages(self, job: Job) -> list[UnitResult]:
        """The results of a job in stages: first one for each unit, then one for each task."""
        found, split = list[list[UnitResult]](), job.request.execution.split
        ranges = list[UnitResult]()
        for stage in range(job.stages):
            units = [Unit(job=job, kind="stage", partition=one, stage=stage) for one in range(job.partitions)]
            if split > 1:
                ranges += self._run([replace(one, range=number) for one in units for number in range(split)])
            found.append(self._run(units))
        with opened_past(self._request, self._plan, taped=False) as past:
            tasks = [
                joined(job, past, number, parts) for number, parts in enumerate(zip(*found, strict=True))
            ]
        work = [*ranges, *(replace(one, tasks=()) for some in found for one in some)]
        return [*work, UnitResult(unit="joined", attempt="", tasks=tuple(tasks))]

    def _run(self, units: Sequence[Unit]) -> list[UnitResult]:
        """Run the units (of one kind) that are not done yet. Results of others have no work of this run."""
        names = [unit.name for unit in units]
        expected = {unit.name: _expected(unit) for unit in units}
        files = cache(lambda: {one.name for one in Place.at(units[0].job.folder).entries()})
        found = {name: replace(done, work=Work()) for name in names if (done := self._done(name, files))}

        def on_progress() -> None:
            if self._on_progress is not None:
                self._on_progress(units[0].kind, self._units_work.progress(expected))

        waiting = [unit for unit in units if unit.name not in found]
        for result in self._engine.run(waiting, on_progress) if waiting else ():
            if result.failure is not None:
                raise result.failure.error()
            found[result.unit] = result
            on_progress()
        return [found[name] for name in names]

    def _done(self, name: str, files: Callable[[], set[str]]) -> UnitResult | None:
        """The result of a unit done before. A cleanup of snapshots may have deleted its files since."""
        done = self._units_work.result(name)
        named = (
            {file.name for one in done.tasks for file in one.state.files} if done is not None else set[str]()
        )
        if named and not named <= files():
            self._units_work.forget(name)
            return None
        return done

    def _publish(self, job: Job, tasks: Sequence[TaskResult], report: RebuildReport) -> None:
        report.note(*notes_of_part(job, self._plan, tasks))
        with opened_past(self._request, self._plan, taped=False) as past:
            check_same_topics(past.log, job.topics)
            for said in _other_history(job, past):
                raise OtherHistoryError(
                    f"during the rebuild this has changed: {said}",
                    why="commit",
                    hint="The log has lost its end. Run the rebuild again: it begins from the start.",
                )
            if job.request.to.outputs != "none":
                publish_outputs(job, tuple(file for one in tasks for file in one.outputs))
            manifest = manifest_of(job, past, tasks, report.notes)
        Snapshots(self._request.to.uri, job.app).publish(manifest)
        report.uri = Place.at(job.folder).shown


def _other_history(job: Job, past: HistorySource) -> Iterator[str]:
    """Where the log does not have the history any more to which a job goes: it has lost its end, and may have other records since."""
    for one in job.targets:
        if one.cut is not None:
            found = judge(past.plan, past.log, one.partition, tape.decode_cut(one.cut))
            if isinstance(found, Other | Ahead):
                yield f"the log, which had {found.why}"
    for name, marks in job.marks.items():
        for number, mark in enumerate(marks):
            read = judge_read(past.log, name, number, mark)
            if isinstance(read, Other | Ahead):
                yield f"{name!r} partition {number}, which {read.why}"


def _expected(unit: Unit) -> int:
    """The records of a unit along the tape; 0 for others, which report them once they have begun."""
    cut = unit.job.targets[unit.partition].cut
    return tape.decode_cut(cut).totals.records if unit.job.order == "tape" and cut is not None else 0


def _discard(job: Job) -> None:
    """Remove what a job has made, unless it is published."""
    if not (Place.at(job.folder) / MANIFEST).exists():
        Place.at(job.folder).remove_folder()
        if job.request.to.outputs != "none":
            outputs_folder(job).remove_folder()


def work_folder(request: Request, plan: Plan, id: str) -> Path:
    """The folder where a rebuild keeps intermediate files.
    Raises UsageError: the snapshots go to an object store, and no folder was given.
    """
    if request.execution.work is not None:
        return Path(request.execution.work) / plan.app / id
    place = Place.at(request.to.uri)
    if not place.is_local:
        raise OptionError(
            f"a rebuild into {place.shown} needs a folder for what is under way",
            hint="Name one with --work: of this machine, or one that all machines of the rebuild share.",
        )
    return Path(place.path) / plan.app / "_work" / id


def identity(request: Request, plan: Plan, log: OneCommitLog) -> str:
    """The id by which an interrupted rebuild is found: of the same request and log."""
    return hashlib.sha256(msgspec.msgpack.encode((request, plan.app, log.identity))).hexdigest()[:16]


def manifest_of(job: Job, past: HistorySource, tasks: Sequence[TaskResult], notes: Sequence[str]) -> Manifest:
    """The manifest of a snapshot. If it holds all of a moment of the log, the manifest has this moment."""
    request = job.request
    whole = not (request.limited or request.keys)
    ends = job.ends if whole else {}
    if not whole and job.stages:  # what the app has sent to itself is handled, or held in the snapshot
        ends = {name: job.ends[name] for name in own_inputs(past.plan) if name in job.ends}
    return Manifest(
        id=job.snapshot,
        app=job.app,
        version=job.version,
        partitions=job.partitions,
        created_ms=job.created_ms,
        kind="full",
        name=request.to.name,
        source=job.order,
        environment=environment(),
        ends=ends,
        keys=request.keys,
        as_of_ms=request.as_of_ms,
        tasks=tuple(_entry(one, job, past) for one in tasks),
        notes=tuple(notes),
    )


def _entry(result: TaskResult, job: Job, past: HistorySource) -> TaskEntry:
    cut, state = result.cut or b"", result.state
    left = past.beginning(job, result.partition).abandoned(cut) if cut else {}
    provenance = snapshot_provenance(past.log, result.partition, cut, left)
    if job.stages and not job.request.limited:
        provenance = replace(provenance, service=job.targets[result.partition].cut or b"")
    return TaskEntry(
        result.partition, cut, result.changelog_position, state.schema, state.files, provenance, state.waiting
    )


def notes_of_part(job: Job, plan: Plan, tasks: Sequence[TaskResult]) -> Iterator[str]:
    """Notes about what a snapshot does not hold: other keys, or messages at a limit."""
    keys = job.request.keys
    if keys:
        yield f"it holds {_named(keys)} only"
    if missing := _without_state(plan, keys, tasks):
        yield f"there is no state of {_named(missing)}"
    if job.request.limited and not job.stages and plan.has_messages:
        yield "messages that were under way where it stops are not in it"


def _named(keys: Sequence[str]) -> str:
    return f"the key{'' if len(keys) == 1 else 's'} {', '.join(keys)}"


def _without_state(plan: Plan, keys: Sequence[str], results: Sequence[TaskResult]) -> list[str]:
    """The requested keys for which no actor has a row."""
    found = {key for result in results for key in result.state.named_keys}
    codecs = [one.key_codec for one in plan.actors]
    return [
        text
        for text in keys
        if not any(
            _encoded(codec, key) in found for key in named_keys(plan, (text,)).keys for codec in codecs
        )
    ]


def _encoded(codec: KeyCodec, key: Any) -> bytes | None:
    """The bytes of a key; None if the codec does not accept it."""
    try:
        return codec.encode(key)
    except (TailraceError, TypeError, ValueError):
        return None
