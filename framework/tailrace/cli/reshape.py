"""``tailrace reshape``: an app continues on another log with another number of partitions."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.arguments import (
    any_log_option,
    app_argument,
    json_option,
    opened_log,
    other_log_option,
    outside_of_log,
    snapshots_option,
    tell,
)
from tailrace.cli.commands import Command
from tailrace.cli.migrate import lines_of_copied
from tailrace.core.counting import counted
from tailrace.history.moving.reshaping import reshape as reshape_app
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import STATE


@click.command(cls=Command, short_help="Give an app another number of partitions, on another log.")
@app_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="The new number of partitions (default: that in the code of APP).",
)
@other_log_option(
    "--to", "target", "The log to continue on: a folder, new or existing, or kafka://host:9092."
)
@any_log_option
@snapshots_option
@json_option
def reshape(
    *, app: str, partitions: int | None, target: Path | str, folder: Path | str, uri: str, as_json: bool
) -> None:
    """Let APP continue on another log with another number of partitions.

    Stop the app and its producers first. State, timers, pending messages and inputs go to the partitions of
    their keys. The old log is left as it is. An interrupted run begins again, with another empty log.
    """
    plan = find_app(app).plan()
    outside_of_log(uri, folder, "--snapshots")
    partitions = partitions or plan.partitions
    with opened_log(folder) as old, opened_log(target, create=True) as new:
        made, copied = reshape_app(plan, old, new, uri, partitions)
    count = sum(file.rows for task in made.tasks for file in task.files if file.table == STATE)
    said = {
        "app": made.app,
        "partitions": partitions,
        "topics": [one._asdict() for one in copied],
        "rows": count,
        "snapshot": made.id,
    }
    line = (
        f"{made.app} begins on {target} with {counted(count, 'row')} of state in {counted(partitions, 'partition')}: give it "
        f"partitions={partitions}, and run it with --log {target}"
    )
    tell(said, [*lines_of_copied(copied), line], as_json=as_json)
