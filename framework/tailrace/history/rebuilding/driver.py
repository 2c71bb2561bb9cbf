"""The driver: it settles the work, has an engine do it, and publishes the snapshot last of all.

It may be killed at any moment and run again: the work folder holds the settled job and the finished units. Nothing that it
makes is visible before it is complete.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.errors import (
    OptionError,
    ReplayDivergedError,
    SnapshotMismatchError,
    TailraceError,
    UsageError,
)
from tailrace.core.values.keys import KeyCodec
from tailrace.history.dead_letters.handled import check_not_redriven_since
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.last_reads import last_reads
from tailrace.history.reading.left_inputs import abandoned_before
from tailrace.history.reading.named_keys import named_keys
from tailrace.history.reading.same_topics import check_same_topics
from tailrace.history.rebuilding.code_digest import changed, code_of, compared
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.rebuilding.failed_before import letters_before
from tailrace.history.rebuilding.job import Job, Letters, Unit, UnitKind, UnitResult
from tailrace.history.rebuilding.output_files import PARQUET, outputs_folder
from tailrace.history.rebuilding.output_watermarks import TOPIC
from tailrace.history.rebuilding.own_sends import first_difference
from tailrace.history.rebuilding.past import HistorySource, opened_past
from tailrace.history.rebuilding.publishing import check_topics, publish_outputs
from tailrace.history.rebuilding.report import RebuildReport, report_of
from tailrace.history.rebuilding.request import Request
from tailrace.history.rebuilding.splitting.split_units import UNSPLIT
from tailrace.history.rebuilding.splitting.unsplit import whole_because
from tailrace.history.rebuilding.targets import Settled, settle
from tailrace.history.rebuilding.work_folder import UnitProgress, WorkFolder
from tailrace.log.opening import is_url
from tailrace.processes.app_loading import find_app
from tailrace.processes.environment import environment
from tailrace.state.snapshots import Manifest, Place, Snapshot, Snapshots, TaskEntry
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

    An interrupted rebuild of the same request, app and code is resumed, up to its settled end; ``restart`` begins it from
    the start.

    Raises:
        UsageError: The request makes no sense for this app and this log.
        SnapshotError: The place of the snapshots cannot be written, or the base cannot be used.
        OffsetGoneError: The log has deleted records that the rebuild needs.
        HandlerError, BadRecordError: An event cannot be handled any more, and failures do not go to the dead letters.
        ReplayDivergedError: The result differs from that of the service.
        EnvironmentMismatchError: Python, msgspec or tzdata are not those of the first run.
        WorkerLostError: A process has ended; run it again.
    """
    return _Rebuild(request, engine or LocalEngine(), on_progress).run(restart=restart)


