"""``tailrace ab``: two versions of an app compared on the same history.

1. Noise     A is rebuilt. Along the tape, its rows and outputs are compared with what the service has stored.
             In canonical order a second process, with other hashes, rebuilds a first part of history once more.
2. B         is rebuilt in the same order, over the same history. If it sends itself other records than are
             recorded, both are rebuilt in canonical order.
3. Results   the differences of states and outputs, the first event of each key, metrics, and a page.

What is made under way lies beside the results, in a hidden folder. After an interruption, what is there of the same
command and code is used again.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from tailrace.core.counting import counted, listed
from tailrace.core.declare.topic import OnError
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import (
    BadRecordError,
    EnvironmentMismatchError,
    HandlerError,
    InputsChangedError,
    OptionError,
    ReplayDivergedError,
    UnknownTopicError,
    UsageError,
)
from tailrace.history.reading.generations import changelog_in
from tailrace.history.reading.same_topics import note_of_topics
from tailrace.history.rebuilding.checked_request import checked
from tailrace.history.rebuilding.output_files import PARQUET
from tailrace.history.rebuilding.past import open_source
from tailrace.history.rebuilding.request import Destination, Failures, Order, Request, Source
from tailrace.lab.differences import Counts, Made
from tailrace.lab.files import published
from tailrace.lab.key_traces import Paragraph
from tailrace.lab.metrics import (
    Limit,
    Measured,
    Metric,
    is_exceeded,
    measure,
    measured,
    read_limit,
    read_metrics,
)
from tailrace.lab.python_metrics import Numbers
from tailrace.lab.side import About, Rebuilt
from tailrace.lab.tables import (
    Field,
    check_installed,
    fields_of,
    items_to_trace,
    keys_as_text,
    write_metrics,
    write_page,
    write_tables,
)
from tailrace.lab.trail import First, Item
from tailrace.lab.versions import Place, Version, placed
from tailrace.log.interface import Ends, OneCommitLog

Say = Callable[[str], None]
_SHOWN = 5
_TRACED = 5
"""Number of keys that are traced."""
_FIRST_PART = 50_000
"""Records of the part of history that measures noise in canonical order."""

_NOTHING = "nothing is compared"
NOT_ALONG_TAPE = (EnvironmentMismatchError, InputsChangedError, ReplayDivergedError, UnknownTopicError)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compared, and how."""

    a: str
    b: str
    source: Source
    to: str
    order: Order = "auto"
    failures: Failures = Failures()
    """What a rebuild does about failures that the service did not have."""
    python_b: str | None = None
    workers: int | None = None
    first_events: int = 1000
    """Number of differing keys, and of output keys, whose first event is searched."""
    metrics: str | None = None
    """A file of metrics: SQL, or Python if its name ends in ``.py``."""
    limits: tuple[str, ...] = ()


class KeyTrace(msgspec.Struct):
    """What happens in both versions to a key around the first event from which they part."""

    name: str
    """Of its actor."""
    key: str
    a: list[Paragraph]
    b: list[Paragraph]


class AbReport(msgspec.Struct, kw_only=True):
    """The result of a comparison of versions."""

    app: str
    a: str
    b: str
    part: str = ""
    """What is compared, if that is nothing or a part of history."""
    order: Order = "auto"
    """The order that both were rebuilt in."""
    why: str = ""
    """Why the order is not that of the tape."""
    noise: list[str] = []
    """How A differs from itself, or from the service; empty if it does not."""
    noise_measured: str = ""
    """What A was compared with."""
    counts: Counts = msgspec.field(default_factory=Counts)
    fields: list[Field] = []
    metrics: list[Measured] = []
    traces: list[KeyTrace] = []
    """Of the keys that differ most."""
    exceeded: list[str] = []
    """The limits that are exceeded."""
    unanswered: list[str] = []
    """Why a limit is neither kept nor exceeded."""
    folder: str
    notes: list[str] = []
    seconds: float = 0.0


