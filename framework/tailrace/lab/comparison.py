"""The settings of a comparison of two versions, its report, and the processes of both with what they do for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OptionError, TailraceError
from tailrace.history.provenance.topics import note_of_topics
from tailrace.history.reading.generations import changelog_in
from tailrace.history.rebuilding.request import (
    PARQUET,
    Destination,
    Failures,
    Order,
    Request,
    Source,
    Tables,
    checked,
)
from tailrace.lab.differences import Counts, Made
from tailrace.lab.first_events import First, Item, Paragraph, first_events, paragraphs_around
from tailrace.lab.metrics import Measured, Metric, measure
from tailrace.lab.side import Rebuilt
from tailrace.lab.tables import Field, items_to_trace, keys_as_text, write_metrics
from tailrace.lab.versions import About, Place, Version, placed
from tailrace.log.interface import Ends, OneCommitLog
from tailrace.log.opening import open_past

T = TypeVar("T")
U = TypeVar("U")
Say = Callable[[str], None]
_TRACED = 5
"""Number of keys that are traced."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compared, and how."""

    a: str
    b: str
    source: Source
    to: str
    tables: Tables = "auto"
    failures: Failures = Failures()
    """What a rebuild does about failures."""
    python_b: str | None = None
    workers: int | None = None
    """Processes, half of them for each version (default: number of cores)."""
    first_events: int = 100
    """Number of differing keys, and of output keys, whose first event is searched."""
    metrics: str | None = None
    """A file of metrics."""
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
    order: Order = "stages"
    """The order that both were rebuilt in."""
    why: str = ""
    """Why the order is that of the tape."""
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


class Comparison:
    """The processes of both versions, and what they do for a comparison, in the folder ``work``.

    ``ends``: up to where history goes; ``bases``: the snapshots with which a version begins, by its name, if not with nothing.
    """

    def __init__(self, wanted: Wanted, work: Path, stack: ExitStack, say: Say) -> None:
        self._wanted, self._work, self._say = wanted, work, say
        self._stack, self._versions = stack, list[Version]()
        self._workers = max(1, (wanted.workers or len(os.sched_getaffinity(0))) // 2)
        self._places = [placed(one, stack) for one in (wanted.a, wanted.b)]
        self.a = self._started("A", self._places[0])
        self.b = self._started("B", self._places[1], wanted.python_b or sys.executable)
        self.about = [one.ask("about", About, reference=one.place.reference) for one in (self.a, self.b)]
        one, other = (each.app for each in self.about)
        if one != other:
            raise OptionError(
                f"A and B are not versions of one app: the app is {one!r} in A, {other!r} in B",
                hint="An app under another name is compared as module:app@name.",
            )
        self.order: Order = "tape" if any(one.circle for one in self.about) else "stages"
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
        self._versions.append(version)
        return version

    def at_once(self, one: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
        """Have different versions do these at the same time. Of two errors, that of the first is raised."""
        with ThreadPoolExecutor(1) as pool:
            try:
                later = pool.submit(other)
                return one(), later.result()
            except TailraceError:
                raise
            except BaseException:
                for version in self._versions:
                    version.kill()
                raise

    def present(self) -> Ends:
        """Where the topics of both end now."""
        with closing(open_past(self._wanted.source)) as log:
            return log.ends(self._topics_in(log))

    def note_of_topics(self) -> bytes:
        """Of which log the topics of both are: another note means that it, or one of them, was deleted and created again."""
        with closing(open_past(self._wanted.source)) as log:
            return log.identity + note_of_topics(log, self._topics_in(log))

    def _topics_in(self, log: OneCommitLog) -> list[str]:
        names = {one for each in self.about for one in (*each.topics, changelog_in(log, each.app))}
        return sorted(names & log.topics().keys())

    def make(self, version: Version, order: Order, folder: Path | None = None, **how: Any) -> Rebuilt:
        """Rebuild a version."""
        self._say(f"rebuilding {version.name}")
        folder = folder or self._work / f"{version.name}-{order}"
        request = self.request(version, order, folder, **how)
        given = {"request": request, "workers": self._workers, "folder": str(folder)}
        return version.ask("make", Rebuilt, **given)

    def request(
        self, version: Version, order: Order, folder: Path, *, until: Limits | None = None
    ) -> Request:
        """The rebuild of a version."""
        source = replace(self._wanted.source, ends=self.ends)
        if (base := self.bases.get(version.name)) is not None:
            source = replace(source, base=base.uri, base_id=base.snapshot)
        return checked(
            Request(
                app=version.place.reference,
                source=source,
                to=Destination(uri=str(folder), outputs=f"{PARQUET}{folder / 'outputs'}"),
                order=order,
                tables=self._wanted.tables,
                until=until or Limits(),
                failures=self._wanted.failures,
            )
        )

    def measured(self, metrics: Sequence[Metric], made: Sequence[Made], into: Path) -> list[Measured]:
        """Measure what both have made, and write ``metrics.parquet``."""
        self._say("measuring")
        folders = {name: self._work / f"tables-{name}" for name in "AB"}
        queries = "\n".join(one.query for one in metrics)

        def write(version: Version, one: Made) -> list[str]:
            given = {"made": one, "folder": str(folders[version.name]), "queries": queries}
            return version.ask("tables", list[str], **given)

        notes = self.at_once(partial(write, self.a, made[0]), partial(write, self.b, made[1]))
        self.report.notes += [
            f"{name}: {note}" for name, each in zip("AB", notes, strict=True) for note in each
        ]
        found = measure(metrics, folders)
        write_metrics(found, into)
        return found

    def first_events(
        self, items: Sequence[Item], compared: Path, order: Order
    ) -> tuple[list[First], list[KeyTrace]]:
        """The first events of keys that differ, and traces around those of the keys that differ most."""
        if not items:
            return [], []
        one, other = self.about
        both = {
            name: None
            if one.schemas[name] == other.schemas[name]
            else sorted({*one.fields[name]} & {*other.fields[name]})
            for name in sorted(one.fields.keys() & other.fields.keys())
        }
        self._say("finding first events")
        most = [one for one in items_to_trace(compared, _TRACED) if one.kind == "state" and one in items]
        emitted = [one.key for one in items if one.kind == "output"]
        states = (Item("state", actor, key) for key in emitted for actor in both)
        recorded = [*dict.fromkeys((*most, *items, *states))]
        by_time = order == "stages" and bool(one.own and other.own)
        given = {"items": recorded, "traced": len(most), "both": both, "by_time": by_time}

        def record(version: Version) -> Path:
            folder = self._work / f"first-events-{version.name}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            file, request = folder / "steps", self.request(version, order, folder)
            version.ask("record_steps", type(None), request=request, file=f"{file}.parquet", **given)
            return file

        files = self.at_once(partial(record, self.a), partial(record, self.b))
        firsts = first_events(items, recorded, files)
        texts = dict(zip(most, keys_as_text(compared, most), strict=True))
        traces = [
            KeyTrace(
                item.name, texts[item], *(paragraphs_around(number, firsts[item], file) for file in files)
            )
            for number, item in enumerate(most)
            if item in firsts
        ]
        return [(item, cause) for item, (_, cause) in firsts.items()], traces