class _Rebuild:
    def __init__(self, request: Request, engine: Engine, on_progress: OnProgress | None) -> None:
        _check_types(request)
        self._plan = find_app(request.app).plan()
        self._request = _absolute(request)
        self._engine = engine
        self._tell = on_progress
        _check(self._request)
        self._id, self._code = identity(self._request, self._plan), code_of(request.app, self._plan)
        self._work = WorkFolder(work_folder(self._request, self._plan, self._id))
        """The work folder of the rebuild; ``_units_work`` is that of the job, which the units use."""
        self._units_work = self._work
        self._replayed: dict[int, tuple[int, int]] = {}
        """By partition: the records and commits that this run has added to the report."""

    def run(self, *, restart: bool) -> RebuildReport:
        """See ``rebuild``."""
        begun_s = time.perf_counter()
        work = self._work
        if not work.path.exists():
            with opened_past(self._request, self._plan, taped=False):
                pass  # errors about a missing log or archive are raised before a folder is created
        with work.held():
            job = work.job()
            earlier, resumed = job, job is not None and job.code == self._code and not restart
            if job is None or not resumed:
                job = self._begin(job)
            results, report = self._run(job, resumed=resumed)
            if (difference := first_difference(results)) is not None:
                _discard(job)
                work.clear()
                raise ReplayDivergedError(
                    f"{difference} is not what is recorded, and along the tape the recorded messages and own topics are read",
                    hint="Rebuild with --order canonical, where they come from this code.",
                )
            self._publish(job, results, report)
            # These notes are about this run only. The snapshot is the same, no matter how often the driver was killed.
            if resumed:
                report.note(compared(self._code))
            elif earlier is not None and not restart:
                report.note(_begun_again(earlier.code, self._code))
            work.clear()
        report.seconds = time.perf_counter() - begun_s
        return report

    def _run(self, job: Job, *, resumed: bool) -> tuple[list[UnitResult], RebuildReport]:
        self._units_work = WorkFolder(Path(job.work))
        self._units_work.make()
        self._replayed.clear()
        report = report_of(job, self._engine.name)
        report.resumed = resumed
        report.environment = environment()
        return self._results(job, report), report

    # --- beginning

    def _begin(self, other: Job | None) -> Job:
        """Settle the job. ``other`` was begun by other code, or must not be resumed: remove all of its results."""
        if other is not None:
            _discard(other)
        self._work.empty()  # without a job, too: an interrupted removal may have left files
        job = self._settled()
        self._work.begin(job)
        return job

    def _settled(self) -> Job:
        request, plan = self._request, self._plan
        base, opened = None, None
        if request.source.base is not None:
            opened = Snapshots(request.source.base, plan.app).open(request.source.base_id)
            _check_whole(opened, request)
            base = opened.manifest.id
        with opened_past(request, plan, taped=request.order == "tape") as past:
            settled = settle(request, past)
            if opened is not None:
                check_not_redriven_since(past.log, opened.manifest)
                if settled.together:
                    _check_under_way(opened, plan, settled)
            check_topics(request, past)
            letters: tuple[Letters, ...] = ()
            if settled.order == "canonical":
                letters = letters_before(past, together=settled.together)
            draft = Snapshots(request.to.uri, plan.app).begin()
            job = Job(
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
                order=settled.order,
                together=settled.together,
                finish=settled.finish,
                lenient=request.failures.lenient
                or request.failures.on_error != "stop"
                or request.source.after_deleted,
                targets=settled.targets,
                base=base,
                ends=settled.ends,
                topics=settled.topics,
                position=settled.position,
                notes=settled.notes,
                letters=letters,
            )
            return _split(job)

    # --- the units

    def _results(self, job: Job, report: RebuildReport) -> list[UnitResult]:
        """The last result of each partition."""
        in_one: UnitKind = "task" if job.order == "tape" else "canonical"
        if job.together:
            (all_of_them,) = self._units(job, in_one, report, [(0, 0)])
            return [all_of_them, *all_of_them.others]
        if job.split == 1:
            return self._units(job, in_one, report)
        self._units(job, "first", report)
        shards = [(number, shard) for number in range(job.partitions) for shard in range(job.split)]
        self._units(job, "shard", report, shards)
        merged = self._units(job, "merge", report)
        whole = [one.partition for one in merged if UNSPLIT in one.made]
        for number in whole:
            report.note(f"partition {number} was not split: {merged[number].made[UNSPLIT]}")
            taken, commits = self._replayed.pop(number, (0, 0))
            report.taken, report.commits = report.taken - taken, report.commits - commits
        for one in self._units(job, in_one, report, [(number, 0) for number in whole]) if whole else ():
            merged[one.partition] = one
        return merged

    def _units(
        self,
        job: Job,
        kind: UnitKind,
        report: RebuildReport,
        numbers: Iterable[tuple[int, int]] | None = None,
    ) -> list[UnitResult]:
        """Run the units of a kind that are not done yet. Returns the results of all of them, in order."""
        pairs = ((number, 0) for number in range(job.partitions)) if numbers is None else numbers
        units = [Unit(job=job, kind=kind, partition=number, shard=shard) for number, shard in pairs]
        names = [unit.name for unit in units]
        found: dict[str, UnitResult] = {}
        there: set[str] | None = None
        for name in names:
            done = self._units_work.result(name)
            if done is None:
                continue
            if there is None:
                there = {one.name for one in Place.at(job.folder).entries()}
            if all(file.name in there for one in (done, *done.others) for file in one.files):
                found[name] = done
            else:  # a cleanup of the snapshots has deleted files that were left unpublished for days
                self._units_work.forget(name)
        earlier = frozenset(found)

        def on_progress() -> None:
            if self._tell is not None:
                self._tell(kind, self._units_work.progress(names))

        waiting = [unit for unit in units if unit.name not in found]
        for result in self._engine.run(waiting, on_progress) if waiting else ():
            if result.failure is not None:
                raise result.failure.error()
            found[result.unit] = result
            on_progress()
        for name in names:  # in this order, so that a resumed rebuild has the same notes
            result = found[name]
            if name not in earlier:
                taken, commits = self._replayed.get(result.partition, (0, 0))
                self._replayed[result.partition] = (taken + result.taken, commits + result.commits)
                report.taken, report.commits = report.taken + result.taken, report.commits + result.commits
                report.phases.add(result.phases)
            for note in result.notes:
                report.note(note)
        return [found[name] for name in names]

    # --- the end

    def _publish(self, job: Job, results: list[UnitResult], report: RebuildReport) -> None:
        request = job.request
        for result in results:
            report.add(result)
        report.note_letters()
        report.note_idle()
        report.note_gaps()
        whole = not (request.limited or request.keys)
        if request.keys:
            named = f"the key{'' if len(request.keys) == 1 else 's'} {', '.join(request.keys)}"
            report.note(f"it holds {named} only")
            if missing := _without_state(self._plan, request.keys, results):
                report.note(
                    f"there is no state of the key{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
                )
        if request.limited and self._plan.inbox_topic is not None:
            report.note("messages that were under way where it stops are not in it")
        with opened_past(request, self._plan, taped=False) as past:
            check_same_topics(past.log, job.topics, topics_of(self._plan, past.log))
        publish_outputs(job, self._plan, results)
        with opened_past(request, self._plan, taped=False) as past:
            tasks = tuple(_entry(one, job, past) for one in results)
        manifest = Manifest(
            id=job.snapshot,
            app=job.app,
            version=job.version,
            partitions=job.partitions,
            created_ms=job.created_ms,
            name=request.to.name,
            source=job.order,
            environment=environment(),
            position=job.position if whole else None,
            ends=job.ends if whole else _delivered_ends(job, self._plan),
            keys=request.keys,
            tasks=tasks,
            notes=tuple(report.notes),
        )
        Snapshots(request.to.uri, job.app).publish(manifest)
        report.uri = Place.at(job.folder).shown


