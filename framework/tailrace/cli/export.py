"""``tailrace export``: state, topics and snapshots as tables for DuckDB, pandas, Polars and Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, cast

import click

from tailrace.cli.arguments import (
    any_environment_option,
    any_log_option,
    app_argument,
    json_option,
    opened_log,
    outside_of_log,
    packed,
    tell,
)
from tailrace.cli.commands import Command
from tailrace.cli.settings import is_typed, setting
from tailrace.cli.value_types import TimeType
from tailrace.core.counting import counted
from tailrace.core.errors import SetAsideError
from tailrace.history.reading.opening import open_history
from tailrace.lab import export as lab
from tailrace.lab.formats import Format
from tailrace.log.interface import OneCommitLog
from tailrace.processes.app_loading import find_app

_FORMATS = ("parquet", "delta", "iceberg")


def state_options(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The options that name a state, packed as the argument ``state``."""
    return packed(
        "state",
        lab.StateOptions,
        click.option(
            "--snapshot",
            metavar="URI[#ID]",
            help="The state in this snapshot, the latest if no id or name is given, not that of the log.",
        ),
        click.option(
            "--as-of",
            "as_of_ms",
            type=TimeType(),
            metavar="TIME",
            help="The state right before anything later than this event time was handled.",
        ),
        any_environment_option,
        *more,
    )


archive_option = setting(
    "--archive",
    metavar="URI",
    help="Read topics from this archive of the log, and from the log what came since.",
)


def opened_history(place: Path | str, archive: str | None) -> AbstractContextManager[OneCommitLog | None]:
    """The log together with an archive of it; nothing if none is named."""
    return nullcontext() if archive is None else closing(open_history(place, archive))


@click.command(cls=Command, short_help="Export state, topics or a snapshot as tables.")
@app_argument
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
@state_options(
    click.option("--actor", "actors", multiple=True, help="Only this actor; may be repeated."),
    click.option("--timers", is_flag=True, help="Also export the pending timers."),
)
@any_log_option
@archive_option
@json_option
def export(
    *,
    app: str,
    to: tuple[str, Path],
    topics: tuple[str, ...],
    points: Path | None,
    state: lab.StateOptions,
    folder: Path | str,
    archive: str | None,
    as_json: bool,
) -> None:
    """Export what APP has committed in the log as tables: one for each actor, and for each of its maps and lists.

    The service may run meanwhile. The folder appears when all tables are written.
    """
    outside_of_log(to[1], folder, "--to")
    if sum(map(bool, (topics, state.snapshot, state.as_of_ms is not None, points))) > 1:
        raise click.UsageError("Give one of --topic, --snapshot, --as-of and --at.")
    if (topics and state.actors) or (state.timers and (topics or points)):
        raise click.UsageError("--actor and --timers are about state: --topic takes neither, --at no timers.")
    if is_typed("archive") and not topics:
        raise click.UsageError("--archive has topics: give it with --topic.")
    plan = find_app(app).plan()
    destination = lab.Destination(to[1], cast("Format", to[0]))
    place = nullcontext() if state.snapshot else opened_log(folder)
    with place as log, opened_history(folder, archive) as history:
        if log is not None and topics:
            report = lab.export_topics(plan, history or log, destination, topics)
        elif log is not None and points is not None:
            report = lab.export_points(plan, log, destination, state, points)
        else:
            report = lab.export_state(plan, log, destination, state)
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
