"""``tailrace migrate``: moves apps with their history from one log to another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from tailrace.cli.arguments import json_option, opened_log, other_log_option, plans_of, tell
from tailrace.cli.commands import Command
from tailrace.cli.console import Part, progress, styled_table
from tailrace.core.counting import counted
from tailrace.history.moving.copying import Copied, CopyStatus
from tailrace.history.moving.moving import Moved, give_up_move, move_apps


@click.command(cls=Command, short_help="Move apps to another log, with their history.")
@other_log_option("--from", "source", "The log that the apps live on: a folder, or kafka://host:9092.")
@other_log_option(
    "--to", "target", "The log to move them to: a folder, new or existing, or kafka://host:9092."
)
@click.option(
    "--app",
    "apps",
    multiple=True,
    required=True,
    metavar="APP",
    help="package.module:app; repeat it for apps that follow each other's topics.",
)
@click.option(
    "--cancel", is_flag=True, help="Give up an interrupted move: the apps may run on the old log again."
)
@json_option
def migrate(
    *, source: Path | str, target: Path | str, apps: tuple[str, ...], cancel: bool, as_json: bool
) -> None:
    """Move apps to another log: state, timers, positions, pending messages, and the history behind them.

    Stop the apps first. Each record has the same offset on the new log, so everything that refers to one
    stays valid, on the log and outside of it. The old log is left as it is, but the apps do not start there
    any more. An interrupted move resumes with the same command. The new log must have no records in the
    topics of the apps.
    """
    plans = plans_of(apps)
    with opened_log(source) as old, opened_log(target, create=not cancel) as new:
        if cancel:
            give_up_move(plans, old, new)
            names = [plan.app for plan in plans]
            line = f"given up: {' and '.join(names)} may run on {source} again"
            tell({"apps": names, "done": False, "given_up": True}, [line], as_json=as_json)
            return
        with progress() as report_progress:

            def on_progress(status: CopyStatus) -> None:
                report_progress(f"{status.records:,} records copied", status.done, status.all)

            done = move_apps(plans, old, new, on_progress)
    topics = [one._asdict() for one in done.topics]
    said = {"apps": done.apps, "done": True, "topics": topics, "rows": done.rows}
    tell(said, _lines(done, str(target)), as_json=as_json)


def lines_of_copied(topics: Iterable[Copied]) -> list[Part]:
    """A table of topics."""
    rows = [(one.topic, one.partitions, f"{one.records:,}") for one in topics]
    return styled_table(rows, ("topic", "partitions", "copied"))


def _lines(done: Moved, target: str) -> list[Part]:
    names, is_one = " and ".join(done.apps), len(done.apps) == 1
    if not done.topics:
        return [f"{names} {'was' if is_one else 'were'} moved to {target} before"]
    return [
        *lines_of_copied(done.topics),
        f"the same on both logs: the ends of all topics, and {counted(done.rows, 'row')} of state",
        f"moved {names}: run {'it' if is_one else 'them'} with --log {target}",
    ]
