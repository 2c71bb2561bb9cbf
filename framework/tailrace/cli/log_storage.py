"""``tailrace log copy``: the files of an embedded log; and options for how long a topic is kept."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from tailrace.cli.arguments import json_option, log_option, opened, packed, piped
from tailrace.cli.commands import Command
from tailrace.cli.value_types import DurationType
from tailrace.core.counting import counted


class Retention(NamedTuple):
    """For how long the records of a topic are kept; None: without this limit."""

    retention: int | None
    retention_bytes: int | None

    @property
    def is_given(self) -> bool:
        """Whether there is a limit."""
        return self != (None, None)


retention_options = packed(
    "retention",
    Retention,
    click.option(
        "--retention", type=DurationType(), help="Delete records that are older, by their timestamps."
    ),
    click.option(
        "--retention-bytes",
        type=click.IntRange(1),
        help="Delete the oldest records of a partition that is larger.",
    ),
)


@click.command(cls=Command, short_help="Check the log, and copy it while it is used.")
@click.argument("target", type=click.Path(path_type=Path))
@json_option
@log_option
def copy(*, target: Path, as_json: bool, folder: Path) -> None:
    """Check the log, and copy it, as of one moment, to the folder TARGET, which must be empty or not exist.

    The log's file, each checksum, offsets, commits and watermarks are checked first: a damaged log is not copied.
    Services may keep running. Do not copy a log in use with cp or rsync: while a process commits, they copy
    files of different moments.
    """
    with opened(folder) as log:
        log.verify()
        done = log.copy_to(target)
    with piped():
        if as_json:
            click.echo(msgspec.json.encode({"folder": str(target), **asdict(done)}))
            return
        topics, size = counted(done.topics, "topic"), counted(done.bytes, "byte")
        click.echo(f"Copied to {target}: {topics}, as of commit {done.commits:,}, {size}.")
