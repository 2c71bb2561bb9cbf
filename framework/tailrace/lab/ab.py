"""``tailrace ab``: two versions of an app compared on the same history.

1. Rebuild   A and B are rebuilt at once, in the same order, over the same history. If B sends itself other records
             than are recorded, both are rebuilt in canonical order.
2. Noise     Along the tape, A's rows and outputs are compared with what the service has stored. In canonical order
             a second process, with other hashes, rebuilds a first part of history once more.
3. Results   the differences of states and outputs, the first event of each key, metrics, and a page.

What is made under way lies beside the results, in a hidden folder. After an interruption, what is there of the same
command and code is used again.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import msgspec

from tailrace.core.counting import counted, listed
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import (
    BadRecordError,
    EnvironmentMismatchError,
    HandlerError,
    InputsChangedError,
    ReplayDivergedError,
    TailraceError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.formats import FOLDER_MODE
from tailrace.history.rebuilding.request import Order
from tailrace.lab.comparison import AbReport, Comparison, Say, Wanted
from tailrace.lab.differences import Counts
from tailrace.lab.files import published
from tailrace.lab.metrics import Limit, Metric, is_exceeded, read_limit, read_metrics
from tailrace.lab.side import Rebuilt
from tailrace.lab.tables import check_installed, fields_of, items_to_trace, write_page, write_tables
from tailrace.lab.versions import Version
from tailrace.log.interface import Ends
from tailrace.log.opening import open_past

_SHOWN = 5
_FIRST_PART = 50_000
"""Records of the part of history that measures noise in canonical order."""

_NOTHING = "nothing is compared"
NOT_ALONG_TAPE = (EnvironmentMismatchError, InputsChangedError, ReplayDivergedError, UnknownTopicError)


def compare_versions(wanted: Wanted, say: Say = lambda _: None) -> AbReport:
    """Compare two versions, and publish the results.

    Raises:
        OptionError: There is something in the destination, or the versions cannot be compared.
        TailraceError: What a rebuild raises, with the version's name before it.
    """
    begun_s = time.perf_counter()
    check_installed()
    # errors in these are reported before a process starts
    metrics = [] if wanted.metrics is None else read_metrics(Path(wanted.metrics))
    limits = [read_limit(one, metrics) for one in wanted.limits]
    with published(Path(wanted.to), "ab", worth="work/*/") as folder, ExitStack() as stack:
        both = _Ab(wanted, folder, stack, say)
        report = both.run(metrics)
        _judge(report, limits)
        write_page(report, folder)
        report.seconds = time.perf_counter() - begun_s
        (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return report


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
        self._work.mkdir(FOLDER_MODE)
        file.write_bytes(msgspec.json.encode(_Begun(self._wanted, topics, self.ends)))
        return self.ends

    def run(self, metrics: Sequence[Metric]) -> AbReport:
        """See ``compare_versions``."""
        report = self.report
        made = self._rebuilt()
        if not report.noise_measured:
            self._measure_again()
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
        firsts, report.traces = self.first_events(items, compared, report.order)
        write_tables(compared, firsts, self._folder)
        report.fields = fields_of(self._folder)
        if metrics:
            report.metrics = self.measured(metrics, [one.made for one in made], self._folder)
        return report

    def _rebuilt(self) -> tuple[Rebuilt, Rebuilt]:
        """Both versions, in one order."""
        report = self.report
        if others := {*self.about[0].inputs} ^ {*self.about[1].inputs}:
            report.why = f"only one of them reads {listed(sorted(others), _SHOWN)}"
        elif self._wanted.order == "canonical":
            report.why = "as --order says"
        if not report.why:
            one, other = self.at_once(self._rebuilt_a, partial(self._attempted, self.b, "auto"))
            if one.report.order == "tape":
                if isinstance(other, Rebuilt) and other.report.order != "tape":
                    other = self._attempted(self.b, "tape")
                if isinstance(other, Rebuilt):
                    return one, other
                if not isinstance(other, NOT_ALONG_TAPE):
                    raise other
                report.why = f"along the tape, {other.what}"
            report.why = report.why or "there is no tape, or its beginning is deleted"
        return self.at_once(partial(self.make, self.a, "canonical"), partial(self.make, self.b, "canonical"))

    def _attempted(self, version: Version, order: Order) -> Rebuilt | TailraceError:
        try:
            return self.make(version, order)
        except TailraceError as error:
            return error

    def _rebuilt_a(self) -> Rebuilt:
        report = self.report
        try:
            one = self.make(self.a, "auto", as_the_service=True)
            if one.report.order == "tape":
                self.measure_by_service(one)
            return one
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

    def _measure_again(self) -> None:
        """Compare A with A in another process with other hashes, over a first part of history."""
        report = self.report
        if self._wanted.source.base is not None:
            report.noise_measured = "nothing: a history that begins with a snapshot has no first part"
            return
        with closing(open_past(self._wanted.source)) as log:
            parts = {
                (name, at): (log.start_offset(name, at), end)
                for name in self.about[0].inputs
                for at, end in enumerate(self.ends.offsets[name])
            }
        records = sum(end - start for start, end in parts.values())
        share, limits = min(1.0, _FIRST_PART / max(records, 1)), dict[str, dict[int, int]]()
        for (name, at), (start, end) in parts.items():
            limits.setdefault(name, {})[at] = start + math.ceil((end - start) * share)
        again = self._started("A again", self._places[0], seed=1)
        made = self.at_once(
            *(
                partial(self.make, version, "canonical", self._work / f"noise-{number}", until=Limits(limits))
                for number, version in enumerate((self.a, again))
            )
        )
        report.noise_measured = (
            f"a second run of A over {min(records, _FIRST_PART):,} records, with other hashes"
        )
        into = str(self._work / "noise")
        found = self.a.ask("compare", Counts, one=made[0].made, other=made[1].made, folder=into)
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
