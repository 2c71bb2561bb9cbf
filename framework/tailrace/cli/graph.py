"""``tailrace graph``: shows the data flow in an app, or in several apps that share topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import click

from tailrace.cli.arguments import json_option, output_option, written
from tailrace.cli.commands import Command
from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.graph import Graph, as_mermaid, as_text, graph_of
from tailrace.processes.app_loading import find_app

_FORMATS = {".json": "json", ".mmd": "mermaid", ".txt": "text", "": "text"}
_WRITERS: dict[str, Callable[[Graph], str]] = {
    "text": as_text,
    "mermaid": as_mermaid,
    "json": lambda drawn: f"{drawn.as_json().decode()}\n",
}


@click.command(cls=Command, short_help="Topics, actors and the edges between them.")
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(_WRITERS)),
    help="Format of the output (default: by its suffix, else text).",
)
@output_option
@json_option
def graph(*, apps: tuple[str, ...], format_: str | None, output: str, as_json: bool) -> None:
    """Show topics, actors, functions and the edges between them. An APP is given as package.module:app.

    Outputs are found by an analysis of the handlers' code. A topic that a handler selects only at run time is
    not shown.
    """
    drawn = graph_of(_plans(apps))
    format_ = "json" if as_json else format_ or _FORMATS.get(PurePath(output).suffix.lower())
    if format_ is None:
        raise click.BadParameter(
            f"the suffix of {output!r} names no format: use {', '.join(filter(None, _FORMATS))}, or give "
            "--format",
            param_hint="--output",
        )
    made = _WRITERS[format_](drawn).encode()
    with written(output) as file:
        file.write(made)


def _plans(apps: tuple[str, ...]) -> list[Plan]:
    """The plans of the apps, without duplicates."""
    found: dict[str, tuple[str, App]] = {}
    for reference in apps:
        app = find_app(reference)
        first, there = found.setdefault(app.name, (reference, app))
        if there is not app and reference != first:
            raise click.BadParameter(
                f"{first} and {reference} are both called {app.name!r}, and only one of them can be drawn: "
                f"write {reference}@other-name for the second",
                param_hint="APP",
            )
    return [app.plan() for _, app in found.values()]
