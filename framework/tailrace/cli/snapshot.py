"""``tailrace snapshot``: takes and manages snapshots of an app's state. The service may run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli.arguments import (
    any_log_option,
    app_argument,
    json_option,
    name_of,
    name_option,
    opened_log,
    outside_of_log,
    snapshots_option,
    tell,
    tell_each,
)
from tailrace.cli.commands import Commands
from tailrace.cli.console import styled_table
from tailrace.cli.showing import instant
from tailrace.core.counting import counted
from tailrace.core.durations import is_instant
from tailrace.core.engine import tape
from tailrace.core.suggestions import did_you_mean
from tailrace.history.snapshots.migrating import Migrating, as_written, migrating_from_log
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Manifest, Place, Snapshot, Snapshots

_DIFFERENT = 1

_which = click.argument("which", default="latest", metavar="[ID|NAME|latest]")


@click.group(cls=Commands, short_help="Take, list, show, verify, delete snapshots.")
def snapshot() -> None:
    """Take, list, show, verify and delete snapshots of an app's state."""


@snapshot.command(short_help="Take a snapshot as of the last commit.")
@app_argument
@any_log_option
@snapshots_option
@name_option
@click.option(
    "--incremental",
    is_flag=True,
    help="Store only the changes since the latest snapshot, if it can be built on.",
)
@json_option
def create(
    *, app: str, folder: Path | str, uri: str, name: str | None, incremental: bool, as_json: bool
) -> None:
    """Take a snapshot of APP as of the last commit in the log. The service may run; it is not stopped."""
    plan = find_app(app).plan()
    outside_of_log(uri, folder, "--snapshots")
    snapshots = Snapshots(uri, plan.app)
    begun_s = time.perf_counter()
    options = TakingOptions(name=name, incremental=incremental)
    with opened_log(folder) as log:
        made = take_snapshot(as_written(plan, log), log, snapshots, options)
    snapshots.sweep()
    line = (
        f"snapshot {made.id}: {counted(_count(made), 'row')}, {_in_words(_size(made))}, {made.kind}, "
        f"in {time.perf_counter() - begun_s:.1f} s"
    )
    tell(_as_dict(made), [line], as_json=as_json)


@snapshot.command("list", short_help="List the snapshots of an app.")
@app_argument
@snapshots_option
@json_option
def list_(*, app: str, uri: str, as_json: bool) -> None:
    """List the snapshots of APP, given as package.module:app or by its name alone; the newest last."""
    name = name_of(app)
    snapshots = Snapshots(uri, name)
    found = snapshots.list()
    if not found:
        meant = did_you_mean(name, snapshots.other_apps)
        said = f"tailrace: there is no snapshot of {name!r} in {Place.at(uri).shown!r}. {meant}"
        click.echo(said.rstrip(), err=True)
    rows = [
        (
            each.id,
            each.name or ("automatic" if each.automatic else "-"),
            instant(each.created_ms),
            each.source,
            each.kind,
            _count(each),
            _in_words(_size(each)),
        )
        for each in found
    ]
    lines = styled_table(rows, ("id", "name", "created", "from", "kind", "rows", "size")) if rows else ()
    tell_each(map(_as_dict, found), lines, as_json=as_json)


@snapshot.command(short_help="Show offsets and watermarks of a snapshot.")
@app_argument
@_which
@snapshots_option
@json_option
def show(*, app: str, which: str, uri: str, as_json: bool) -> None:
    """Show the position of a snapshot: per partition its offsets, watermark, counts and files."""
    found = Snapshots(uri, name_of(app)).open(which)
    said = {**_as_dict(found.manifest), "tasks": [*map(_task_as_dict, found.manifest.tasks)]}
    tell(said, _shown(found), as_json=as_json)


@snapshot.command(short_help="Check every file against the manifest.")
@app_argument
@_which
@snapshots_option
@json_option
def verify(*, app: str, which: str, uri: str, as_json: bool) -> int:
    """Check every file of a snapshot against the manifest; exit 1 if anything is wrong."""
    found = Snapshots(uri, name_of(app)).open(which)
    problems = found.verify()
    files = sum(len(task.files) for one in found.chain for task in one.tasks)
    for each in () if as_json else problems:
        click.echo(f"{each.snapshot} {each.file}: {each.what}", err=True)
    said = {"snapshot": found.manifest.id, "files": files, "problems": problems}
    intact = [f"snapshot {found.manifest.id}: {counted(files, 'file')}, all intact"]
    tell(said, [] if problems else intact, as_json=as_json)
    return _DIFFERENT if problems else 0


@snapshot.command(short_help="Delete snapshots.")
@app_argument
@click.argument("ids", nargs=-1, metavar="ID...")
@snapshots_option
@click.option("--dependants", is_flag=True, help="Also delete the incremental snapshots that build on it.")
@click.option("--keep", type=click.IntRange(1), help="Delete all automatic snapshots but the newest N.")
@json_option
def delete(
    *, app: str, ids: tuple[str, ...], uri: str, dependants: bool, keep: int | None, as_json: bool
) -> None:
    """Delete snapshots by id or savepoint name, or automatic ones but the newest N."""
    if not ids and keep is None:
        raise click.UsageError("Name what to delete: an ID or --keep N.")
    snapshots = Snapshots(uri, name_of(app))
    gone: list[str] = []
    for each in ids:
        gone += snapshots.delete(snapshots.id_of(each), dependants=dependants)
    if keep is not None:
        gone += snapshots.keep(keep)
    lines = [f"deleted {each}" for each in gone] or ["nothing to delete"]
    tell({"deleted": gone}, lines, as_json=as_json)


