"""``tailrace ab``: two versions of an app compared on the same history.

1. Rebuild   A and B are rebuilt at once, in stages, over the same history. An app with a circle has no stages: both follow the tape,
             which only versions with equal results can.
2. Noise     what order alone changes: if A has operators whose order in stages is one of several, A in stages is compared with A
             along the tape, which is what the service has stored. Otherwise a second process, with other hashes, rebuilds a first
             part of history once more.
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
from tailrace.core.errors import InputsChangedError, ReplayDivergedError, UsageError
from tailrace.core.formats import FOLDER_MODE
from tailrace.core.records import RecordMark
from tailrace.history.provenance.judging import last_marks
from tailrace.history.rebuilding.planning import RebuildPlan
from tailrace.lab.comparison import AbReport, Comparison, Say, Wanted
from tailrace.lab.differences import Counts
from tailrace.lab.files import published
from tailrace.lab.metrics import Limit, Metric, is_exceeded, read_limit, read_metrics
from tailrace.lab.side import Rebuilt
from tailrace.lab.tables import check_installed, fields_of, items_to_trace, write_page, write_tables
from tailrace.log.interface import Ends
from tailrace.log.opening import open_past

_SHOWN = 5
_FIRST_PART = 5_000, 50_000
"""Fewest and most records of the part of history that is run twice to measure noise: a tenth, if it is between."""

_NOTHING = "nothing is compared"
_CIRCLE = "operators feed each other, so there are no stages"


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
    last: dict[str, list[RecordMark | None]]
    """The last records before these ends: a log that has lost its end since, and has other records since, has others."""


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
            same = (begun.wanted, begun.topics) == (self._wanted, topics)
            if same and begun.last == self._last_before(begun.ends):
                return begun.ends
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(FOLDER_MODE)
        begun = _Begun(self._wanted, topics, self.ends, self._last_before(self.ends))
        file.write_bytes(msgspec.json.encode(begun))
        return self.ends

    def _last_before(self, ends: Ends) -> dict[str, list[RecordMark | None]]:
        with closing(open_past(self._wanted.source)) as log:
            return {name: last_marks(log, name, of) for name, of in ends.offsets.items()}

    def run(self, metrics: Sequence[Metric]) -> AbReport:
        """See ``compare_versions``."""
        report = self.report
        made = self._rebuilt()
        self._measure_noise(made[0])
        report.part, report.order = part_of(made), self.order
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
        order = self.order
        if order == "stages":
            return self.at_once(partial(self.make, self.a, order), partial(self.make, self.b, order))
        self.report.why = _CIRCLE
        try:
            return self.at_once(partial(self.make, self.a, order), partial(self.make, self.b, order))
        except ReplayDivergedError as error:
            error.hint = (
                f"{_CIRCLE}, so only versions with the results of the service can be compared: {error.hint}"
            )
            raise

    def _measure_noise(self, one: Rebuilt) -> None:
        """Compare A with itself: with the order of the service, if that may matter, or in another process."""
        report, operators = self.report, self.about[0].one_order
        if one.report.order == "tape":
            report.noise_measured = "what the service has stored"
        elif operators and self._has_run():
            self._measure_by_service(one, operators)
        else:
            self._measure_again()

    def _has_run(self) -> bool:
        """Whether the service that has written the tape is A, as far as versions tell."""
        planned = self.a.ask(
            "planned", RebuildPlan, request=self.request(self.a, "auto", self._work / "planned")
        )
        return planned.order == "tape"

    def _measure_by_service(self, one: Rebuilt, operators: Sequence[str]) -> None:
        """Compare A in stages with A along the tape."""
        report, named = self.report, listed(operators, _SHOWN)
        report.noise_measured = (
            f"what the service has stored (on arrival, in an order that is one of several: {named})"
        )
        try:
            of_service = self.make(self.a, "tape")
        except (ReplayDivergedError, InputsChangedError) as error:
            report.noise.append(f"{error.what}: A is not the code that ran, or it is not deterministic")
            return
        if of_service.begun_with and one.begun_with != of_service.begun_with:
            self._measure_again()
            return
        self._compare_with_itself(of_service, one, f"by the order of arrival alone ({named})")

    def _compare_with_itself(self, one: Rebuilt, other: Rebuilt, why: str) -> None:
        into = str(self._work / "noise")
        found = self.a.ask("compare", Counts, one=one.made, other=other.made, folder=into)
        for count, what in ((found.keys_differ, "key"), (found.outputs_differ, "output")):
            if count:
                self.report.noise.append(
                    f"{counted(count, what)} of A {'differs' if count == 1 else 'differ'} {why}"
                )

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
        fewest, most = _FIRST_PART
        part = min(records, most, max(fewest, records // 10))
        share, limits = part / max(records, 1), dict[str, dict[int, int]]()
        for (name, at), (start, end) in parts.items():
            limits.setdefault(name, {})[at] = start + math.ceil((end - start) * share)
        again = self._started("A again", self._places[0], seed=1)
        made = self.at_once(
            *(
                partial(self.make, version, "stages", self._work / f"noise-{number}", until=Limits(limits))
                for number, version in enumerate((self.a, again))
            )
        )
        report.noise_measured = f"a second run of A over {part:,} records, with other hashes"
        self._compare_with_itself(*made, "between two runs of A")


def part_of(made: Sequence[Rebuilt]) -> str:
    """See ``AbReport.part``."""
    reports = [one.report for one in made]
    begun = next((one.begun_with for one in made if one.begun_with), "")
    since = f"what came after the snapshot {begun}, with which history begins" if begun else "history"
    if not any(one.events if one.resumed else one.replayed for one in reports):
        return f"{_NOTHING}: {since} has no records"
    return f"compared is only {since}" if begun else ""
