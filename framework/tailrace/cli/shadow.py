"""``tailrace run B --shadow A``: the options, and the process of a shadow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource

from tailrace.cli.arguments import outside_of_log, packed
from tailrace.cli.value_types import DurationType

_NICE = 10
"""By how much the priority of a shadow is lower than that of a service."""


class Shadow(NamedTuple):
    """What a shadow follows, and where its results go."""

    a: str
    to: str
    every_ms: int
    metrics: str | None


def _shadow(*, shadow: str | None, to: str | None, every: int, metrics: str | None) -> Shadow | None:
    if shadow is not None and to is not None:
        return Shadow(shadow, to, every, metrics)
    if shadow is not None or to is not None or metrics is not None:
        raise click.UsageError("--shadow A and --to FOLDER go together; --metrics goes with them.")
    return None


shadow_options = packed(
    "shadow",
    _shadow,
    click.option(
        "--shadow",
        metavar="A",
        help="Do not serve: follow version A of the app, which runs, and compare APP with it.",
    ),
    click.option("--to", metavar="FOLDER", help="With --shadow: the folder of the results."),
    click.option(
        "--every",
        type=DurationType(least_ms=100),
        default="30s",
        show_default=True,
        help="With --shadow: time from one comparison to the next.",
    ),
    click.option("--metrics", metavar="FILE", help="With --shadow: a file of metrics, as for tailrace ab."),
)
OF_SHADOW = frozenset({"shadow", "to", "every", "metrics"})
_GO_WITH_SHADOW = OF_SHADOW | {"app", "folder"}


def run_shadow(app: str, folder: Path | str, shadow: Shadow) -> None:
    """Follow until SIGTERM or Ctrl-C. Raises click.UsageError: an option of the command line is for services."""
    # A service does not wait for what only a comparison needs.
    from tailrace.history.rebuilding.request import Source  # noqa: PLC0415  # see above
    from tailrace.lab.comparison import Wanted  # noqa: PLC0415  # see above
    from tailrace.lab.shadow import follow  # noqa: PLC0415  # see above

    context = click.get_current_context()
    for one in context.command.params:
        typed = context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
        if typed and one.name not in _GO_WITH_SHADOW:
            raise click.UsageError(f"{one.opts[0]} is for a service: it does not go with --shadow.")
    outside_of_log(shadow.to, folder, "--to")
    os.nice(_NICE)
    source = Source(log=str(folder))
    wanted = Wanted(a=shadow.a, b=app, source=source, to=shadow.to, workers=1, metrics=shadow.metrics)
    follow(wanted, shadow.every_ms / 1000, lambda said: click.echo(said, err=True))