@snapshot.command(short_help="Migrate the state to the form of the present code.")
@app_argument
@click.argument("which", default="", metavar="[ID|NAME|latest]")
@click.option(
    "--check", is_flag=True, help="Only say what would change, and which keys fail. The app may run."
)
@any_log_option
@snapshots_option
@name_option
@json_option
def migrate(
    *, app: str, which: str, check: bool, folder: Path | str, uri: str, name: str | None, as_json: bool
) -> int:
    """Take the state of APP through the migrations of its actors (tr.migrates), as a new snapshot.

    The state is that of the last commit, or of the snapshot that is named. Stop the app first. Then start it
    with --from-snapshot and --replace-state.
    """
    plan = find_app(app).plan()
    outside_of_log(uri, folder, "--snapshots")
    snapshots = Snapshots(uri, plan.app)
    if which:
        base = snapshots.open(which)
        versions = dict.fromkeys((one.partition for one in base.manifest.tasks), base.manifest.version)
        found = Migrating(plan, snapshots, base, versions)
    else:
        with opened_log(folder) as log:
            found = migrating_from_log(plan, log, snapshots)
    made = None
    if check:
        found.check()
    elif found.migrations:
        made = found.publish(name)
    actors = [
        {"actor": one, "migrations": some, "keys": found.keys[one], "changed": found.changed[one]}
        for one, some in found.migrations.items()
    ]
    said = {"app": plan.app, "snapshot": made.id if made else None, "actors": actors}
    lines = _migrated(found, made, f"start {plan.app} with --from-snapshot '{uri}#")
    tell({**said, "failed": found.failed, "failures": found.failures}, lines, as_json=as_json)
    return int(bool(found.failed))


def _migrated(found: Migrating, made: Manifest | None, start: str) -> Iterator[str]:
    for one, some in found.migrations.items():
        yield f"{one}: {counted(found.keys[one], 'key')}, {found.changed[one]:,} changed"
        yield from (f"  {each}" for each in some)
    if found.failed:
        yield found.said_of_failures
    if made:
        yield f"migrated to snapshot {made.id}: {start}{made.id}' --replace-state"
    elif not found.migrations:
        yield "nothing to migrate"


def _shown(found: Snapshot) -> list[str]:
    manifest = found.manifest
    upon = f" upon {manifest.parent}" if manifest.parent else ""
    environment = ", ".join(
        f"{name} {value}" for name, value in sorted(manifest.environment.items()) if value
    )
    lines = [
        f"snapshot    {manifest.id}{f' ({manifest.name})' if manifest.name else ''}",
        f"app         {manifest.app}, version {manifest.version}, {manifest.partitions} partitions",
        f"created     {instant(manifest.created_ms)}",
        f"from        {manifest.source}, {manifest.kind}{upon}",
        f"made under  {environment}",
        f"holds       {counted(_count(manifest), 'row')} in {_in_words(_size(manifest))}",
    ]
    lines += [f"note        {note}" for note in manifest.notes]
    for task in manifest.tasks:
        lines.append("")
        if not task.cut:
            lines.append(f"partition {task.partition}: had not begun")
            continue
        cut = tape.decode_cut(task.cut)
        totals = cut.totals
        lines.append(
            f"partition {task.partition}: watermark "
            f"{instant(cut.watermark) if is_instant(cut.watermark) else '-'}, "
            f"{counted(totals.records, 'record')}, {counted(totals.fired, 'timer')} fired, "
            f"{counted(totals.outputs, 'output')}, "
            f"{totals.late:,} late, {totals.refused + totals.failed:,} bad, commit {cut.tape - 1:,}"
        )
        lines += [f"  continues at {name} {position:,}" for name, position in cut.positions.items()]
        lines += [f"  {file.rows:>10,} rows  {file.bytes:>12,} bytes  {file.name}" for file in task.files]
    return lines


def _as_dict(manifest: Manifest) -> dict[str, Any]:
    shown = msgspec.to_builtins(manifest)
    for inner in ("tasks", "ends", "checksum"):
        del shown[inner]
    return {**shown, "rows": _count(manifest), "bytes": _size(manifest)}


def _task_as_dict(task: Any) -> dict[str, Any]:
    cut = msgspec.to_builtins(tape.decode_cut(task.cut)) if task.cut else None
    named = dict(zip(tape.Cut.__struct_fields__, cut, strict=False)) if cut is not None else None
    return {
        "partition": task.partition,
        "cut": named,
        "files": [msgspec.to_builtins(one) for one in task.files],
    }


def _count(manifest: Manifest) -> int:
    return sum(
        file.rows for task in manifest.tasks for file in task.files if file.table in ("state", "timers")
    )


def _size(manifest: Manifest) -> int:
    return sum(file.bytes for task in manifest.tasks for file in task.files)


def _in_words(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1_000_000 else f"{size / 1e3:,.0f} kB"
