"""Exports state, topics and snapshots of an app as natural tables: ``tailrace export``.

The state in a log is exported through a snapshot that is taken for it, so all tables stand at one commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.history.reading.same_topics import check_same_topics, note_of_topics
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.lab.files import MANIFEST, TableReport, TableWriter, published
from tailrace.lab.state_tables import View, check_actors, tables_of, write_state
from tailrace.lab.topic_tables import TopicTable
from tailrace.log.interface import OneCommitLog
from tailrace.state.snapshots import Snapshot, Snapshots

Format: TypeAlias = Literal["parquet", "delta", "iceberg"]
_FORMAT = 1
_WORK = "_work"


class ExportReport(msgspec.Struct, kw_only=True):
    """What was exported; also the manifest of the export."""

    format: int = _FORMAT
    app: str
    source: str
    """``state``, ``topics``, or ``snapshot`` and its id."""
    written_as: Format
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


def export_state(plan: Plan, log: OneCommitLog, to: Destination, options: StateOptions) -> ExportReport:
    """Export the state of an app as of the last commit of its log.

    Raises:
        UsageError, OptionError: There is no such actor; or there is something in the folder.
        ExportError: The folder cannot be written.
        SnapshotMismatchError, UnknownTopicError: The app has never run on this log.
    """
    check_actors(plan, options.actors)
    with _exporting(plan, "state", to) as (report, folder):
        snapshots = Snapshots(str(folder / _WORK), plan.app)
        made = take_snapshot(plan, log, snapshots)
        _write_state(plan, View.of_snapshot(snapshots.open(made.id)), options, report, folder)
    return report


def export_snapshot(plan: Plan, snapshot: Snapshot, to: Destination, options: StateOptions) -> ExportReport:
    """Export the state in a snapshot. Raises SnapshotError, and what ``export_state`` raises."""
    check_actors(plan, options.actors)
    with _exporting(plan, f"snapshot {snapshot.manifest.id}", to) as (report, folder):
        _write_state(plan, View.of_snapshot(snapshot), options, report, folder)
    return report


def export_topics(plan: Plan, log: OneCommitLog, to: Destination, topics: Sequence[str]) -> ExportReport:
    """Export topics up to one commit of the log.

    Raises:
        UnknownTopicError: The app does not declare a topic, or the log does not have it.
        UsageError, OptionError, ExportError: As ``export_state``.
        OffsetGoneError, TopicReplacedError: Retention, or another topic of the name, has overtaken the export.
    """
    tables = [TopicTable(plan, one) for one in topics]
    noted = note_of_topics(log, topics)
    ends = log.ends(topics).offsets
    with _exporting(plan, "topics", to) as (report, folder):
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
        check_same_topics(log, noted, topics)
    return report


def _write_state(plan: Plan, view: View, options: StateOptions, report: ExportReport, folder: Path) -> None:
    tables = tables_of(plan, view, options.actors, timers=options.timers)
    report.tables += write_state(view, tables, partial(TableWriter, folder))


@contextmanager
def _exporting(plan: Plan, source: str, to: Destination) -> Generator[tuple[ExportReport, Path]]:
    """The report of an export, and the folder to write into. At the end the manifest is written, and all is published."""
    report = ExportReport(app=plan.app, source=source, written_as=to.written_as)
    with published(to.folder) as folder:
        yield report, folder
        shutil.rmtree(folder / _WORK, ignore_errors=True)
        (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
