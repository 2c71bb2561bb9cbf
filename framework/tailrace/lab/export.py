"""Exports state, topics and snapshots of an app as natural tables: ``tailrace export``.

The state in a log is exported through a snapshot that is taken for it, so all tables stand at one commit. Points are rows of
keys and times: the result has them in their order, with all their columns, and then the fields of the actor as of the time;
a map or list is one column, and a key that had no state at its time has nulls.

Functions here raise, besides what they name:

    UsageError, OptionError, UnknownTopicError    there is no such actor or topic, or something is in the folder
    ExportError                                   the folder cannot be written
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from tailrace.core.counting import counted
from tailrace.core.declare.event_time import YEAR_2200_MS
from tailrace.core.declare.plan import ActorPlan, Plan
from tailrace.core.engine.describe_rows import instant
from tailrace.core.engine.value_rows import KeyRows
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.type_schemas import FieldSchema
from tailrace.history.provenance.topics import check_history, check_same_topics, note_of_topics
from tailrace.history.reading.app_history import AppHistory
from tailrace.history.reading.app_topics import topics_of
from tailrace.history.snapshots.taking import take_snapshot
from tailrace.lab.files import MANIFEST, TableReport, TableWriter, published
from tailrace.lab.formats import Format, check_format, publish
from tailrace.lab.passes import AllKeys, Point, Points, take_along_tape
from tailrace.lab.state_tables import (
    Values,
    View,
    chosen_actors,
    free_name,
    in_memory,
    key_columns,
    stored_actors,
    write_state,
)
from tailrace.lab.topic_tables import TopicTable
from tailrace.log.interface import OneCommitLog
from tailrace.state.columns import Column
from tailrace.state.snapshots import Snapshots, which_where
from tailrace.state.snapshots.actors import Entry, StoredActor
from tailrace.state.snapshots.arrow import compute, pa, parquet

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

    Raises OffsetGoneError or OtherHistoryError: retention, or another topic of the name, has overtaken the export.
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
        check_same_topics(log, noted)
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
    """Export the state of an actor for each row of a file of keys and times: see the head of this file. Raises what ``take_along_tape`` raises."""
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
    check_same_topics(log, noted)
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


TIME = "time"
_AT_ONCE = 20_000
_SECONDS = range(1_000_000_000, 2_100_000_000)
"""From 2001 to 2036. In milliseconds, these are some days of January 1970."""


def read_points(path: Path, actor: ActorPlan, partitions: int) -> tuple[Any, dict[int, list[Point]]]:
    """Read a Parquet file with the columns of the key and ``time``: a timestamp, or milliseconds since 1970. Returns its
    ``pyarrow.Table``, and the points by partition.

    Raises UsageError: the file cannot be read, lacks a column, or has a row without a key or a time.
    """
    names = [one.name for one in key_columns("key", actor.schema.key)]
    try:
        table = parquet.read_table(path)
        times = table.column(TIME)
        if not ((is_number := pa.types.is_integer(times.type)) or pa.types.is_timestamp(times.type)):
            raise ValueError(
                f"the column {TIME} is of {times.type}, neither timestamps nor integers in milliseconds"
            )
        columns = [table.column(name).to_pylist() for name in names]
        if pa.types.is_timestamp(times.type):
            times = compute.floor_temporal(times, unit="millisecond").cast(
                pa.timestamp("ms", times.type.tz), safe=False
            )
        times_ms = times.cast(pa.int64()).to_pylist()
        rows = zip(times_ms, *columns, strict=True)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        raise UsageError(
            f"{str(path)!r} cannot be read as points: {error}",
            hint=f"It must be a Parquet file with {', '.join(names)} (the key of {actor.name}) and {TIME} (a timestamp).",
        ) from error
    given = [one for one in times_ms if one is not None]
    most = max(given, default=0)
    if is_number and given and (most > YEAR_2200_MS or all(one in _SECONDS for one in given)):
        is_large = most > YEAR_2200_MS
        one = most if is_large else given[0]
        after = "after the year 2200" if is_large else instant(one)
        raise UsageError(
            f"the column {TIME} of {str(path)!r} holds integers such as {one}, which is {after} in milliseconds: "
            f"is it in {'microseconds or nanoseconds' if is_large else 'seconds'}?",
            hint=f"{'Divide' if is_large else 'Multiply'} it, so that it is in milliseconds, or write timestamps.",
        )
    found: dict[int, list[Point]] = defaultdict(list)
    for number, (time_ms, *values) in enumerate(rows):
        if time_ms is None:
            raise UsageError(
                f"row {number + 1} of {str(path)!r} has no {TIME}: it is null or NaT",
                hint="Remove or correct the row.",
            )
        given = values if actor.schema.key.kind == "tuple" else values[0]
        try:
            key = msgspec.convert(given, actor.key_codec.type, builtin_types=(bytes, date))
            place = partition_of(actor.key_codec.encode(key), partitions)
            found[place].append(Point(time_ms, number, key))
        except (msgspec.ValidationError, TailraceError) as error:
            raise UsageError(
                f"row {number + 1} of {str(path)!r} has no key of {actor.name}: {error}",
                hint="Remove or correct the row.",
            ) from error
    return table, found


def point_columns(points: Any, actor: StoredActor) -> list[Column]:
    """The columns of the result: those of the points, the plain fields, and the maps and lists."""
    found = [Column(one.name, one.type) for one in points.schema]
    fields = [*actor.field_columns(), *map(actor.collection_column, _collections(actor))]
    given, all_names = {one.name for one in found}, [one.name for one in (*found, *fields)]
    return found + [
        one._replace(name=free_name(one.name, all_names)) if one.name in given else one for one in fields
    ]


def point_values(points: Any, actor: StoredActor, rows_of: Sequence[tuple[int, KeyRows]]) -> Iterator[Values]:
    """The values of the result, some thousand rows at a time. ``rows_of``: by point, the partition and the rows."""
    names = [one.name for one in point_columns(points, actor)]
    fields = [one.name for one in actor.field_columns()]
    tasks = {number for number, _ in rows_of}
    decoders = {number: actor.decoder(fields, number) for number in tasks}
    readers = {
        number: [_entries_reader(actor, one, number) for one in _collections(actor)] for number in tasks
    }
    for start in range(0, len(rows_of), _AT_ONCE):
        here = points.slice(start, _AT_ONCE).combine_chunks()
        columns: list[Any] = [one.combine_chunks() for one in here.columns]
        some = rows_of[start : start + _AT_ONCE]
        instances: list[Mapping[str, Any]] = [
            decoders[number]([Entry(b"", "value", None, found[b""])])[0] if found else {}
            for number, found in some
        ]
        columns += [[one.get(name) for one in instances] for name in fields]
        columns += [
            [readers[number][at](found) if found else None for number, found in some]
            for at in range(len(_collections(actor)))
        ]
        yield dict(zip(names, columns, strict=True))


def _collections(actor: StoredActor) -> list[FieldSchema]:
    return [one for one in actor.schema.fields if one.kind != "value"]


def _entries_reader(actor: StoredActor, field: FieldSchema, number: int) -> Callable[[KeyRows], list[Any]]:
    """Reads a collection from the rows of a key: values, or pairs of a key and a value."""
    place_of, value_of = actor.place_decoder(field), actor.entry_decoder(field, number)
    place, value = actor.entry_columns(field)
    is_map = field.kind == "map"
    prefix = (b"m" if is_map else b"l") + field.name.encode() + b"\0"

    def read(found: KeyRows) -> list[Any]:
        # The bounds of a list are the first of its rows.
        rests = sorted(rest for rest in found if rest.startswith(prefix) and (is_map or rest != prefix))
        entries = [Entry(b"", "entry", rest[len(prefix) :], found[rest]) for rest in rests]
        values = value.values([value_of(one) for one in entries])
        if not is_map:
            return list(values)
        return list(zip(place.values([place_of(one) for one in entries]), values, strict=True))

    return read
