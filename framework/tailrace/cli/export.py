"""``tailrace export``: state, topics and snapshots as tables for DuckDB, pandas, Polars and Spark."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click
import msgspec

from tailrace.cli.arguments import (
    any_log_option,
    app_argument,
    json_option,
    opened_log,
    outside_of_log,
    piped,
)
from tailrace.cli.commands import Command
from tailrace.core.counting import counted
from tailrace.core.errors import SetAsideError
from tailrace.lab.export import (
    Destination,
    ExportReport,
    Format,
    StateOptions,
    export_snapshot,
    export_state,
    export_topics,
)
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots

_FORMATS = ("parquet",)


@click.command(cls=Command, short_help="Export state, topics or a snapshot as tables.")
@app_argument
@click.option(
    "--to",
    nargs=2,
    type=(click.Choice(_FORMATS), click.Path(path_type=Path, file_okay=False)),
    required=True,
    metavar="FORMAT FOLDER",
    help=f"The format, {' or '.join(_FORMATS)}, and a new or empty folder.",
)
@click.option(
    "--topic", "topics", multiple=True, help="Export this topic of the app, not its state; may be repeated."
)
@click.option(
    "--snapshot",
    metavar="URI[#ID]",
    help="Export the state in this snapshot, the latest if no id or name is given, not that of the log.",
)
@click.option("--actor", "actors", multiple=True, help="Only this actor; may be repeated.")
@click.option("--timers", is_flag=True, help="Also export the pending timers.")
@any_log_option
@json_option
def export(
    *,
    app: str,
    to: tuple[str, Path],
    topics: tuple[str, ...],
    snapshot: str | None,
    actors: tuple[str, ...],
    timers: bool,
    folder: Path | str,
    as_json: bool,
) -> None:
    """Export what APP has committed in the log as tables: one for each actor, and for each of its maps and lists.

    The service may run meanwhile. The folder appears when all tables are written.
    """
    outside_of_log(to[1], folder, "--to")
    plan = find_app(app).plan()
    destination = Destination(to[1], cast("Format", to[0]))
    if topics and (snapshot or actors or timers):
        raise click.UsageError("--topic exports records: leave out --snapshot, --actor and --timers.")
    if snapshot:
        uri, _, which = snapshot.partition("#")
        found = Snapshots(uri, plan.app).open(which or "latest")
        report = export_snapshot(plan, found, destination, StateOptions(actors, timers))
    else:
        with opened_log(folder) as log:
            if topics:
                report = export_topics(plan, log, destination, topics)
            else:
                report = export_state(plan, log, destination, StateOptions(actors, timers))
    with piped():
        click.echo(msgspec.json.encode(report) if as_json else "\n".join(_lines(report)))
    if report.skipped:
        raise SetAsideError(f"{counted(report.skipped, 'record')} cannot be decoded and are left out")


def _lines(report: ExportReport) -> list[str]:
    lines = [
        f"{one.name}: {counted(one.rows, 'row')} in {counted(one.files, 'file')}" for one in report.tables
    ]
    lines += [
        f"note: {one.name}.{column} holds JSON text" for one in report.tables for column in one.json_columns
    ]
    return [*lines, *(f"note: {one}" for one in report.notes)]
