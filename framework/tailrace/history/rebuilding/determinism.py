"""Runs a rebuild twice, with different settings, to find code that is not deterministic: the key, the event, the field.

The second run has other hashes of strings, a very small cache, and reloads every instance after each handler. None of this
may change a result. Differences are searched in the state, key by key, and in the outputs, number by number. Then the history
of the differing keys is replayed with both settings, step by step, up to the first step after which they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import OptionError, ReplayDivergedError
from tailrace.history.comparing.differences import Difference, first_apart
from tailrace.history.comparing.outputs import output_difference
from tailrace.history.comparing.states import KeyOfActor, Side, Step, compare_states, first_step_apart
from tailrace.history.rebuilding.driver import OnProgress, rebuild, settled_job
from tailrace.history.rebuilding.engines import Engine
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import PARQUET, read_outputs
from tailrace.history.rebuilding.output_watermarks import TOPIC
from tailrace.history.rebuilding.publishing import MANIFEST, OutputsManifest
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Request, Variant
from tailrace.history.rebuilding.work_folder import WorkFolder
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Manifest, Place, Snapshot, Snapshots

ANOTHER = Variant("another", cache_bytes=1 << 20, timers_in_memory=100, reload=True)
SEEDS = (1, 2)
"""The seeds of string hashes in the first and in the second run."""
NAMES = ("the first run", "the second")


class TwiceReport(msgspec.Struct, kw_only=True):
    """The report of the first run, and the differences of the second run from it."""

    report: RebuildReport | None
    """None if the first run was stopped by a difference from the service itself."""
    keys: int = 0
    """Number of keys that differ."""
    shown: list[Difference] = []
    """The first of these keys."""
    outputs: list[Difference] = []
    """The first output that differs, for each partition that has one."""
    stopped: str = ""
    """The error that has stopped the first run."""

    @property
    def differs(self) -> bool:
        """Whether the two runs differ."""
        return bool(self.keys or self.outputs)

    def lines(self) -> list[str]:
        """The report as lines for a person."""
        said = [] if self.report is None else self.report.lines()
        if self.stopped:
            said.append(f"stopped: {self.stopped}")
        if not self.differs:
            return [*said, "run twice: no difference"]
        said.append(f"run twice: {self.keys:,} keys and the outputs of {len(self.outputs)} partitions differ")
        for one in (*self.shown, *self.outputs):
            said.append(f"{one.where} {one.since}".rstrip())
            said += [f"    {line}" for line in one.lines()]
        return said


def rebuild_twice(
    request: Request, engine_of: Callable[[int], Engine], *, on_progress: OnProgress | None = None
) -> TwiceReport:
    """Rebuild twice, the second time into a temporary folder. ``engine_of`` returns an engine whose processes have a hash seed.

    The first run's snapshot is published as usual, unless it differs from the service. Raises the errors of ``rebuild``
    except ReplayDivergedError; UsageError if outputs should go to topics.
    """
    if request.to.outputs.startswith(TOPIC):
        raise OptionError(
            "outputs that are made twice are compared, and not written to topics",
            hint="Rebuild without --twice once the code is known to be deterministic.",
        )
    plan = find_app(request.app).plan()
    aside = _aside(request, plan)
    try:
        return _twice(request, engine_of, on_progress, plan, aside)
    finally:
        Place.at(str(aside)).remove_folder()


def _aside(request: Request, plan: Plan) -> Path:
    """A temporary folder for results that are only compared."""
    own = f"_twice-{uuid4().hex[:8]}"
    if request.execution.work is not None:
        return Path(request.execution.work).absolute() / own
    place = Place.at(request.to.uri)
    return (Path(place.path) if place.is_local else Path("data/rebuild").absolute()) / plan.app / own


def _twice(
    request: Request,
    engine_of: Callable[[int], Engine],
    on_progress: OnProgress | None,
    plan: Plan,
    aside: Path,
) -> TwiceReport:
    found = TwiceReport(report=None)
    to = request.to.outputs if request.to.outputs.startswith(PARQUET) else f"{PARQUET}{aside / 'outputs-0'}"
    first = replace(request, to=replace(request.to, outputs=to))
    try:
        found.report = rebuild(first, engine_of(SEEDS[0]), on_progress=on_progress)
    except ReplayDivergedError as error:
        found.stopped = str(error)
        first = replace(
            first,
            to=replace(first.to, uri=str(aside / "0")),
            failures=replace(first.failures, lenient=True),
            execution=replace(first.execution, work=str(aside / "work")),
        )
        found.report = rebuild(first, engine_of(SEEDS[0]), on_progress=on_progress)
    one = Snapshots(first.to.uri, plan.app).open(found.report.snapshot)
    second = replace(
        request,
        to=replace(request.to, uri=str(aside / "1"), outputs=f"{PARQUET}{aside / 'outputs-1'}", name=None),
        failures=replace(request.failures, lenient=True),
        execution=replace(request.execution, work=str(aside / "work"), variant=ANOTHER),
        cuts=() if request.limited else tuple(task.cut for task in one.manifest.tasks),
    )
    again = rebuild(second, engine_of(SEEDS[1]), on_progress=on_progress)
    other = Snapshots(second.to.uri, plan.app).open(again.snapshot)
    compared = compare_states(plan, _side(one, NAMES[0]), _side(other, NAMES[1]))
    if to != request.to.outputs:
        found.report.written = 0  # these files are only compared, and then removed
    found.keys, found.shown = compared.count, compared.shown
    sides = [
        _files(asked.to.outputs.removeprefix(PARQUET), plan.app, each.manifest)
        for asked, each in ((first, one), (second, other))
    ]
    found.outputs = list(_compare_outputs(plan, sides[0], sides[1]))
    if found.differs and one.manifest.source == "tape":
        _explain(found, second, engine_of)
    if found.stopped:
        found.report = None
    return found


def _side(snapshot: Snapshot, name: str) -> Side:
    cuts = {task.partition: task.cut for task in snapshot.manifest.tasks}
    schemas = {task.partition: task.schema for task in snapshot.manifest.tasks}
    return Side(name, snapshot.rows, cuts.get, schemas.get)


# --- outputs ---


def _files(uri: str, app: str, manifest: Manifest) -> dict[int, Place]:
    folder = Place.at(uri) / app / manifest.id
    named = msgspec.json.decode((folder / MANIFEST).read(), type=OutputsManifest)
    return {one.partition: folder / one.name for one in named.files}


def _compare_outputs(plan: Plan, one: dict[int, Place], other: dict[int, Place]) -> Iterator[Difference]:
    for number in range(plan.partitions):
        was, now = (read_outputs(files[number]) if number in files else iter(()) for files in (one, other))
        if pair := first_apart(was, now):
            yield output_difference(plan, number, *pair, NAMES)


# --- from which event on ---


def _explain(found: TwiceReport, request: Request, engine_of: Callable[[int], Engine]) -> None:
    """Replay the history of the differing keys with both settings, and add to each difference where it begins."""
    wanted: dict[int, list[bytes]] = {}
    for each in (*found.shown, *found.outputs):
        wanted.setdefault(each.partition or 0, []).append(each.key_bytes or b"")
    tracks: list[dict[KeyOfActor, list[Step]]] = []
    for seed, variant in zip(SEEDS, (Variant(), ANOTHER), strict=True):
        job = settled_job(replace(request, execution=replace(request.execution, variant=variant)))
        units = [
            Unit(job=job, kind="trace", partition=number, keys=tuple(keys)) for number, keys in wanted.items()
        ]
        work = WorkFolder(Path(job.work))
        with work.held():
            work.make()
            made: list[tuple[KeyOfActor, list[Step]]] = []
            for result in engine_of(seed).run(units, _nothing):
                if result.failure is not None:
                    raise result.failure.error()
                made += msgspec.msgpack.decode(
                    result.made["tracks"], type=list[tuple[KeyOfActor, list[Step]]]
                )
            tracks.append(dict(made))
            work.clear()
    found.shown = [
        replace(each, since=_where(tracks, (each.actor or "", each.key_bytes or b""))) for each in found.shown
    ]
    found.outputs = [replace(each, since=_of_output(tracks, each.key_bytes or b"")) for each in found.outputs]


def _where(tracks: Sequence[dict[KeyOfActor, list[Step]]], place: KeyOfActor) -> str:
    return first_step_apart(tracks[0].get(place, []), tracks[1].get(place, []), NAMES)


def _of_output(tracks: Sequence[dict[KeyOfActor, list[Step]]], key: bytes) -> str:
    for place in tracks[0]:
        if place[1] == key and tracks[0][place] != tracks[1].get(place):
            return f"{_where(tracks, place)} of {place[0]}"
    return ""


def _nothing() -> None:
    """Progress is not reported."""
