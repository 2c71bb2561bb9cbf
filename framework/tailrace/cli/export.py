"""``tailrace export``: state, topics and snapshots as tables for DuckDB, pandas, Polars and Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, cast

import click

from tailrace.cli.arguments import (
    any_environment_option,
    app_argument,
    json_option,
    outside_of_log,
    packed,
    past_options,
    tell,
)
from tailrace.cli.commands import Command
from tailrace.cli.value_types import TimeType
from tailrace.core.counting import counted
from tailrace.core.errors import SetAsideError
from tailrace.lab import export as lab
from tailrace.lab.formats import Format
from tailrace.log.opening import Past, open_past
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


def past_of_state(past: Past, state: lab.StateOptions) -> Past:
    """Where a state is read: the last one is in the log itself, whatever the log has deleted."""
    return Past(log=past.log) if state.as_of_ms is None else past


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
@packed("past", Past, *past_options)
@json_option
def export(
    *,
    app: str,
    to: tuple[str, Path],
    topics: tuple[str, ...],
    points: Path | None,
    state: lab.StateOptions,
    past: Past,
    as_json: bool,
) -> None:
    """Export what APP has committed in the log as tables: one for each actor, and for each of its maps and lists.

    The service may run meanwhile. The folder appears when all tables are written.
    """
    outside_of_log(to[1], past.log, "--to")
    if sum(map(bool, (topics, state.snapshot, state.as_of_ms is not None, points))) > 1:
        raise click.UsageError("Give one of --topic, --snapshot, --as-of and --at.")
    if (topics and state.actors) or (state.timers and (topics or points)):
        raise click.UsageError("--actor and --timers are about state: --topic takes neither, --at no timers.")
    plan = find_app(app).plan()
    destination = lab.Destination(to[1], cast("Format", to[0]))
    read = past if topics or points else past_of_state(past, state)
    with nullcontext() if state.snapshot else closing(open_past(read)) as log:
        if log is not None and topics:
            report = lab.export_topics(plan, log, destination, topics)
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
