"""``tailrace graph``: shows the data flow in an app, or in several apps that share topics."""

from __future__ import annotations

import click

from tailrace.cli.arguments import json_option, piped, plans_of
from tailrace.cli.commands import Command
from tailrace.graph import as_mermaid, as_text, graph_of

_FORMATS = {"text": as_text, "mermaid": as_mermaid}


@click.command(cls=Command, short_help="Topics, actors and the edges between them.")
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="Format of the output.",
)
@json_option
def graph(*, apps: tuple[str, ...], format_: str, as_json: bool) -> None:
    """Show topics, actors, functions and the edges between them. An APP is given as package.module:app.

    Outputs are found by an analysis of the handlers' code. A topic that a handler selects only at run time is
    not shown.
    """
    drawn = graph_of(plans_of(apps))
    with piped():
        click.echo(drawn.as_json() + b"\n" if as_json else _FORMATS[format_](drawn), nl=False)
