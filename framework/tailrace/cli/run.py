"""``tailrace run``: runs an app as a service."""

from __future__ import annotations

import logging
import re
import shlex
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tailrace.cli.arguments import (
    DurationType,
    any_log_option,
    app_argument,
    from_snapshot_option,
    new_topics_options,
    outside_of_log,
    refuse_new_topics_options,
    state_option,
    workers_option,
)
from tailrace.cli.commands import Command
from tailrace.cli.settings import Setting
from tailrace.core.counting import counted
from tailrace.core.errors import MissingExtraError, SetAsideError
from tailrace.log.options import LogOptions, NewTopics
from tailrace.processes import logs
from tailrace.processes.app_loading import find_app
from tailrace.runtime.automatic_snapshots import SnapshotSchedule
from tailrace.runtime.dead_letter_monitor import in_words
from tailrace.runtime.kafka_service import serve_on_kafka
from tailrace.runtime.memory_shares import DEFAULT_MIB, LEAST_MIB
from tailrace.runtime.service import ServiceOptions, serve
from tailrace.runtime.supervisor import Supervisor

_LEAST_LEASE_MS = 500
"""A lease is renewed by a thread that competes with handlers for the interpreter."""
_LEAST_SNAPSHOT_MS = 1_000
"""Each snapshot is taken by a new process, and its start takes time."""
_DROPPABLE = re.compile(r"[\w-]+(\.([\w-]+|(processing-)?timers:.*))?")
"""``Ship``, ``Ship.calls``, ``Ship.timers:overdue``."""


