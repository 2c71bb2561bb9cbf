"""``tailrace sql``: a query over the states and topics of an app, by DuckDB."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli.arguments import (
    any_environment_option,
    any_log_option,
    app_argument,
    json_option,
    opened_log,
    piped,
)
from tailrace.cli.commands import Command
from tailrace.cli.value_types import TimeType
from tailrace.lab import export
from tailrace.lab.sql import Exporting, ExportingTopics, answered
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots

_AT_ONCE = 10_000


@click.command(cls=Command, short_help="Query states and topics with SQL.")
@app_argument
@click.argument("query")
@click.option("--snapshot", metavar="URI[#ID]", help="Query the state in this snapshot, not that of the log.")
@click.option(
    "--as-of",
    "as_of_ms",
    type=TimeType(),
    metavar="TIME",
    help="Query the state right before anything later than this event time was handled.",
)
@any_environment_option
@any_log_option
@json_option
def sql(
    *,
    app: str,
    query: str,
    snapshot: str | None,
    as_of_ms: int | None,
    any_environment: bool,
    folder: Path | str,
    as_json: bool,
) -> None:
    """Run QUERY, a SELECT of DuckDB, over what APP has committed in the log.

    The tables are those of tailrace export: Customer, Customer_orders, and topics by their names. Only those that the query names
    are read, each as a whole.
    """
    if snapshot and as_of_ms is not None:
        raise click.UsageError("Give one of --snapshot and --as-of.")
    plan = find_app(app).plan()

    def with_environment(
        run: Any, to: export.Destination, options: export.StateOptions
    ) -> export.ExportReport:
        made: export.ExportReport = run(to, msgspec.structs.replace(options, any_environment=any_environment))
        return made

    if snapshot:
        uri, _, which = snapshot.partition("#")
        found = Snapshots(uri, plan.app).open(which or "latest")
        _show(
            plan,
            query,
            lambda to, options: export.export_snapshot(plan, found, to, options),
            None,
            as_json=as_json,
        )
        return
    with opened_log(folder) as log:
        if as_of_ms is None:
            states: Exporting = partial(export.export_state, plan, log)
            _show(plan, query, states, partial(export.export_topics, plan, log), as_json=as_json)
        else:
            passed: Exporting = lambda to, options: export.export_as_of(plan, log, to, options, as_of_ms)  # noqa: E731
            _show(plan, query, partial(with_environment, passed), None, as_json=as_json)


def _show(plan: Any, query: str, states: Exporting, topics: ExportingTopics | None, *, as_json: bool) -> None:
    with answered(plan, query, states, topics) as (rows, notes), piped():
        names: list[str] = [one[0] for one in rows.description]
        while some := rows.fetchmany(_AT_ONCE):
            for row in some:
                if as_json:
                    click.echo(msgspec.json.encode(dict(zip(names, row, strict=True))))
                elif names:
                    click.echo("\t".join(names))
                    names = []
                if not as_json:
                    click.echo("\t".join("" if one is None else str(one) for one in row))
        for note in notes:
            click.echo(f"note: {note}", err=True)