def compare_versions(wanted: Wanted, say: Say = lambda _: None) -> AbReport:
    """Compare two versions, and publish the results.

    Raises:
        OptionError: There is something in the destination, or the versions cannot be compared.
        TailraceError: What a rebuild raises, with the version's name before it.
    """
    begun_s = time.perf_counter()
    check_installed()
    if not _is_python(wanted):  # errors in them are reported before a process starts
        sql = [] if wanted.metrics is None else read_metrics(Path(wanted.metrics))
        for one in wanted.limits:
            read_limit(one, sql)
    with published(Path(wanted.to), "ab", worth="work/*/") as folder, ExitStack() as stack:
        both = _Ab(wanted, folder, stack, say)
        metrics = both.metrics()
        limits = [read_limit(one, metrics) for one in wanted.limits]
        report = both.run(metrics)
        _judge(report, limits)
        write_page(report, folder)
        report.seconds = time.perf_counter() - begun_s
        (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return report


def _is_python(wanted: Wanted) -> bool:
    return wanted.metrics is not None and wanted.metrics.endswith(".py")


def _judge(report: AbReport, limits: Sequence[Limit]) -> None:
    """Compare with the limits. One without an answer does not cost the others theirs."""
    if limits and report.part.startswith(_NOTHING):
        report.unanswered.append(f"{report.part}, so it meets no limit")
        return
    for one in limits:
        try:
            if is_exceeded(one, report.counts, report.metrics):
                report.exceeded.append(one.text)
        except UsageError as error:
            report.unanswered.append(f"{error.what}: {error.hint}")


class Comparison:
    """The processes of both versions, and what they do for a comparison, in the folder ``work``.

    ``ends``: up to where history goes; ``bases``: the snapshots with which a version begins, by its name, if not with nothing.
    """

    def __init__(self, wanted: Wanted, work: Path, stack: ExitStack, say: Say) -> None:
        self._wanted, self._work, self._say = wanted, work, say
        self._stack = stack
        self._places = [placed(one, stack) for one in (wanted.a, wanted.b)]
        self.a = self._started("A", self._places[0])
        self.b = self._started("B", self._places[1], wanted.python_b or sys.executable)
        self.about = [one.ask("about", About) for one in (self.a, self.b)]
        one, other = (each.app for each in self.about)
        if one != other:
            raise OptionError(
                f"A and B are not versions of one app: the app is {one!r} in A, {other!r} in B",
                hint="An app under another name is compared as module:app@name.",
            )
        self.ends = self.present()
        self.bases: Mapping[str, Made] = {}
        self.report = AbReport(
            app=one,
            a=f"{wanted.a} ({self._places[0].note})",
            b=f"{wanted.b} ({self._places[1].note}{f', with {wanted.python_b}' if wanted.python_b else ''})",
            folder=wanted.to,
        )

    def _started(self, name: str, place: Place, python: str = sys.executable, seed: int = 0) -> Version:
        version = Version(name, place, python, hash_seed=seed)
        self._stack.callback(version.close)
        return version

    def present(self) -> Ends:
        """Where the topics of both end now."""
        with closing(open_source(self._wanted.source)) as log:
            return log.ends(self._topics_in(log))

    def note_of_topics(self) -> bytes:
        """Of which log the topics of both are: another note means that it, or one of them, was deleted and created again."""
        with closing(open_source(self._wanted.source)) as log:
            return log.identity + note_of_topics(log, self._topics_in(log))

    def _topics_in(self, log: OneCommitLog) -> list[str]:
        names = {one for each in self.about for one in (*each.topics, changelog_in(log, each.app))}
        return sorted(names & log.topics().keys())

    def make(self, version: Version, order: Order, folder: Path | None = None, **how: Any) -> Rebuilt:
        """Rebuild a version."""
        self._say(f"rebuilding {version.name}")
        folder = (
            folder or self._work / f"{version.name}-{order}{'-strict' * how.get('as_the_service', False)}"
        )
        request = self.request(version, order, folder, **how)
        given = {"request": request, "workers": self._wanted.workers, "folder": str(folder)}
        return version.ask("make", Rebuilt, **given)

    def request(
        self,
        version: Version,
        order: Order,
        folder: Path,
        *,
        as_the_service: bool = False,
        until: Limits | None = None,
    ) -> Request:
        """The rebuild of a version."""
        given, source = self._wanted.failures, replace(self._wanted.source, ends=self.ends)
        if (base := self.bases.get(version.name)) is not None:
            source = replace(source, base=base.uri, base_id=base.snapshot)
        on_error: OnError = "stop" if as_the_service else given.on_error
        return checked(
            Request(
                app=version.place.reference,
                source=source,
                to=Destination(uri=str(folder), outputs=f"{PARQUET}{folder / 'outputs'}"),
                order=order,
                until=until or Limits(),
                failures=replace(given, on_error=on_error, lenient=not as_the_service),
            )
        )

    def measure_by_service(self, one: Rebuilt) -> None:
        """Compare A along the tape with what the service has stored, if its rows were."""
        report, rows = self.report, one.report
        if not rows.same_rows + rows.other_rows:
            return
        self._say("comparing A with the service")
        report.noise_measured = "what the service has stored"
        request = self.request(self.a, "tape", self._work)
        outputs = self.a.ask("outputs_as_stored", int, request=request, made=one.made)
        for count, what in ((rows.other_rows, "row"), (outputs, "output")):
            if count:
                report.noise.append(f"{counted(count, what)} of A are not those of the service")

    def metrics(self) -> list[Metric]:
        """The metrics of a comparison. Raises OptionError: some cannot be read, or the versions have other ones."""
        if self._wanted.metrics is None:
            return []
        if not _is_python(self._wanted):
            return read_metrics(Path(self._wanted.metrics))
        file = str(Path(self._wanted.metrics).absolute())
        one, other = (
            each.ask("metric_names", list[tuple[str, bool]], file=file) for each in (self.a, self.b)
        )
        if one != other:
            raise OptionError(
                f"the metrics in {self._wanted.metrics!r} are others in A than in B",
                hint="Define them in both in the same way.",
            )
        return [Metric(name, file, "unit" if has_unit else None) for name, has_unit in one]

    def measured(self, metrics: Sequence[Metric], made: Sequence[Made], into: Path) -> list[Measured]:
        """Measure what both have made, and write ``metrics.parquet``."""
        folders, numbers = dict[str, Path](), dict[str, Numbers]()
        for version, one in zip((self.a, self.b), made, strict=True):
            self._say(f"measuring {version.name}")
            if _is_python(self._wanted):
                numbers[version.name] = version.ask(
                    "python_metrics", Numbers, file=metrics[0].query, made=one
                )
                continue
            folders[version.name] = self._work / f"tables-{version.name}"
            notes = version.ask("tables", list[str], made=one, folder=str(folders[version.name]))
            self.report.notes += [f"{version.name}: {note}" for note in notes]
        found = (
            [measured(one, {name: dict(each[one.name]) for name, each in numbers.items()}) for one in metrics]
            if numbers
            else measure(metrics, folders)
        )
        write_metrics(found, into)
        return found

    # --- the first events

    def first_events(self, items: Sequence[Item], order: Order) -> list[First]:
        """The first events of keys that differ."""
        one, other = self.about
        both = {
            name: None
            if one.schemas[name] == other.schemas[name]
            else sorted({*one.fields[name]} & {*other.fields[name]})
            for name in sorted(one.fields.keys() & other.fields.keys())
        }
        firsts: list[First] = []
        for version in (self.a, self.b):
            self._say(f"finding first events in {version.name}")
            folder = self._work / f"first-events-{version.name}"
            shutil.rmtree(folder, ignore_errors=True)
            request, trail = self.request(version, order, folder), str(self._work / "trail")
            given = {"request": request, "items": items, "both": both, "trail": trail}
            firsts = version.ask("first_events", list[First], **given, second=version is self.b)
        return firsts

    def traces(self, compared: Path, firsts: Sequence[First], order: Order) -> list[KeyTrace]:
        """The traces of the keys that differ most, of those that have first events."""
        by_item, found = dict(firsts), list[list[list[Paragraph]]]()
        worst = [
            item for item in items_to_trace(compared, _TRACED) if item.kind == "state" and item in by_item
        ]
        if not worst:
            return []
        for version in (self.a, self.b):
            self._say(f"tracing in {version.name}")
            folder = self._work / f"traces-{version.name}"
            shutil.rmtree(folder, ignore_errors=True)
            request = self.request(version, order, folder)
            given = [(one, by_item[one]) for one in worst]
            found.append(version.ask("key_traces", list[list[Paragraph]], request=request, firsts=given))
        names = [one.name for one in worst]
        return list(map(KeyTrace, names, keys_as_text(compared, worst), *found))


class _Begun(msgspec.Struct, frozen=True):
    """What an interrupted comparison has settled: its command, the topics, and where history ends."""

    wanted: Wanted
    topics: bytes
    ends: Ends


class _Ab(Comparison):
    def __init__(self, wanted: Wanted, folder: Path, stack: ExitStack, say: Say) -> None:
        super().__init__(wanted, folder.parent / "work", stack, say)
        self._folder = folder
        self.ends = self._settled_ends()

    def _settled_ends(self) -> Ends:
        """Where history ends, for both versions and for a run that continues this one. Removes what another command has left, or
        what was made from topics that were deleted since.
        """
        file, topics = self._work / "begun.json", self.note_of_topics()
        if file.is_file():
            begun = msgspec.json.decode(file.read_bytes(), type=_Begun)
            if (begun.wanted, begun.topics) == (self._wanted, topics):
                return begun.ends
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        file.write_bytes(msgspec.json.encode(_Begun(self._wanted, topics, self.ends)))
        return self.ends

    def run(self, metrics: Sequence[Metric]) -> AbReport:
        """See ``compare_versions``."""
        report = self.report
        made = self._rebuilt()
        report.part = part_of(made)
        report.order = "tape" if made[0].report.order == "tape" else "canonical"
        for name, one in zip("AB", made, strict=True):
            report.notes += [f"{name}: {note}" for note in one.report.notes]
        self._say("comparing")
        compared = self._work / "compared"
        report.counts = self.a.ask(
            "compare", Counts, one=made[0].made, other=made[1].made, folder=str(compared)
        )
        items = items_to_trace(compared, self._wanted.first_events)
        firsts = self.first_events(items, report.order) if items else []
        write_tables(compared, firsts, self._folder)
        report.traces = self.traces(compared, firsts, report.order)
        report.fields = fields_of(self._folder)
        if metrics:
            report.metrics = self.measured(metrics, [one.made for one in made], self._folder)
        return report

    # --- the rebuilds

    def _rebuilt(self) -> tuple[Rebuilt, Rebuilt]:
        """Both versions, in one order."""
        report = self.report
        if others := {*self.about[0].inputs} ^ {*self.about[1].inputs}:
            report.why = f"only one of them reads {listed(sorted(others), _SHOWN)}"
        elif self._wanted.order == "canonical":
            report.why = "as --order says"
        one = self.make(self.a, "canonical") if report.why else self._rebuilt_a()
        if one.report.order == "tape":
            self.measure_by_service(one)
            try:
                other = self.make(self.b, "tape")
            except NOT_ALONG_TAPE as error:
                report.why = f"along the tape, {error.what}"
                one, other = self.make(self.a, "canonical"), self.make(self.b, "canonical")
        else:
            report.why = report.why or "there is no tape, or its beginning is deleted"
            other = self.make(self.b, "canonical")
        if not report.noise_measured:
            self._measure_again()
        return one, other

    def _rebuilt_a(self) -> Rebuilt:
        report = self.report
        try:
            return self.make(self.a, "auto", as_the_service=True)
        except (ReplayDivergedError, HandlerError, BadRecordError) as error:
            if not isinstance(error, ReplayDivergedError) and self._wanted.failures.on_error == "stop":
                raise
            report.noise_measured = "what the service has stored"
            report.noise.append(f"{error.what}: A is not the code that ran, or it is not deterministic")
        try:
            return self.make(self.a, "auto")
        except ReplayDivergedError as error:
            report.why = f"along the tape, {error.what}"
            return self.make(self.a, "canonical")

    # --- noise

    def _measure_again(self) -> None:
        """Compare A with A in another process with other hashes, over a first part of history."""
        report = self.report
        if self._wanted.source.base is not None:
            report.noise_measured = "nothing: a history that begins with a snapshot has no first part"
            return
        with closing(open_source(self._wanted.source)) as log:
            parts = {
                (name, at): (log.start_offset(name, at), end)
                for name in self.about[0].inputs
                for at, end in enumerate(self.ends.offsets[name])
            }
        records = sum(end - start for start, end in parts.values())
        share, limits = min(1.0, _FIRST_PART / max(records, 1)), dict[str, dict[int, int]]()
        for (name, at), (start, end) in parts.items():
            limits.setdefault(name, {})[at] = start + math.ceil((end - start) * share)
        made = [
            self.make(version, "canonical", self._work / f"noise-{number}", until=Limits(limits)).made
            for number, version in enumerate((self.a, self._started("A again", self._places[0], seed=1)))
        ]
        report.noise_measured = (
            f"a second run of A over {min(records, _FIRST_PART):,} records, with other hashes"
        )
        into = str(self._work / "noise")
        found = self.a.ask("compare", Counts, one=made[0], other=made[1], folder=into)
        for count, what in ((found.keys_differ, "key"), (found.outputs_differ, "output")):
            if count:
                report.noise.append(f"{counted(count, what)} of A differ between two runs of A")


def part_of(made: Sequence[Rebuilt]) -> str:
    """See ``AbReport.part``."""
    reports = [one.report for one in made]
    begun = next((one.begun_with for one in made if one.begun_with), "")
    since = f"what came after the snapshot {begun}, with which history begins" if begun else "history"
    if not any(one.events if one.resumed else one.replayed for one in reports):
        return (
            f"{_NOTHING}: {since}{', has no records: try --order canonical' if begun else ' has no records'}"
        )
    return f"compared is only {since}" if begun else ""
