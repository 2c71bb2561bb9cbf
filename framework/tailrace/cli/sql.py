"""``tailrace sql``: a query over the states and topics of an app, by DuckDB."""

from __future__ import annotations

from contextlib import closing, nullcontext

import click

from tailrace.cli.arguments import app_argument, json_option, packed, past_options, piped
from tailrace.cli.commands import Command
from tailrace.cli.export import past_of_state, state_options
from tailrace.cli.showing import json_line, printable
from tailrace.lab.export import StateOptions
from tailrace.lab.sql import answered
from tailrace.log.opening import Past, open_past
from tailrace.processes.app_loading import find_app


@click.command(cls=Command, short_help="Query states and topics with SQL.")
@app_argument
@click.argument("query")
@state_options()
@packed("past", Past, *past_options)
@json_option
def sql(*, app: str, query: str, state: StateOptions, past: Past, as_json: bool) -> None:
    """Run QUERY, a SELECT of DuckDB, over what APP has committed in the log.

    The tables are those of tailrace export: Customer, Customer_orders, and topics by their names. Only those that the query names
    are read, each as a whole. The query "show tables" prints the names of all.
    """
    if state.snapshot and state.as_of_ms is not None:
        raise click.UsageError("Give one of --snapshot and --as-of.")
    plan = find_app(app).plan()
    with (
        nullcontext() if state.snapshot else closing(open_past(past_of_state(past, state))) as log,
        nullcontext() if state.snapshot else closing(open_past(past)) as history,
        answered(plan, log, query, state, history) as (names, rows, notes),
        piped(),
    ):
        if not as_json:
            click.echo("\t".join(map(printable, names)))
        for row in rows:
            if as_json:
                click.echo(json_line(dict(zip(names, row, strict=True))))
            else:
                click.echo("\t".join("" if one is None else printable(str(one)) for one in row))
        for note in notes:
            click.echo(f"note: {note}", err=True)
