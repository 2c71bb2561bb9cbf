"""Exports state, topics and snapshots of an app as natural tables: ``tailrace export``.

The state in a log is exported through a snapshot that is taken for it, so all tables stand at one commit.

Functions here raise, besides what they name:

    UsageError, OptionError, UnknownTopicError    there is no such actor or topic, or something is in the folder
    ExportError                                   the folder cannot be written
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.errors import UsageError
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.reading.same_topics import check_history, check_same_topics, note_of_topics
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.lab.files import MANIFEST, TableReport, TableWriter, published
from tailrace.lab.formats import Format, check_format, publish
from tailrace.lab.passes import AllKeys, Points, take_along_tape
from tailrace.lab.points import point_columns, point_values, read_points
from tailrace.lab.state_tables import View, chosen_actors, in_memory, stored_actors, write_state
from tailrace.lab.topic_tables import TopicTable
from tailrace.log.archive import ArchivedLog
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.state.snapshots import Snapshots, which_where

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
    """Which state is exported, and which tables of it."""

    actors: tuple[str, ...] = ()
    """All if none is named."""
    timers: bool = False
    any_environment: bool = False
    """As of a time: history is also run under other versions of Python and msgspec than those of the first run."""
    snapshot: str | None = None
    """The state in this snapshot, ``URI#id``, and not that of the log."""
    as_of_ms: int | None = None
    """The state as of this time; what that means: see ``passes``."""


def export_state(
    plan: Plan, log: OneCommitLog | None, to: Destination, options: StateOptions
) -> ExportReport:
    """Export the state of an app, by default as of the last commit of its log. ``log``: needed if no snapshot is named.

    Raises:
        SnapshotMismatchError: The app has never committed.
        SnapshotError: There is no such snapshot, or it cannot be read.
        TailraceError: What ``take_along_tape`` raises, as of a time.
    """
    actors = chosen_actors(plan, options.actors)
    source, snapshot = "state", None
    if options.snapshot is not None:
        uri, which = which_where(options.snapshot)
        snapshot = Snapshots(uri, plan.app).open(which)
        source = f"snapshot {snapshot.manifest.id}"
    with _exporting(plan, source, to) as (report, folder):
        if snapshot is not None:
            view = View.of_snapshot(snapshot)
        elif log is not None and options.as_of_ms is not None:
            view = _as_of(plan, log, actors, options.as_of_ms, options, report)
        else:
            assert log is not None
            snapshots = Snapshots(str(folder / _WORK), plan.app)
            view = View.of_snapshot(snapshots.open(take_snapshot(plan, log, snapshots).id))
        report.tables += write_state(plan, view, folder, options.actors, timers=options.timers)
    return report


def export_topics(plan: Plan, log: OneCommitLog, to: Destination, topics: Sequence[str]) -> ExportReport:
    """Export topics up to one commit of the log.

    Raises OffsetGoneError or TopicReplacedError: retention, or another topic of the name, has overtaken the export, or there is a
    gap between an archive and the log.
    """
    tables = [TopicTable(plan, one) for one in topics]
    noted = note_of_topics(log, topics)
    ends = log.ends(topics).offsets
    with _exporting(plan, "topics", to) as (report, folder):
        for table in tables:
            name = table.topic
            writer = TableWriter(folder, name, table.columns)
            for number, end in enumerate(ends[name]):
                if isinstance(log, ArchivedLog):
                    log.check_no_gap(TopicPartition(name, number))
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


def _as_of(
    plan: Plan,
    log: OneCommitLog,
    actors: Sequence[ActorPlan],
    time_ms: int,
    options: StateOptions,
    report: ExportReport,
) -> View:
    """The state of actors as of a time, in memory."""
    report.as_of_ms = time_ms
    takers = {number: AllKeys(time_ms, actors) for number in range(plan.partitions)}
    schemas = _take(plan, log, takers, report, options)
    if not any(one.reached for one in takers.values()):
        report.notes.append("nothing later than this time has been handled: this is the last state")
    rows_of = {number: one.rows for number, one in takers.items()}
    return View(in_memory(rows_of), schemas, dict.fromkeys(takers, time_ms))


def export_points(
    plan: Plan, log: OneCommitLog, to: Destination, options: StateOptions, path: Path
) -> ExportReport:
    """Export the state of an actor for each row of a file of keys and times: see ``points``. Raises what ``take_along_tape`` raises."""
    actors = chosen_actors(plan, options.actors)
    if len(actors) != 1:
        known = ", ".join(one.name for one in plan.actors)
        raise UsageError("points are of one actor", hint=f"Name it (--actor): {known}.")
    actor = actors[0]
    table, points = read_points(path, actor, plan.partitions)
    with _exporting(plan, "points", to) as (report, folder):
        takers = {number: Points(some, actor) for number, some in points.items()}
        schemas = _take(plan, log, takers, report, options)
        (stored,) = stored_actors(plan, View(in_memory({}), schemas, {}), [actor.name])
        found = {place: (number, some) for number, one in takers.items() for place, some in one.found}
        writer = TableWriter(folder, actor.name, point_columns(table, stored))
        for values in point_values(table, stored, [found[place] for place in range(len(found))]):
            writer.write(values, actor.name)
        report.tables.append(writer.close())
        if after := sum(one.after for one in takers.values()):
            report.notes.append(
                f"{counted(after, 'row')} after all that was handled: the last state of the key"
            )
        if without := sum(not some for _, some in found.values()):
            report.notes.append(f"{counted(without, 'row')} without state at the time: nulls")
    return report


def _take(
    plan: Plan,
    log: OneCommitLog,
    takers: Mapping[int, AllKeys | Points],
    report: ExportReport,
    options: StateOptions,
) -> dict[int, bytes]:
    """Drive each task along its tape. Returns the schemas of the actors by task."""
    history = AppHistory(plan, log)
    topics = topics_of(history.plan, log)
    noted = note_of_topics(log, topics)
    check_history(plan.app, log, plan.inputs)
    schemas: dict[int, bytes] = {}
    for number, taker in sorted(takers.items()):
        schemas[number], notes = take_along_tape(
            history, number, taker, any_environment=options.any_environment
        )
        report.notes += [one for one in notes if one not in report.notes]
    check_same_topics(log, noted, topics)
    return schemas


@contextmanager
def _exporting(plan: Plan, source: str, to: Destination) -> Generator[tuple[ExportReport, Path]]:
    """The report of an export, and the folder to write into. At the end the manifest is written, and all is published."""
    report = ExportReport(app=plan.app, source=source, written_as=to.written_as)
    check_format(to.written_as, to.folder)

    def finish(making: Path, folder: Path) -> None:
        publish(to.written_as, making, folder, [one.name for one in report.tables], plan.app)

    with published(to.folder, "export", finish) as folder:
        yield report, folder
        shutil.rmtree(folder / _WORK, ignore_errors=True)
        (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
