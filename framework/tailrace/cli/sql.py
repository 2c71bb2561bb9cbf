"""``tailrace sql``: a query over the states and topics of an app, by DuckDB."""

from __future__ import annotations

from contextlib import closing, nullcontext

import click

from tailrace.cli.arguments import json_option, piped
from tailrace.cli.commands import Command
from tailrace.cli.export import history_options, opened_state, snapshot_option
from tailrace.cli.showing import json_line, printable
from tailrace.lab.export import History
from tailrace.lab.sql import answered
from tailrace.log.opening import open_past
from tailrace.processes.app_loading import find_app


@click.command(cls=Command, short_help="Query states and topics with SQL.")
@history_options
@click.argument("query")
@snapshot_option
@json_option
def sql(*, history: History, query: str, snapshot: str | None, as_json: bool) -> None:
    """Run QUERY, a SELECT of DuckDB, over what APP has committed in the log.

    The tables are those of tailrace export: Customer, Customer_orders, and topics by their names. Only those that the query names
    are read, each as a whole. The query "show tables" prints the names of all.
    """
    if snapshot and history.as_of_ms is not None:
        raise click.UsageError("Give one of --snapshot and --as-of.")
    only_states = snapshot or history.as_of_ms is not None
    with (
        opened_state(history, snapshot) as origin,
        nullcontext() if only_states else closing(open_past(history.source)) as topics,
        answered(find_app(history.app).plan(), origin, topics, query) as (names, rows, notes),
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
