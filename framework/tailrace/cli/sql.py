"""``tailrace sql``: a query over the states and topics of an app, by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
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
from tailrace.state.snapshots import Snapshots, which_where

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
    with ExitStack() as stack:
        topics: ExportingTopics | None = None
        if snapshot:
            uri, which = which_where(snapshot)
            states: Exporting = partial(export.export_snapshot, plan, Snapshots(uri, plan.app).open(which))
        else:
            log = stack.enter_context(opened_log(folder))
            if as_of_ms is None:
                states, topics = (
                    partial(export.export_state, plan, log),
                    partial(export.export_topics, plan, log),
                )
            else:
                states = partial(export.export_as_of, plan, log, time_ms=as_of_ms)
        rows, notes = stack.enter_context(
            answered(plan, query, states, topics, any_environment=any_environment)
        )
        _show(rows, notes, as_json=as_json)


def _show(rows: Any, notes: Sequence[str], *, as_json: bool) -> None:
    names: list[str] = [one[0] for one in rows.description]
    with piped():
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
