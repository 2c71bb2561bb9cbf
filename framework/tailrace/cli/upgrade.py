"""``tailrace upgrade``: a new version of an app takes over from the one that runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from tailrace.cli.arguments import any_log_option, json_option, outside_of_log, snapshots_option, tell
from tailrace.cli.commands import Command
from tailrace.cli.console import progress
from tailrace.cli.rebuild_options import engine_options
from tailrace.core.counting import counted
from tailrace.lab.upgrade.driver import Upgrading, Wanted
from tailrace.lab.upgrade.steps import UpgradeReport
from tailrace.processes.signals import closing_on_sigterm


@click.command(cls=Command, short_help="Let a new version take over, with a state made from history.")
@click.argument("old")
@click.option("--to", "new", required=True, metavar="NEW", help="The new version, named like OLD.")
@any_log_option
@snapshots_option
@click.option(
    "--plan", "only_plan", is_flag=True, help="Only say what would be done, and about how long it takes."
)
@click.option(
    "--rollback", is_flag=True, help="Return from NEW to OLD, which handles what has happened since."
)
@click.option("--cancel", is_flag=True, help="Give up an upgrade that has not ended: OLD may run.")
@engine_options
@json_option
def upgrade(
    *, folder: Path | str, uri: str, only_plan: bool, cancel: bool, as_json: bool, **of_wanted: Any
) -> None:
    """Rebuild the state of NEW from history beside OLD, stop OLD, and let NEW take over. Producers may write all the time.

    OLD and NEW are each package.module:app, path/to/file.py:app, or either after a git revision: main:package.module:app.
    Processes of OLD end by themselves; those of NEW may be started before, and wait. An interrupted upgrade resumes when you
    run the same command again.
    """
    outside_of_log(uri, folder, "--snapshots")
    wanted = Wanted(log=str(folder), snapshots=uri, **of_wanted)
    with progress() as report_progress, closing_on_sigterm(), ExitStack() as stack:

        def say(said: str) -> None:
            report_progress(said, 0, 0)
            if not sys.stderr.isatty():
                click.echo(said, err=True)

        upgrading = Upgrading(wanted, stack, say)
        found: object
        if only_plan:
            found = planned = upgrading.plan()
            lines = planned.lines()
        elif cancel:
            given_up = upgrading.cancel()
            found = {"app": upgrading.app, "given_up": given_up}
            lines = ["given up: the old version may run" if given_up else "there is nothing to give up"]
        else:
            found = report = upgrading.run()
            lines = _lines(report)
    tell(found, lines, as_json=as_json)


def _lines(report: UpgradeReport) -> list[str]:
    versions = f"{report.app}: version {report.new} runs, in the place of {report.old}"
    if not report.done:
        return [f"{versions}, since an earlier upgrade"]
    order = "along the tape" if report.order == "tape" else "in stages"
    made = f"{counted(report.rows, 'row')} of state, made by {counted(report.rounds, 'rebuild')} {order}"
    stopped = f"no process worked for {report.stopped_s:.1f} s"
    return [versions, *([made, stopped] if report.rows else [])]
