"""``tailrace reshape``: an app continues on another log with another number of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from tailrace.cli.arguments import (
    LogType,
    any_log_option,
    app_argument,
    json_option,
    opened_log,
    outside_of_log,
    piped,
    snapshots_option,
)
from tailrace.cli.commands import Command
from tailrace.cli.migrate import show_copied
from tailrace.core.counting import counted
from tailrace.history.moving.copying import Copied
from tailrace.history.moving.reshaping import reshape as reshape_app
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import STATE, Manifest


@click.command(cls=Command, short_help="Give an app another number of partitions, on another log.")
@app_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="The new number of partitions (default: that in the code of APP).",
)
@click.option(
    "--to",
    "target",
    type=LogType(kafka=True),
    required=True,
    metavar="LOG",
    help="The log to continue on: a folder, new or existing, or kafka://host:9092.",
)
@any_log_option
@snapshots_option
@json_option
def reshape(
    *, app: str, partitions: int | None, target: Path | str, folder: Path | str, uri: str, as_json: bool
) -> int:
    """Let APP continue on another log with another number of partitions.

    Stop the app and its producers first. State, timers, pending messages and inputs go to the partitions of
    their keys. The old log is left as it is. An interrupted run continues with the same command.
    """
    plan = find_app(app).plan()
    outside_of_log(uri, folder, "--snapshots")
    partitions = partitions or plan.partitions
    with opened_log(folder) as old, opened_log(target, create=True) as new:
        made, copied = reshape_app(plan, old, new, uri, partitions)
        _say(made, copied, partitions, target, as_json=as_json)
    return 0


def _say(
    made: Manifest, copied: Sequence[Copied], partitions: int, target: Path | str, *, as_json: bool
) -> None:
    count = sum(file.rows for task in made.tasks for file in task.files if file.table == STATE)
    with piped():
        if as_json:
            topics = [one._asdict() for one in copied]
            said = {
                "app": made.app,
                "partitions": partitions,
                "topics": topics,
                "rows": count,
                "snapshot": made.id,
            }
            click.echo(msgspec.json.encode(said))
            return
        show_copied(copied)
        click.echo(
            f"{made.app} begins on {target} with {counted(count, 'row')} of state in {counted(partitions, 'partition')}: give it "
            f"partitions={partitions}, and run it with --log {target}"
        )