@click.command(cls=Command, short_help="Run an app until it is stopped.")
@app_argument
@any_log_option
@state_option
@workers_option(1, "Processes that share the tasks.")
@click.option(
    "--standbys",
    cls=Setting,
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="On Kafka: copies of the state of each task in other processes, for a faster restore when its owner dies.",
)
@click.option(
    "--downgrade",
    is_flag=True,
    help="On Kafka: take over tasks from a version of the app that has replaced this one.",
)
@click.option(
    "--commit-interval",
    cls=Setting,
    type=DurationType(least_ms=1),
    default="1s",
    show_default=True,
    help="Time between two commits.",
)
@click.option(
    "--store-every",
    cls=Setting,
    type=click.IntRange(1),
    help="Number of commits after which the state folders are written; after a crash, as many are read from the log. Default: "
    "1, on Kafka 5.",
)
@click.option(
    "--memory-mib",
    cls=Setting,
    type=click.IntRange(LEAST_MIB),
    default=DEFAULT_MIB,
    show_default=True,
    help="MiB of memory for the state of a process: live keys, state folders, and commits that wait for these.",
)
@click.option(
    "--lease",
    cls=Setting,
    type=DurationType(least_ms=_LEAST_LEASE_MS),
    default="10s",
    show_default=True,
    help="Time after which another worker may take over the tasks of a worker that is stopped or frozen.",
)
@click.option(
    "--max-record-bytes",
    cls=Setting,
    type=click.IntRange(1_000, 1 << 30),
    default=1 << 20,
    show_default=True,
    help="Size limit of an event in the log, including its key.",
)
@click.option(
    "--until-end", is_flag=True, help="Stop when all records in the log have been read and handled."
)
@click.option(
    "--allow-dead-letters",
    is_flag=True,
    help="With --until-end: exit with 0 instead of 3 if events went to the dead letters.",
)
@click.option(
    "--create-topics/--no-create-topics",
    cls=Setting,
    default=False,
    help="Create the log and the declared topics if they are missing.",
)
@new_topics_options
@click.option("--change-inputs", is_flag=True, help="Allow the app to read other topics than before.")
@click.option(
    "--after-deleted",
    is_flag=True,
    help="Skip records that the log deleted before the app read them.",
)
@click.option(
    "--drop-state",
    multiple=True,
    metavar="NAME",
    help="Drop state that the app no longer declares: of an actor (Actor), a field (Actor.field), or pending timers "
    "(Actor.timers:family).",
)
@from_snapshot_option
@click.option(
    "--replace-state", is_flag=True, help="With --from-snapshot: replace the state that the app has."
)
@click.option(
    "--snapshots",
    "snapshots_at",
    cls=Setting,
    metavar="URI",
    help="Take snapshots there automatically, one every --snapshot-every.",
)
@click.option(
    "--snapshot-every",
    cls=Setting,
    type=DurationType(least_ms=_LEAST_SNAPSHOT_MS),
    default="10m",
    show_default=True,
    help="With --snapshots: time between two snapshots.",
)
@click.option(
    "--snapshot-keep",
    cls=Setting,
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="With --snapshots: number of snapshots to keep. Savepoints, and snapshots that others build on, are never deleted.",
)
@click.option(
    "--as",
    "other_name",
    metavar="NAME",
    help="Run a copy of APP under this name, with its own state and position. To replace the original with the copy, stop the "
    "original and run `tailrace retire`.",
)
@click.option(
    "--fsync",
    cls=Setting,
    type=click.Choice(["interval", "commit"]),
    default="interval",
    show_default=True,
    help="When commits are on the disk, for power losses: at intervals of a second, or at every commit.",
)
@click.option(
    "--log-format",
    cls=Setting,
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    show_default=True,
    help="Format of the logs on standard error; auto: text on a terminal, else JSON.",
)
def run(
    *,
    app: str,
    folder: Path | str,
    state_folder: Path,
    workers: int,
    standbys: int,
    downgrade: bool,
    commit_interval: int,
    store_every: int | None,
    memory_mib: int,
    lease: int,
    max_record_bytes: int,
    until_end: bool,
    allow_dead_letters: bool,
    create_topics: bool,
    new_topics: NewTopics,
    change_inputs: bool,
    after_deleted: bool,
    drop_state: tuple[str, ...],
    from_snapshot: str | None,
    replace_state: bool,
    snapshots_at: str | None,
    snapshot_every: int,
    snapshot_keep: int,
    other_name: str | None,
    fsync: Any,
    log_format: Any,
) -> None:
    """Run APP, given as package.module:app, until it is stopped.

    On SIGTERM or Ctrl-C it commits and stops. On a second Ctrl-C it stops at once, and nothing is lost. If it is killed, the
    next start resumes from its last commit. --from-snapshot is for an app that has not begun; one that has begun resumes where
    it stopped. With --until-end the exit code is 3 if events went to the dead letters.
    """
    if allow_dead_letters and not until_end:
        raise click.UsageError("--allow-dead-letters goes with --until-end.")
    if other_name is not None:
        if other_name == find_app(app).name:
            raise click.BadParameter(
                f"{other_name!r} is already the name of {app}: leave --as out, or give the copy another name",
                param_hint="--as",
            )
        app = f"{app}@{other_name}"
    plan = find_app(app).plan()
    kafka, place = (folder, Path()) if isinstance(folder, str) else ("", folder)
    _check_snapshots(snapshots_at, None if kafka else place)
    for name in drop_state:
        if not _DROPPABLE.fullmatch(name):
            raise click.BadParameter(
                f"{name!r} is not an actor, nor a field or timers of one: write Ship, Ship.calls, or Ship.timers:overdue",
                param_hint="--drop-state",
            )
    if replace_state and not from_snapshot:
        raise click.BadParameter(
            "it says what to do with the snapshot of --from-snapshot.", param_hint="--replace-state"
        )
    if workers > plan.partitions:
        raise click.BadParameter(
            f"{plan.app!r} has {plan.partitions} partitions, so at most {plan.partitions} workers have something to do",
            param_hint="--workers",
        )
    if not kafka and (standbys or downgrade):
        raise click.UsageError("--standbys and --downgrade are for a log on Kafka.")
    if not kafka:
        refuse_new_topics_options()
        outside_of_log(state_folder, place, "--state")
    lease_s = lease / 1_000
    options = ServiceOptions(
        app=app,
        log=place,
        kafka=kafka,
        state=state_folder,
        workers=workers,
        standbys=standbys,
        downgrade=downgrade,
        commit_interval_ms=commit_interval,
        store_every=store_every,
        memory_mib=memory_mib,
        until_end=until_end,
        drop_state=frozenset(drop_state),
        change_inputs=change_inputs,
        after_deleted=after_deleted,
        from_snapshot=from_snapshot or "",
        replace_state=replace_state,
        snapshots=None
        if snapshots_at is None
        else SnapshotSchedule(snapshots_at, snapshot_every / 1_000, snapshot_keep),
        create_topics=create_topics,
        new_topics=new_topics,
        # A writer that waits for a stopped process must wait longer than that process's lease.
        log_options=LogOptions(
            fsync=fsync,
            max_record_bytes=max_record_bytes,
            lease_s=lease_s,
            patience_s=max(60.0, 3 * lease_s),
        ),
        log_format=log_format,
        lease_s=lease_s,
    )
    handler = logs.configure(options.log_format)
    try:
        if kafka:
            letters = serve_on_kafka(options, plan)
        elif workers == 1:
            letters = serve(options, plan)
        else:
            with closing(Supervisor(options, plan)) as supervisor:
                letters = supervisor.run()
    finally:
        logging.getLogger().removeHandler(handler)
    if until_end and letters and not allow_dead_letters:
        where = f" --log {shlex.quote(str(folder))}"
        raise SetAsideError(
            f"{counted(letters.total(), 'event')} went to the dead letters in this run: {in_words(letters)}",
            hint=f"See `tailrace dead-letters list {plan.app}{where}`; "
            "with --allow-dead-letters the exit code is 0.",
        )


def _check_snapshots(place: str | None, log_folder: Path | None) -> None:
    """Check the options of automatic snapshots."""
    if place is not None:
        if log_folder is not None:
            outside_of_log(place, log_folder, "--snapshots")
        if "://" not in place and Path(place).is_file():
            raise click.BadParameter(f"{place!r} is a file, and no folder", param_hint="--snapshots")
        if find_spec("pyarrow") is None:
            # Otherwise the service would run, and every snapshot would fail.
            raise MissingExtraError(
                "snapshots need the package pyarrow, which is not installed",
                hint="pip install 'tailrace[parquet]'",
            )
        return
    context = click.get_current_context()
    for name, option in (("snapshot_every", "--snapshot-every"), ("snapshot_keep", "--snapshot-keep")):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{option} goes with --snapshots, which names the place for them.")
