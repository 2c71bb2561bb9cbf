"""``tailrace run``: runs an app as a service."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

import click

from tailrace.cli.arguments import (
    any_log_option,
    app_argument,
    log_format_option,
    new_topics_options,
    outside_of_log,
    refuse_new_topics_options,
    state_option,
    workers_option,
)
from tailrace.cli.commands import Command, exit_code_of
from tailrace.cli.http_options import Http, http_options
from tailrace.cli.service_options import AutomaticSnapshots, change_options, snapshot_options, tuning_options
from tailrace.cli.settings import setting
from tailrace.cli.shadow import Shadow, run_shadow, shadow_options
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.errors import SetAsideError, TailraceError
from tailrace.log.options import LogOptions, NewTopics
from tailrace.processes import logs
from tailrace.processes.app_loading import find_app
from tailrace.runtime.dead_letter_monitor import in_words
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.runtime.supervisor import Supervisor

_log = logging.getLogger("tailrace.service")


@click.command(cls=Command, short_help="Run an app until it is stopped.")
@app_argument
@any_log_option
@state_option
@workers_option(1, "Processes that share the tasks.")
@setting(
    "--standbys",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="On Kafka: copies of the state of each task in other processes, for a faster restore.",
)
@click.option(
    "--downgrade",
    is_flag=True,
    help="On Kafka: take over tasks from a version of the app that has replaced this one.",
)
@click.option(
    "--until-end",
    is_flag=True,
    help="Stop when all records in the log have been read and handled. Event time stays, and a later run continues.",
)
@click.option(
    "--end-of-input",
    is_flag=True,
    help="The same, but the inputs end for good: fire all event-time timers, then stop.",
)
@click.option(
    "--allow-dead-letters",
    is_flag=True,
    help="With --until-end or --end-of-input: exit with 0 instead of 3 if events went to the dead letters.",
)
@setting(
    "--create-topics/--no-create-topics",
    default=False,
    help="Create the log and the declared topics if they are missing.",
)
@new_topics_options
@change_options
@snapshot_options
@click.option(
    "--as",
    "other_name",
    metavar="NAME",
    help="Run a copy of APP under this name, with its own state and position. To replace the original with "
    "the copy, stop the original and run `tailrace retire`.",
)
@shadow_options
@tuning_options
@http_options
@log_format_option
def run(
    *,
    app: str,
    folder: Path | str,
    allow_dead_letters: bool,
    new_topics: NewTopics,
    changes: dict[str, Any],
    automatic: AutomaticSnapshots,
    other_name: str | None,
    shadow: Shadow | None,
    tuning: dict[str, Any],
    http: Http,
    **of_service: Any,
) -> None:
    """Run APP, given as package.module:app, until it is stopped.

    On SIGTERM or Ctrl-C it commits and stops. On a second Ctrl-C it stops at once, and nothing is lost. If it
    is killed, the next start resumes from its last commit. --from-snapshot is for an app that has not begun.
    With --shadow nothing is served: APP handles what version A of it has handled, and both are compared.

    With --until-end and --end-of-input the exit code is 3 if events went to the dead letters.
    """
    if shadow is not None:
        run_shadow(app, folder, shadow)
        return
    if changes["replace_state"] and not changes["from_snapshot"]:
        raise click.UsageError("--replace-state goes with --from-snapshot.")
    app = _reference(app, other_name)
    plan = find_app(app).plan()
    _check_places(plan, folder, of_service["state"], of_service["workers"])
    of_log = {name: tuning.pop(name) for name in ("fsync", "max_record_bytes")}
    options = ServiceOptions(
        app=app,
        log=folder,
        snapshots=automatic.schedule(folder),
        log_options=LogOptions(new_topics=new_topics, **of_log),
        http=http.listen(),
        **of_service,
        **changes,
        **tuning,
    )
    _serve(options, plan, allow_dead_letters=allow_dead_letters)


def _reference(app: str, other_name: str | None) -> str:
    """The reference of the app, or of a copy of it under another name."""
    if other_name is None:
        return app
    if other_name == find_app(app).name:
        raise click.BadParameter(
            f"{other_name!r} is already the name of {app}: leave --as out, or give the copy another name",
            param_hint="--as",
        )
    return f"{app}@{other_name}"


def _check_places(plan: Plan, log: Path | str, state_folder: Path, workers: int) -> None:
    """Refuse options that do not fit the app or its log."""
    if workers > plan.partitions:
        raise click.BadParameter(
            f"{plan.app!r} has {plan.partitions} partitions, so at most {plan.partitions} workers have "
            "something to do",
            param_hint="--workers",
        )
    if isinstance(log, Path):
        refuse_new_topics_options()
        outside_of_log(state_folder, log, "--state")


def _serve(options: ServiceOptions, plan: Plan, *, allow_dead_letters: bool) -> None:
    """Run the service until it stops. Its last line has the format of its logs."""
    handler = logs.configure(options.log_format)
    try:
        letters = Host(options, plan).run() if options.workers == 1 else Supervisor(options, plan).run()
        if options.is_bounded and letters and not allow_dead_letters:
            raise SetAsideError(
                f"{counted(letters.total(), 'event')} went to the dead letters in this run: {in_words(letters)}",
                hint=f"See `tailrace dead-letters list {plan.app} --log {shlex.quote(str(options.log))}`; "
                "with --allow-dead-letters the exit code is 0.",
            )
    except TailraceError as error:
        if not isinstance(handler.formatter, logs.JsonFormatter):
            raise
        code = exit_code_of(error)
        _log.error("%s", error, extra={"app": plan.app, "exit_code": code})
        raise click.exceptions.Exit(code) from None
    finally:
        logging.getLogger().removeHandler(handler)
