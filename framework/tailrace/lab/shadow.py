"""``tailrace run B --shadow A``: version B follows A, which runs, and the comparison of both grows.

Theory. A *round* takes both versions in stages from where the last one ended to the last commits of A, each from its snapshot of the
round before, so a round handles what is new; it then compares the states and all outputs so far. A shadow only reads the log: it owns no task, writes to no topic, and runs at a low priority. What it has lies in a hidden folder of
the results::

    step                                                   killed before the next step
    1  both versions are rebuilt: snapshots                the round begins again, from the snapshots of the round before
       in the folder ``round-N``
    2  outputs of the round join those of all rounds       the same; the files are replaced by equal ones
    3  ``round-N/compared``: what differs by now           the same
    4  tables and page written, each as a whole            the same
    5  ``shadow.json`` names round N                       the next round begins with N
    6  what earlier rounds needed is removed               it is removed at the next start

So nothing is lost or doubled: what a round has found counts if ``shadow.json`` names it. The first event of a key is searched
once, in the round at the end of which the key differs for the first time.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout
from msgspec.structs import replace

from tailrace.core.counting import counted, listed
from tailrace.core.errors import OptionError, ReplayDivergedError
from tailrace.core.formats import FOLDER_MODE
from tailrace.lab.ab import part_of
from tailrace.lab.comparison import AbReport, Comparison, Say, Wanted
from tailrace.lab.differences import Counts, Made, partition_of_outputs
from tailrace.lab.first_events import Cause, First, Item
from tailrace.lab.metrics import read_metrics
from tailrace.lab.side import Rebuilt
from tailrace.lab.tables import fields_of, items_to_trace, keys_as_text, write_page, write_tables
from tailrace.lab.versions import About, Version
from tailrace.log.interface import Ends
from tailrace.processes.signals import stop_signals
from tailrace.state.snapshots.arrow import parquet

_HIDDEN = ".shadow"
_SHOWN = 5
_NOT_MEASURED = "nothing: tailrace ab measures how A differs from itself"


class Kept(msgspec.Struct):
    """What a shadow has: of which command and code, and up to which round."""

    wanted: Wanted
    code: list[str]
    topics: bytes
    """What the log notes of the topics of both."""
    round: int = 0
    made: list[Made] = []
    """By A and by B: the last snapshot."""
    ends: Ends | None = None
    firsts: list[tuple[Item, Cause | None]] = []
    """Each key whose first event was searched."""
    report: AbReport | None = None


class _Stopped(BaseException):
    """Ends a shadow, at any moment."""


def follow(wanted: Wanted, every_s: float, say: Say = lambda _: None, *, rounds: int | None = None) -> None:
    """Follow A with B, until SIGTERM or Ctrl-C. ``rounds``: end after as many.

    Raises:
        OptionError: B cannot follow A, or the folder is not free.
        TailraceError: What a rebuild raises, with the version's name before it.
    """
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped:  # once: the way out is not interrupted
            stopped = True
            raise _Stopped

    to = Path(wanted.to).absolute()
    hidden = to / _HIDDEN
    if to.exists() and (not to.is_dir() or any(to.iterdir())) and not hidden.is_dir():
        raise OptionError(f"there is something in {wanted.to!r}", hint="Name a new or an empty folder.")
    hidden.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    try:
        with FileLock(hidden / "lock", timeout=0), ExitStack() as stack, stop_signals(stop):
            _Shadow(wanted, to, stack, every_s, say).run(rounds)
    except Timeout:
        raise OptionError(
            f"another shadow writes into {wanted.to!r}", hint="Stop it, or name a folder of its own."
        ) from None
    except _Stopped:
        pass


class _Shadow:
    def __init__(self, wanted: Wanted, to: Path, stack: ExitStack, every_s: float, say: Say) -> None:
        self._wanted, self._to, self._every_s, self._say = wanted, to, every_s, say
        self._hidden = to / _HIDDEN
        self._both = Comparison(wanted, self._hidden, stack, lambda _: None)
        self._metrics = [] if wanted.metrics is None else read_metrics(Path(wanted.metrics))
        self._kept = self._taken_up()
        self._clean()

    def _taken_up(self) -> Kept:
        """What an earlier run has left. Raises OptionError: B cannot follow A, or it was another shadow."""
        # Once both are loaded: where they share a process, the code of one is what the other has loaded, too.
        versions = self._both.a, self._both.b
        one, other = (each.ask("about", About, reference=each.place.reference) for each in versions)
        if others := {*one.inputs} ^ {*other.inputs}:
            raise OptionError(
                f"a shadow gets the events of A, and only one of both reads {listed(sorted(others), _SHOWN)}",
                hint="Compare them with tailrace ab.",
            )
        if one.partitions != other.partitions:
            raise OptionError(
                f"A has {counted(one.partitions, 'partition')}, B has {other.partitions}",
                hint="A shadow has the tasks of A: give B as many.",
            )
        topics = self._both.note_of_topics()
        file, fresh = self._hidden / "shadow.json", Kept(self._wanted, [one.code, other.code], topics)
        if not file.is_file():
            return fresh
        kept = msgspec.json.decode(file.read_bytes(), type=Kept)
        if kept.wanted != fresh.wanted or kept.code != fresh.code:
            what = "with other code" if kept.wanted == fresh.wanted else "by another command"
            raise OptionError(f"{self._wanted.to!r} was begun {what}", hint="Name a new folder.")
        if kept.topics != topics:
            raise OptionError(
                f"{self._wanted.to!r} was begun with other topics: one was created since, or all are of another log",
                hint="Name a new folder.",
            )
        return kept

    def run(self, rounds: int | None) -> None:
        """Rounds, each ``every_s`` after the one before, or as long after as that took."""
        done = 0
        while True:
            begun_s = time.monotonic()
            self._both.ends = self._both.present()
            if self._both.ends != self._kept.ends:
                self._round()
            done += 1
            if done == rounds:
                return
            took_s = time.monotonic() - begun_s
            time.sleep(max(self._every_s - took_s, took_s))

    def _round(self) -> None:
        kept, both = self._kept, self._both
        kept.round += 1
        folder = self._hidden / f"round-{kept.round}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        both.bases = dict(zip("AB", kept.made, strict=False))
        rebuilt, results = self._rebuilt(folder), folder / "results"
        made = [one.made for one in rebuilt]
        kept.ends, kept.made = both.ends, [replace(one, outputs=()) for one in made]
        tables = folder / "tables"
        both.b.ask("tables", list[str], made=made[1], folder=str(tables))
        so_far = [self._so_far(name, one) for name, one in zip("AB", made, strict=True)]
        kept.report = report = self._compared(
            folder, so_far, kept.report or replace(both.report, part=part_of(rebuilt))
        )
        if self._metrics:
            report.metrics = both.measured(self._metrics, so_far, results)
        report.noise_measured = _NOT_MEASURED
        for name, side in zip("AB", rebuilt, strict=True):
            report.notes += [f"{name}: {note}" for note in side.report.notes]
        write_page(report, results, refresh_s=self._every_s)
        (results / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        self._publish(results, tables)
        file = self._hidden / "shadow.json"
        file.with_suffix(".new").write_bytes(msgspec.json.encode(kept))
        file.with_suffix(".new").replace(file)
        self._clean()
        counts = report.counts
        self._say(f"round {kept.round}: {counts.keys_differ:,} of {counted(counts.keys, 'key')} differ")

    def _rebuilt(self, folder: Path) -> list[Rebuilt]:
        """Both versions at the last commits of A."""

        def made(version: Version) -> Rebuilt:
            (into := folder / version.name).mkdir(parents=True)
            request = self._both.request(version, self._both.order, into)
            return version.ask(
                "make", Rebuilt, request=request, folder=str(into), workers=self._wanted.workers
            )

        try:
            return [made(self._both.a), made(self._both.b)]
        except ReplayDivergedError as error:
            raise OptionError(
                f"operators feed each other, so both follow the tape of A, and the results differ: {error.what}",
                hint="A shadow of other results needs an app without a circle.",
            ) from error

    def _so_far(self, name: str, made: Made) -> Made:
        """The snapshot of a round, and the outputs of all rounds, which those of this round join."""
        into = self._hidden / "outputs" / name
        into.mkdir(parents=True, exist_ok=True)
        for file in made.output_files():
            number, stage = partition_of_outputs(file), file.name.split("-")[2]
            file.replace(into / f"outputs-{number:05d}-{self._kept.round:08d}-{stage}.parquet")
        return replace(made, outputs=(str(into),))

    def _compared(self, folder: Path, made: list[Made], last: AbReport) -> AbReport:
        """Compare what both have made so far, into ``results``; keeps the first events that are new."""
        both, kept, results, compared = self._both, self._kept, folder / "results", folder / "compared"
        results.mkdir()
        compared.mkdir()
        counts = both.a.ask("compare", Counts, one=made[0], other=made[1], folder=str(compared))
        known = dict(kept.firsts)
        items = [one for one in items_to_trace(compared, self._wanted.first_events) if one not in known]
        found, traces = both.first_events(items, compared, both.order)
        new = dict(found)
        known |= {one: _earliest(one, new.get(one), known) for one in items}
        kept.firsts = list(known.items())
        firsts: list[First] = [(item, cause) for item, cause in known.items() if cause is not None]
        write_tables(compared, firsts, results)
        worst = [one for one in items_to_trace(compared, _SHOWN) if one.kind == "state"]
        shown = set(zip([one.name for one in worst], keys_as_text(compared, worst), strict=True))
        note = f"round {kept.round} of a shadow, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC"
        return replace(
            last,
            order=both.order,
            counts=counts,
            fields=fields_of(results),
            traces=[one for one in (*last.traces, *traces) if (one.name, one.key) in shown],
            notes=[note],
        )

    def _publish(self, results: Path, tables: Path) -> None:
        """Move tables and page into the folder of the results, the page last."""
        for file in sorted((tables / "outputs").rglob("*.parquet")):
            if parquet.read_metadata(file).num_rows or self._kept.round == 1:
                into = self._to / "outputs" / file.parent.name
                into.mkdir(parents=True, exist_ok=True)
                file.replace(into / f"{self._kept.round:08d}-{file.name}")
        shutil.rmtree(self._to / "states", ignore_errors=True)
        (tables / "states").replace(self._to / "states")
        for file in sorted(results.iterdir(), key=lambda one: one.suffix != ".parquet"):
            file.replace(self._to / file.name)

    def _clean(self) -> None:
        """Remove what no later round needs."""
        for folder in self._hidden.glob("round-*"):
            if folder.name != f"round-{self._kept.round}":
                shutil.rmtree(folder)


def _earliest(item: Item, found: Cause | None, known: dict[Item, Cause | None]) -> Cause | None:
    """The first event of an item: of outputs that of the state of an actor with the same key, if a round before has it."""
    causes = [
        cause
        for one, cause in known.items()
        if item.kind == "output" and (one.kind, one.key) == ("state", item.key) and cause is not None
    ]
    return min(causes, key=lambda one: one.time_ms, default=found)  # a round before is earlier
