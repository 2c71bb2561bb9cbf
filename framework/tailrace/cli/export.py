"""``tailrace export``: state, topics and snapshots as tables for DuckDB, pandas, Polars and Spark."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, cast

import click

from tailrace.cli.arguments import (
    app_argument,
    json_option,
    outside_of_log,
    packed,
    past_options,
    tell,
    workers_option,
)
from tailrace.cli.commands import Command
from tailrace.cli.rebuild_options import after_deleted_option, tables_option
from tailrace.cli.value_types import TimeType
from tailrace.core.counting import counted
from tailrace.core.errors import SetAsideError
from tailrace.history.rebuilding.request import Source
from tailrace.lab import export as lab
from tailrace.lab.formats import Format
from tailrace.lab.points import export_points
from tailrace.log.opening import Past, open_past
from tailrace.processes.app_loading import find_app

_FORMATS = ("parquet", "delta", "iceberg")


def _history(*, app: str, as_of_ms: int | None, tables: Any, workers: int | None, **source: Any) -> Any:
    return lab.History(app=app, source=Source(**source), as_of_ms=as_of_ms, tables=tables, workers=workers)


history_options = packed(
    "history",
    _history,
    app_argument,
    click.option(
        "--as-of",
        "as_of_ms",
        type=TimeType(),
        metavar="TIME",
        help="The state at this event time, as tailrace rebuild --as-of makes it.",
    ),
    *past_options,
    after_deleted_option,
    tables_option,
    workers_option(None, "With --as-of and --at: processes of this machine."),
)
"""The app, its log, and how a state as of a time is rebuilt."""
snapshot_option = click.option(
    "--snapshot",
    metavar="URI[#ID]",
    help="The state in this snapshot, the latest if no id or name is given, not that of the log.",
)


def opened_state(history: lab.History, snapshot: str | None) -> AbstractContextManager[lab.Origin]:
    """What the state is read from. The last one is in the log itself, whatever the log has deleted."""
    if snapshot or history.as_of_ms is not None:
        return nullcontext(snapshot or history)
    return closing(open_past(Past(log=history.source.log)))


@click.command(cls=Command, short_help="Export state, topics or a snapshot as tables.")
@history_options
@click.option(
    "--to",
    nargs=2,
    type=(click.Choice(_FORMATS), click.Path(path_type=Path, file_okay=False)),
    required=True,
    metavar="FORMAT FOLDER",
    help=f"The format, {', '.join(_FORMATS)}, and a new or empty folder.",
)
@click.option(
    "--topic", "topics", multiple=True, help="Export this topic of the app, not its state; may be repeated."
)
@click.option(
    "--at",
    "points",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Export, for each row of this Parquet file with key and time, the state of the key as of the time.",
)
@snapshot_option
@packed(
    "state",
    lab.StateOptions,
    click.option("--actor", "actors", multiple=True, help="Only this actor; may be repeated."),
    click.option("--timers", is_flag=True, help="Also export the pending timers."),
)
@json_option
def export(
    *,
    history: lab.History,
    to: tuple[str, Path],
    topics: tuple[str, ...],
    points: Path | None,
    snapshot: str | None,
    state: lab.StateOptions,
    as_json: bool,
) -> None:
    """Export what APP has committed in the log as tables: one for each actor, and for each of its maps and lists.

    The service may run meanwhile. The folder appears when all tables are written.
    """
    outside_of_log(to[1], history.source.log, "--to")
    if sum(map(bool, (topics, snapshot, history.as_of_ms is not None, points))) > 1:
        raise click.UsageError("Give one of --topic, --snapshot, --as-of and --at.")
    if (topics and state.actors) or (state.timers and (topics or points)):
        raise click.UsageError("--actor and --timers are about state: --topic takes neither, --at no timers.")
    plan = find_app(history.app).plan()
    destination = lab.Destination(to[1], cast("Format", to[0]))
    if points is not None:
        report = export_points(plan, history, destination, state.actors, points)
    elif topics:
        with closing(open_past(history.source)) as log:
            report = lab.export_topics(plan, log, destination, topics)
    else:
        with opened_state(history, snapshot) as origin:
            report = lab.export_state(plan, origin, destination, state)
    tell(report, _lines(report), as_json=as_json)
    if report.skipped:
        raise SetAsideError(f"{counted(report.skipped, 'record')} cannot be decoded and are left out")


def _lines(report: lab.ExportReport) -> list[str]:
    lines = [
        f"{one.name}: {counted(one.rows, 'row')} in {counted(one.files, 'file')}" for one in report.tables
    ]
    lines += [
        f"note: {one.name}.{column} holds JSON text" for one in report.tables for column in one.json_columns
    ]
    return [*lines, *(f"note: {one}" for one in report.notes)]
