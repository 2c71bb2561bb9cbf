"""Exports state, topics and snapshots of an app as natural tables: ``tailrace export``.

A state is exported through a snapshot, so all tables stand at one commit. It is named, or made for the export: taken from the
log, or rebuilt as of a time.

Functions here raise, besides what they name:

    UsageError, OptionError, UnknownTopicError    there is no such actor or topic, or something is in the folder
    ExportError                                   the folder cannot be written
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.history.provenance.topics import check_same_topics, note_of_topics
from tailrace.history.rebuilding import request as rebuilding
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine
from tailrace.history.rebuilding.request import Request, Source, Tables
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.lab.files import MANIFEST, TableReport, TableWriter, published
from tailrace.lab.formats import Format, check_format, publish
from tailrace.lab.state_tables import View, chosen_actors, write_state
from tailrace.lab.topic_tables import TopicTable
from tailrace.log.interface import OneCommitLog
from tailrace.state.snapshots import Snapshot, Snapshots, which_where

_FORMAT = 1
_WORK = "_work"


class ExportReport(msgspec.Struct, kw_only=True):
    """What was exported; also the manifest of the export."""

    format: int = _FORMAT
    app: str
    source: str
    """``state``, ``topics``, ``points``, or ``snapshot`` and its id."""
    written_as: Format
    as_of_ms: int | None = None
    tables: list[TableReport] = []
    notes: list[str] = []
    skipped: int = 0
    """Records that could not be decoded and are left out."""


class Destination(msgspec.Struct, frozen=True):
    """Where an export goes, and as what."""

    folder: Path
    written_as: Format = "parquet"


class StateOptions(msgspec.Struct, frozen=True):
    """Which tables of a state are exported."""

    actors: tuple[str, ...] = ()
    """All if none is named."""
    timers: bool = False


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What a state as of a time is rebuilt from, in stages: see ``Request``."""

    app: str
    """``package.module:app``."""
    source: Source
    as_of_ms: int | None = None
    tables: Tables = "auto"
    workers: int | None = None
    """Processes; None: the number of cores."""

    def rebuilt(self, plan: Plan, folder: Path, engine: Engine | None = None) -> Snapshot:
        """The state, as a snapshot in the work folder of an export. Raises what ``rebuild`` raises."""
        to = rebuilding.Destination(uri=str(folder / _WORK))
        request = Request(app=self.app, source=self.source, to=to, as_of_ms=self.as_of_ms, tables=self.tables)
        return Snapshots(to.uri, plan.app).open(
            rebuild(request, engine or LocalEngine(self.workers)).snapshot
        )


Origin: TypeAlias = OneCommitLog | History | str
"""Where a state is: as of the last commit of a log, as of a time of a history, in a snapshot (``URI#id``)."""


def export_state(plan: Plan, origin: Origin, to: Destination, options: StateOptions) -> ExportReport:
    """Export the state of an app.

    Raises:
        SnapshotMismatchError: The app has never committed.
        SnapshotError: There is no such snapshot, or it cannot be read.
        TailraceError: What ``rebuild`` raises, as of a time.
    """
    chosen_actors(plan, options.actors)
    with exporting(plan, "state", to) as (report, folder):
        if isinstance(origin, str):
            uri, which = which_where(origin)
            snapshot = Snapshots(uri, plan.app).open(which)
            report.source = f"snapshot {snapshot.manifest.id}"
        elif isinstance(origin, History):
            snapshot = origin.rebuilt(plan, folder)
        else:
            snapshots = Snapshots(str(folder / _WORK), plan.app)
            snapshot = snapshots.open(take_snapshot(plan, origin, snapshots).id)
        report.as_of_ms, report.notes = snapshot.manifest.as_of_ms, [*snapshot.manifest.notes]
        report.tables = write_state(
            plan, View.of_snapshot(snapshot), folder, options.actors, timers=options.timers
        )
    return report


def export_topics(plan: Plan, log: OneCommitLog, to: Destination, topics: Sequence[str]) -> ExportReport:
    """Export topics up to one commit of the log.

    Raises OffsetGoneError or OtherHistoryError: retention, or another topic of the name, has overtaken the export.
    """
    tables = [TopicTable(plan, one) for one in topics]
    noted = note_of_topics(log, topics)
    ends = log.ends(topics).offsets
    with exporting(plan, "topics", to) as (report, folder):
        for table in tables:
            name = table.topic
            writer = TableWriter(folder, name, table.columns)
            for number, end in enumerate(ends[name]):
                if start := log.start_offset(name, number):
                    report.notes.append(
                        f"{name} partition {number} begins at offset {start}: the log has deleted what was before"
                    )
                table.write(log, number, end, writer)
            report.tables.append(writer.close())
            report.skipped += table.skipped
            report.notes += table.notes
        check_same_topics(log, noted)
    return report


@contextmanager
def exporting(plan: Plan, source: str, to: Destination) -> Generator[tuple[ExportReport, Path]]:
    """The report of an export, and the folder to write into. At the end the manifest is written, and all is published."""
    report = ExportReport(app=plan.app, source=source, written_as=to.written_as)
    check_format(to.written_as, to.folder)

    def finish(making: Path, folder: Path) -> None:
        publish(to.written_as, making, folder, [one.name for one in report.tables], plan.app)

    with published(to.folder, "export", finish) as folder:
        yield report, folder
        shutil.rmtree(folder / _WORK, ignore_errors=True)
        (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
