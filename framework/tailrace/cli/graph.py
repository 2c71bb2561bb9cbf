"""``tailrace graph``: what flows where in an app, or in several that share topics."""

from __future__ import annotations

import click

from tailrace.cli.arguments import output_option, written
from tailrace.runtime.apps import find_app
from tailrace.runtime.graph import as_svg, as_text, graph_of

_SUFFIXES = {"svg": "svg", "json": "json"}


@click.command
@click.argument("apps", metavar="APP...", nargs=-1, required=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["auto", "text", "svg", "json"]),
    default="auto",
    show_default=True,
    help="Written as; auto: by the output's suffix, else text.",
)
@output_option
def graph(*, apps: tuple[str, ...], format_: str, output: str) -> None:
    """Show topics, actors, functions and the edges between them. An APP is given as package.module:app.

    What a handler emits is read from its code: a topic that it only finds when it runs is not shown.
    """
    plans = {plan.app: plan for plan in (find_app(app).plan() for app in apps)}
    drawn = graph_of(plans.values())
    if format_ == "auto":
        format_ = _SUFFIXES.get(output.rpartition(".")[2].lower(), "text")
    with written(output) as file:
        if format_ == "json":
            file.write(drawn.as_json() + b"\n")
        else:
            file.write((as_svg(drawn) if format_ == "svg" else as_text(drawn)).encode())
