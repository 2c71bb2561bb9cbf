"""``tailrace log verify``, ``repair``, ``copy`` and ``upgrade``: the files of an event log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from tailrace.cli.arguments import json_option, log_option, opened, piped
from tailrace.cli.commands import Command
from tailrace.core.counting import counted
from tailrace.log.embedded.old_format import upgrade as upgrade_log
from tailrace.log.embedded.repairing import repair as repair_log

_LOST = 3
"""The exit code of a repair that has lost something."""


@click.command(cls=Command, short_help="Read the whole log and check it.")
@json_option
@log_option
def verify(*, as_json: bool, folder: Path) -> None:
    """Check the structure of the log's file, each checksum, and that offsets, commits and watermarks fit together.

    Services may keep running. The log is not cleaned meanwhile, and its WAL grows with what is committed.
    """
    with opened(folder) as log:
        lost = log.verify()
        topics = len(log.topics())
    with piped():
        if as_json:
            click.echo(msgspec.json.encode({"topics": topics, "lost": lost}))
            return
        click.echo(f"The log is intact: {counted(topics, 'topic')}.")
        if lost:
            click.echo("Earlier repairs have lost records. Readers get an error for them:")
        for one in lost:
            click.echo(f"  {one}")


@click.command(cls=Command, short_help="Take out what is damaged, and list what is lost.")
@json_option
@log_option
def repair(*, as_json: bool, folder: Path) -> int:
    """Move all that is intact to a new file, keep the damaged one, and list what is lost.

    Stop all services on the log first. Offsets do not move, and a reader that comes to lost records gets an error. An intact log is
    not changed. The exit code is 3 if something is lost. The damaged files are copied, so a repair needs up to twice their size.
    """
    done = repair_log(folder)
    with piped():
        if as_json:
            said = {"kept": None if done.kept is None else str(done.kept), "lost": done.lost}
            click.echo(msgspec.json.encode(said))
        elif done.kept is None:
            click.echo("The log is intact; nothing was changed.")
        else:
            _show_repair(done.kept, done.lost)
    return _LOST if done.lost else 0


def _show_repair(kept: Path, lost: list[str]) -> None:
    click.echo("The log is repaired. Lost:" if lost else "The log is repaired; no record is lost.")
    for one in lost:
        click.echo(f"  {one}")
    click.echo(f"The damaged files are in {kept}.")


@click.command(cls=Command, short_help="Copy the log while it is used.")
@click.argument("target", type=click.Path(path_type=Path))
@json_option
@log_option
def copy(*, target: Path, as_json: bool, folder: Path) -> None:
    """Copy the log, as of one moment, to the folder TARGET, which must be empty or not exist. Services may keep running.

    A copy can be read on any machine and file system. The file of a log that is in use cannot. Do not copy a log in use with cp or
    rsync: while a process commits, they copy files of different moments.
    """
    with opened(folder) as log:
        done = log.copy_to(target)
    with piped():
        if as_json:
            click.echo(msgspec.json.encode({"folder": str(target), **asdict(done)}))
            return
        topics, size = counted(done.topics, "topic"), counted(done.bytes, "byte")
        click.echo(f"Copied to {target}: {topics}, as of commit {done.commits:,}, {size}.")


@click.command(cls=Command, short_help="Move a log of an older version into the present format.")
@json_option
@log_option
def upgrade(*, as_json: bool, folder: Path) -> None:
    """Move a log that an older version wrote into the present format.

    Stop all services on the log first. Offsets, timestamps, committed offsets, watermarks and settings of topics stay as they are.
    The old files are moved to a folder of their own; delete it when you no longer need it. If the command is interrupted, run it
    again.
    """
    done = upgrade_log(folder)
    with piped():
        if as_json:
            said = {"topics": done.topics, "offsets": done.offsets, "bytes_left_out": done.bytes_left_out}
            click.echo(msgspec.json.encode({**said, "kept": done.kept and str(done.kept)}))
            return
        if done.kept is None:
            click.echo("The log has the present format now.")
            return
        if done.topics:
            click.echo(f"{counted(done.topics, 'topic')} with {counted(done.offsets, 'offset')} moved.")
        else:
            click.echo("Nothing was left to move: the log has the topics and offsets of the old files.")
        if done.bytes_left_out:
            click.echo(
                f"An incomplete commit at the end was left out: {counted(done.bytes_left_out, 'byte')}. It was never visible."
            )
        click.echo(f"The old files are in {done.kept}.")
