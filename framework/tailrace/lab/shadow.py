"""``tailrace run B --shadow A``: version B follows the tape of A, which runs, and the comparison of both grows.

Theory. A *round* takes both versions from where the last one ended to the last commits of A: each is rebuilt along the tape from
the snapshot of the round before, and what they have made is compared, as ``lab.ab`` does. A shadow only reads the log: it
owns no task, writes to no topic, and runs at a low priority. What it has lies in a hidden folder of the results::

    step                                          killed before the next step
    1  both versions rebuilt into ``round-N``     the round begins again, from the snapshots of the round before
    2  tables and page written, each as a whole   the same; the files are replaced by equal ones
    3  ``shadow.json`` names round N              the next round begins with N
    4  snapshots of the round before removed      they are removed at the next start

So nothing is lost or doubled: outputs count if ``shadow.json`` names their round. The first event of a key is searched once, in
the round at the end of which the key differs for the first time.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from msgspec.structs import replace

from tailrace.core.counting import counted, listed
from tailrace.core.errors import BadRecordError, HandlerError, OptionError, ReplayDivergedError
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.lab.ab import NOT_ALONG_TAPE, AbReport, Comparison, KeyTrace, Say, Wanted, part_of
from tailrace.lab.differences import Counts, Made, partition_of_outputs
from tailrace.lab.side import Rebuilt
from tailrace.lab.tables import fields_of, items_to_trace, keys_as_text, write_page, write_tables
from tailrace.lab.trail import Cause, First, Item
from tailrace.lab.upgrade.tasks import AboutVersion
from tailrace.log.interface import Ends
from tailrace.processes.signals import stop_signals
from tailrace.state.snapshots.arrow import pa, parquet

_HIDDEN = ".shadow"
_SHOWN = 5
_STORED = "the state that the service has stored"
_MOST_PARTS = 32
"""Rounds whose outputs lie in folders of their own; those of more are put together."""


class Kept(msgspec.Struct):
    """What a shadow has: of which command and code, and up to which round."""

    wanted: Wanted
    code: list[str]
    topics: bytes
    """What the log notes of the topics of both."""
    round: int = 0
    made: list[Made] = []
    """By A and by B: the last snapshot, and the folders of all outputs."""
    ends: Ends | None = None
    firsts: list[tuple[Item, Cause | None]] = []
    """Each key whose first event was searched."""
    traces: list[KeyTrace] = []
    part: str = ""


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
    hidden.mkdir(parents=True, exist_ok=True)
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
        self._metrics = self._both.metrics()
        self._kept = self._taken_up()
        self._clean()

    def _taken_up(self) -> Kept:
        """What an earlier run has left. Raises OptionError: B cannot follow A, or it was another shadow."""
        one, other = (
            each.ask("about_version", AboutVersion, reference=each.place.reference)
            for each in (self._both.a, self._both.b)
        )
        if others := {*one.inputs} ^ {*other.inputs}:
            raise OptionError(
                f"a shadow gets the events of A, and only one of both reads {listed(sorted(others), _SHOWN)}",
                hint="Compare them with tailrace ab, in canonical order.",
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
        kept, both, number = self._kept, self._both, self._kept.round + 1
        folder = self._hidden / f"round-{number}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        both.bases = dict(zip("AB", kept.made, strict=False))
        made = self._rebuilt(folder)
        before = kept.made or [replace(one.made, outputs=()) for one in made]
        kept.made = [
            _together(_following(old, new.made), folder / name / "outputs")
            for name, old, new in zip("AB", before, made, strict=True)
        ]
        if number == 1:
            kept.part = part_of(made)
        kept.round, kept.ends = number, both.ends
        report, results = self._compared(folder, made[0].report), folder / "results"
        report.notes += [
            f"{name}: {note}" for name, one in zip("AB", made, strict=True) for note in one.report.notes
        ]
        write_page(report, results, refresh_s=self._every_s)
        (results / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        self._publish(results, self._tables(made[1].made, folder))
        file = self._hidden / "shadow.json"
        file.with_suffix(".new").write_bytes(msgspec.json.encode(kept))
        file.with_suffix(".new").replace(file)
        self._clean()
        self._say(
            f"round {number}: {report.counts.keys_differ:,} of {counted(report.counts.keys, 'key')} differ"
        )

    def _rebuilt(self, folder: Path) -> list[Rebuilt]:
        both = self._both
        try:
            one = both.make(both.a, "tape", folder / "A", as_the_service=True)
        except (ReplayDivergedError, HandlerError, BadRecordError) as error:
            raise OptionError(
                f"A is not the code that the service runs, or it is not deterministic: {error.what}",
                hint="Name the version that runs as A, for example a revision; or compare them with tailrace ab.",
            ) from error
        try:
            return [one, both.make(both.b, "tape", folder / "B")]
        except NOT_ALONG_TAPE as error:
            raise OptionError(
                f"the tape of A does not lead B: {error.what}",
                hint="Compare them with tailrace ab, which then runs both in canonical order.",
            ) from error

    def _compared(self, folder: Path, stored: RebuildReport) -> AbReport:
        """Compare all that both have made, into ``results``; keeps the first events that are new. ``stored``: of A."""
        both, kept, results, compared = self._both, self._kept, folder / "results", folder / "compared"
        results.mkdir()
        one, other = kept.made
        counts = both.a.ask("compare", Counts, one=one, other=other, folder=str(compared))
        known = dict(kept.firsts)
        items = [one for one in items_to_trace(compared, self._wanted.first_events) if one not in known]
        new = dict(both.first_events(items, "tape")) if items else {}
        known |= {one: _earliest(one, new.get(one), known) for one in items}
        kept.firsts = list(known.items())
        firsts: list[First] = [(item, cause) for item, cause in known.items() if cause is not None]
        write_tables(compared, firsts, results)
        traces = [*kept.traces, *both.traces(compared, list(new.items()), "tape")]
        worst = [one for one in items_to_trace(compared, _SHOWN) if one.kind == "state"]
        shown = set(zip([one.name for one in worst], keys_as_text(compared, worst), strict=True))
        kept.traces = [one for one in traces if (one.name, one.key) in shown]
        note = f"round {kept.round} of a shadow, {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC"
        return replace(
            both.report,
            part=kept.part,
            order="tape",
            noise=[f"{counted(stored.other_rows, 'row')} of A are not those of the service"][
                : stored.other_rows
            ],
            noise_measured=_STORED
            if stored.same_rows + stored.other_rows
            else "nothing: the service has run another version than A",
            counts=counts,
            fields=fields_of(results),
            metrics=both.measured(self._metrics, kept.made, results) if self._metrics else [],
            traces=kept.traces,
            notes=[note],
        )

    def _tables(self, made: Made, folder: Path) -> Path:
        """The outputs of a round and the present state of B, as tables."""
        tables = folder / "tables"
        self._both.b.ask("tables", list[str], made=made, folder=str(tables))
        return tables

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
        """Remove what no later round needs: all but the last snapshots, and the outputs that count."""
        needed = [Path(one) for made in self._kept.made for one in made.outputs]
        for folder in self._hidden.glob("round-*"):
            last = folder.name == f"round-{self._kept.round}"
            for one in [*folder.iterdir()]:
                if one.name not in ("A", "B"):
                    shutil.rmtree(one)
                    continue
                for each in one.iterdir():
                    is_needed = any(each in (place, *place.parents) for place in needed)
                    if not is_needed and not (last and each.name != "outputs"):
                        shutil.rmtree(each) if each.is_dir() else each.unlink()


def _earliest(item: Item, found: Cause | None, known: dict[Item, Cause | None]) -> Cause | None:
    """The first event of an item: of outputs that of the state of an actor with the same key, if that is earlier."""
    causes = [
        cause
        for one, cause in known.items()
        if item.kind == "output" and (one.kind, one.key) == ("state", item.key) and cause is not None
    ]
    return min([*causes, *([] if found is None else [found])], key=lambda one: one.time_ms, default=None)


def _following(before: Made, new: Made) -> Made:
    """The outputs of a round behind those of the rounds before: a round numbers its own from those of the service."""
    if before.outputs:
        last = {partition_of_outputs(file): file for file in before.output_files() if _rows(file)}
        for partition, files in groupby(new.output_files(), partition_of_outputs):
            found = [file for file in files if _rows(file)]
            if not found:
                continue
            ends = _numbers(last[partition])[-1].as_py() + 1 if partition in last else 0
            shift = ends - _numbers(found[0])[0].as_py()
            for file in found if shift else ():
                table = parquet.read_table(file)
                moved = pa.array(
                    [one + shift for one in table.column("number").to_pylist()], table.field("number").type
                )
                at = table.column_names.index("number")
                parquet.write_table(
                    table.set_column(at, table.field("number"), moved), file, compression="zstd"
                )
    return replace(new, outputs=(*before.outputs, *new.outputs))


def _rows(file: Path) -> int:
    found: int = parquet.read_metadata(file).num_rows
    return found


def _numbers(file: Path) -> Any:
    return parquet.read_table(file, columns=["number"]).column(0)


def _together(made: Made, folder: Path) -> Made:
    """The same with all outputs in one folder, if they lie in many."""
    if len(made.outputs) <= _MOST_PARTS:
        return made
    into = folder / "together"
    into.mkdir(parents=True)
    for number, files in groupby(made.output_files(), partition_of_outputs):
        parts = [*map(parquet.ParquetFile, files)]
        with parquet.ParquetWriter(
            into / f"outputs-{number:05d}-all.parquet", parts[0].schema_arrow, compression="zstd"
        ) as writer:
            for part in parts:
                for batch in part.iter_batches():
                    writer.write_batch(batch)
    return replace(made, outputs=(str(into),))