def _discard(job: Job) -> None:
    """Remove what a job has made, unless it is published."""
    if not (Place.at(job.folder) / MANIFEST).exists():
        Place.at(job.folder).remove_folder()
        if job.request.to.outputs != "none":
            Place.at(outputs_folder(job)).remove_folder()


def _split(job: Job) -> Job:
    """The job with the requested number of shards, or with a note that says why it is not split."""
    shards = job.request.execution.split
    if shards > 1 and (whole := whole_because(job)):
        return replace(job, notes=(*job.notes, f"it was not split: {whole}"))
    return replace(job, split=shards)


def _entry(result: UnitResult, job: Job, past: HistorySource) -> TaskEntry:
    cut = result.cut or b""
    left = abandoned_before(past.beginning(job, result.partition), cut) if cut else {}
    return TaskEntry(
        result.partition,
        cut,
        result.changelog_position,
        result.schema,
        tuple(result.files),
        result.handled,
        last_reads(past.log, result.partition, cut, left),
        result.waiting,
        left,
    )


def _without_state(plan: Plan, keys: Sequence[str], results: Sequence[UnitResult]) -> list[str]:
    """The requested keys for which no actor has a row."""
    found = {key for result in results for key in result.found}
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


def _check_types(request: Request) -> None:
    """Refuse values of wrong types, which structs do not look at: a snapshot could not be read again."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request)
    except (TypeError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"the request has an option of a wrong type or value: {error}",
            hint='See tailrace.history.rebuilding.request; app= is a text such as "package.module:app".',
        ) from None


def _check(request: Request) -> None:
    if request.to.outputs != "none" and not request.to.outputs.startswith((PARQUET, TOPIC)):
        raise OptionError(
            f"outputs cannot go to {request.to.outputs!r}", hint=f"Say none, {PARQUET}URI or {TOPIC}SUFFIX."
        )
    if request.execution.split < 1:
        raise OptionError(
            f"a partition cannot be split into {request.execution.split} shards", hint="Give 1 or more."
        )


def _check_whole(base: Snapshot, request: Request) -> None:
    for one in base.chain:
        if one.keys and not (request.keys and {*request.keys} <= {*one.keys}):
            raise SnapshotMismatchError(
                f"the snapshot {base.manifest.id} holds the keys {', '.join(one.keys)} only: all others would be gone",
                hint="Continue from a whole one, or ask for these keys (--key).",
            )


def _check_under_way(base: Snapshot, plan: Plan, settled: Settled) -> None:
    """Refuse a base without ends: only these tell which of its own records the app had sent and not read at the base."""
    if not base.manifest.ends and any(any(settled.ends.get(name, ())) for name in own_inputs(plan)):
        raise SnapshotMismatchError(
            f"the snapshot {base.manifest.id} was stopped by a limit, and does not tell what the app had under way to itself "
            "there: in canonical order nobody would send that again",
            hint="Continue from a snapshot without a limit, or rebuild from the beginning.",
        )


def _delivered_ends(job: Job, plan: Plan) -> dict[str, list[int]]:
    """The ends for a rebuild up to a limit: if all tasks run as one, no record of the app to itself is in flight."""
    return {name: job.ends[name] for name in own_inputs(plan) if name in job.ends} if job.together else {}


def _absolute(request: Request) -> Request:
    """The request with absolute paths, which are valid in every process, whatever its working folder."""
    source, work = request.source, request.execution.work
    return replace(
        request,
        source=replace(
            source,
            log=source.log if is_url(source.log) else str(Path(source.log).absolute()),
            archive=None if source.archive is None else Place.at(source.archive).uri,
            base=None if source.base is None else Place.at(source.base).uri,
        ),
        to=replace(request.to, uri=Place.at(request.to.uri).uri),
        execution=replace(request.execution, work=None if work is None else str(Path(work).absolute())),
    )


def work_folder(request: Request, plan: Plan, id: str) -> Path:
    """The folder where a rebuild keeps intermediate files.

    Raises:
        UsageError: The snapshots go to an object store, and no folder was given.
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


def identity(request: Request, plan: Plan) -> str:
    """The id by which an interrupted rebuild is found."""
    return hashlib.sha256(msgspec.msgpack.encode((request, plan.app))).hexdigest()[:16]


def _begun_again(earlier: dict[str, str], code: dict[str, str]) -> str:
    """The note if the code has changed since an interrupted rebuild was begun."""
    other = changed(earlier, code)
    named = f"{', '.join(other[:_SHOWN])}{', ...' if len(other) > _SHOWN else ''}"
    return f"nothing of an interrupted rebuild was used, as the code has changed since it was begun: {named}"
