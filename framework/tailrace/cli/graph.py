"""``tailrace graph``: shows the data flow in an app, or in several apps that share topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import click

from tailrace.cli.arguments import json_option, output_option, written
from tailrace.cli.commands import Command
from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.graph import Graph, as_dot, as_mermaid, as_svg, as_text, graph_of
from tailrace.processes.app_loading import find_app

_FORMATS = {
    ".svg": "svg",
    ".json": "json",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
    ".dot": "dot",
    ".gv": "dot",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    "": "text",
}
_WRITERS: dict[str, Callable[[Graph], str]] = {
    "text": as_text,
    "svg": as_svg,
    "mermaid": as_mermaid,
    "dot": as_dot,
    "json": lambda drawn: f"{drawn.as_json().decode()}\n",
}


@click.command(cls=Command, short_help="Topics, actors and the edges between them.")
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["auto", *_WRITERS]),
    default="auto",
    show_default=True,
    help="Format of the output; auto: by its suffix, else text.",
)
@output_option
@json_option
def graph(*, apps: tuple[str, ...], format_: str, output: str, as_json: bool) -> None:
    """Show topics, actors, functions and the edges between them. An APP is given as package.module:app.

    Outputs are found by an analysis of the handlers' code. A topic that a handler selects only at run time is not shown.
    """
    plans = _plans(apps)
    drawn = graph_of(plans)
    if as_json:
        if format_ not in ("auto", "json"):
            raise click.UsageError(f"--json and --format {format_} contradict each other: give one of them.")
        format_ = "json"
    if format_ == "auto":
        suffix = PurePath(output).suffix
        if suffix.lower() not in _FORMATS:
            raise click.BadParameter(
                f"the suffix {suffix!r} is not known: use .svg, .json, .mmd, .dot or .txt, or name the format (--format)",
                param_hint="--output",
            )
        format_ = _FORMATS[suffix.lower()]
    made = _WRITERS[format_](
        drawn
    ).encode()  # before the file is opened: if this fails, an older picture stays
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
