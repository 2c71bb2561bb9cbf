"""``tailrace reshape``: an app continues on another log with another number of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event

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
from tailrace.core.errors import OptionError
from tailrace.history.moving.copying import Copied
from tailrace.history.moving.forwarding import Forwarder
from tailrace.history.moving.reshaping import forwarder, rewritten
from tailrace.history.moving.reshaping import reshape as reshape_app
from tailrace.history.moving.rewriting import Rewrite
from tailrace.history.rebuilding.code_digest import code_of
from tailrace.processes.app_loading import find_app
from tailrace.processes.signals import stop_signals
from tailrace.state.snapshots import STATE, Manifest

_NAP_S = 0.1


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
@click.option(
    "--rekey",
    metavar="FILE.py:FUNCTION",
    help="Give each key the key that function(actor, key, state) returns; it may change the fields in the dict state.",
)
@click.option(
    "--check", is_flag=True, help="Only say what --rekey would change, and which keys fail. The app may run."
)
@click.option(
    "--follow",
    is_flag=True,
    help="The producers need not stop: forward what they write to the old log, until Ctrl-C or SIGTERM.",
)
@any_log_option
@snapshots_option
@json_option
def reshape(
    *,
    app: str,
    partitions: int | None,
    target: Path | str,
    rekey: str | None,
    check: bool,
    follow: bool,
    folder: Path | str,
    uri: str,
    as_json: bool,
) -> int:
    """Let APP continue on another log with another number of partitions, or with other keys.

    Stop the app and its producers first; with --follow only the app. State, timers, pending messages and inputs go to the partitions of
    their keys. The old log is left as it is. An interrupted run continues with the same command.
    """
    plan = find_app(app).plan()
    rewrite = Rewrite.of(rekey, code_of(app, plan)) if rekey else None
    outside_of_log(uri, folder, "--snapshots")
    if check:
        if rewrite is None:
            raise OptionError("--check says what --rekey would do", hint="Give it --rekey FILE.py:FUNCTION.")
        with opened_log(folder) as old:
            found = rewritten(plan, old, uri, rewrite)
        changes = [
            {"actor": actor, "what": what, "keys": keys} for (actor, what), keys in found.counts.items()
        ]
        checked = {"app": plan.app, "changes": changes, "failed": found.failed}
        with piped():
            click.echo(msgspec.json.encode(checked) if as_json else "\n".join(found.lines()))
        return int(bool(found.failed))
    partitions = partitions or plan.partitions
    with opened_log(folder) as old, opened_log(target, create=True) as new:
        made, copied = reshape_app(plan, old, new, uri, partitions, rewrite, live=follow)
        _say(made, copied, partitions, target, as_json=as_json)
        if follow:
            _follow(forwarder(plan, old, new, rewrite))
    return 0


def _follow(forwarding: Forwarder) -> None:
    """Forward until a signal comes."""
    stopped, count, said = Event(), 0, -1
    with closing(forwarding), stop_signals(stopped.set):
        while not stopped.is_set():
            if found := forwarding.step():
                count += found
            else:
                if count != said:
                    click.echo(f"{counted(count, 'record')} forwarded, and nothing is left", err=True)
                    said = count
                stopped.wait(_NAP_S)


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
