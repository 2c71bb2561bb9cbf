"""``tailrace log verify`` and ``copy``: the files of an event log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from tailrace.cli.arguments import json_option, log_option, opened, piped
from tailrace.cli.commands import Command
from tailrace.core.counting import counted


@click.command(cls=Command, short_help="Read the whole log and check it.")
@json_option
@log_option
def verify(*, as_json: bool, folder: Path) -> None:
    """Check the structure of the log's file, each checksum, and that offsets, commits and watermarks fit together.

    Services may keep running. The log is not cleaned meanwhile, and its WAL grows with what is committed.
    """
    with opened(folder) as log:
        log.verify()
        topics = len(log.topics())
    with piped():
        if as_json:
            click.echo(msgspec.json.encode({"topics": topics}))
            return
        click.echo(f"The log is intact: {counted(topics, 'topic')}.")


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
