"""``tailrace migrate``: moves apps with their history from one log to another."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tailrace.cli.arguments import LogType, json_option, opened_log, piped
from tailrace.cli.commands import Command
from tailrace.cli.console import progress, show_table
from tailrace.core.counting import counted
from tailrace.history.moving.copying import CopyStatus
from tailrace.history.moving.moving import Moved, MoveOptions, give_up_move, move_apps
from tailrace.processes.app_loading import find_app

DIFFERENT = 1


@click.command(cls=Command, short_help="Move apps to another log, with their history.")
@click.option(
    "--from",
    "source",
    type=LogType(kafka=True),
    required=True,
    metavar="LOG",
    help="The log that the apps live on: a folder, or kafka://host:9092.",
)
@click.option(
    "--to",
    "target",
    type=LogType(kafka=True),
    required=True,
    metavar="LOG",
    help="The log to move them to: a folder, new or existing, or kafka://host:9092.",
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
    "--check",
    is_flag=True,
    help="Compare both logs, record by record, before the apps may run on the new one. Of apps that were moved before: only compare.",
)
@click.option(
    "--prepare",
    is_flag=True,
    help="Copy what is there while the apps still run. A later move copies only the rest.",
)
@click.option(
    "--no-history",
    is_flag=True,
    help="Leave the records behind that the apps have read. A replay or rebuild then needs an archive.",
)
@click.option(
    "--cancel",
    is_flag=True,
    help="Give up an interrupted move: the apps may run on the old log again.",
)
@json_option
def migrate(
    *,
    source: Path | str,
    target: Path | str,
    apps: tuple[str, ...],
    check: bool,
    prepare: bool,
    no_history: bool,
    cancel: bool,
    as_json: bool,
) -> int:
    """Move apps to another log: state, timers, positions, pending messages, and the history behind them.

    Stop the apps first. Each record has the same offset on the new log, so everything that refers to one stays valid: the tape,
    snapshots, archives. The old log is left as it is, but the apps do not start there any more. An interrupted move resumes with the
    same command.
    """
    if cancel and (check or prepare or no_history):
        raise click.UsageError("--cancel stands alone: it gives a move up")
    plans = [find_app(app).plan() for app in dict.fromkeys(apps)]
    with opened_log(source) as old, opened_log(target, create=not cancel) as new:
        if cancel:
            give_up_move(plans, old, new)
            done = None
        else:
            options = MoveOptions(history=not no_history, prepare=prepare, check=check)
            with progress() as report_progress:
                done = move_apps(
                    plans, old, new, options, tell=lambda status: report_progress(*_progress(status))
                )
    with piped():
        if done is None:
            names = [plan.app for plan in plans]
            if as_json:
                click.echo(msgspec.json.encode({"apps": names, "done": False, "given_up": True}))
            else:
                click.echo(f"given up: {_names(names)} may run on {source} again")
            return 0
        (_say_json if as_json else _say)(done, str(source), str(target))
    return DIFFERENT if done.compared is not None and done.compared.differences else 0


def _say_json(done: Moved, _source: str, _target: str) -> None:
    said = {
        "apps": done.apps,
        "done": done.is_done,
        "topics": [one._asdict() for one in done.topics],
        "state_records": done.state_records,
        "compared": None if done.compared is None else done.compared._asdict(),
    }
    click.echo(msgspec.json.encode(said))


def _say(done: Moved, source: str, target: str) -> None:
    if done.topics:
        show_table(
            [(one.topic, one.partitions, f"{one.records:,}", _begin(one.begins)) for one in done.topics],
            ("topic", "partitions", "copied", "begins"),
        )
    names = _names(done.apps)
    has, was, it, lives = (
        ("has", "was", "it", "lives") if len(done.apps) == 1 else ("have", "were", "them", "live")
    )
    compared = done.compared
    if compared is not None:
        click.echo(
            f"compared {counted(compared.records, 'record')}"
            + (
                f"; {names} {has} run there since, so no state is compared"
                if compared.has_run
                else f", {counted(compared.messages, 'pending message')} among them, and {counted(compared.rows, 'row')} of state"
            )
        )
        for line in compared.differences:
            click.echo(f"  {line}")
        click.echo(f"differences: {'see above' if compared.differences else 'none'}")
    if done.is_done and not done.topics:
        click.echo(f"{names} {was} moved to {target} before")
    elif done.is_done:
        click.echo(f"moved {names}: run {it} with --log {target}")
    elif compared is not None:
        click.echo(
            f"{names} cannot be started yet: find the cause and run the same command again, or use --cancel"
        )
    else:
        click.echo(f"prepared: {names} still {lives} on {source}. Stop {it}, and move {it} without --prepare")


def _names(apps: list[str]) -> str:
    return " and ".join(apps)


def _begin(begins: list[int]) -> str:
    return "-" if not any(begins) else ", ".join(f"{one:,}" for one in begins)


def _progress(status: CopyStatus) -> tuple[str, int, int]:
    return f"{status.records:,} records copied", status.done, status.all
