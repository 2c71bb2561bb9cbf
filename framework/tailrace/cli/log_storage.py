"""``tailrace log retain``, ``clean``, ``verify``, ``copy``: retention, and the files of an embedded log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from tailrace.cli.arguments import json_option, log_option, opened, packed, piped, refuse_own_topic
from tailrace.cli.commands import Command
from tailrace.cli.value_types import DurationType
from tailrace.core.counting import counted
from tailrace.core.errors import LogUnavailableError


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


@click.command(cls=Command, short_help="Change for how long a topic's records are kept.")
@click.argument("topic")
@retention_options
@click.option("--forever", is_flag=True, help="Keep all records from now on.")
@log_option
def retain(*, topic: str, retention: Retention, forever: bool, folder: Path) -> None:
    """Change for how long the records of TOPIC are kept. A limit that is not given is removed.

    Services may keep running. The next cleaning deletes the records past the limit. A replay, a rebuild or a
    new service can then only start at the oldest record that is left.
    """
    if forever == retention.is_given:
        raise click.UsageError("Give --retention, --retention-bytes or both; or only `--forever`.")
    with opened(folder) as log:
        refuse_own_topic(log, topic, "cannot be restored or replayed without it")
        log.set_retention(topic, retention_ms=retention.retention, retention_bytes=retention.retention_bytes)


@click.command(cls=Command, short_help="Delete expired records now.")
@json_option
@log_option
def clean(*, as_json: bool, folder: Path) -> None:
    """Delete records past their retention, and all but the last record of each key in compacted topics.

    Services clean the log regularly. This command does it now, however little it frees. The bytes are those
    of the records; the files are larger.
    """
    with opened(folder) as log:
        done = log.clean()
    if done.busy:
        raise LogUnavailableError(
            "the log is being cleaned by another process, or read by one that must not miss anything",
            hint="Wait for that process to finish.",
        )
    with piped():
        if as_json:
            said = {"bytes_before": done.bytes_before, "bytes_after": done.bytes_after}
            click.echo(msgspec.json.encode(said))
            return
        click.echo(f"Records: {done.bytes_before:,} bytes before, {done.bytes_after:,} after.")


@click.command(cls=Command, short_help="Read the whole log and check it.")
@json_option
@log_option
def verify(*, as_json: bool, folder: Path) -> None:
    """Check the log's file, each checksum, and that offsets, commits and watermarks fit together.

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
    """Copy the log, as of one moment, to the folder TARGET, which must be empty or not exist.

    Services may keep running. Do not copy a log in use with cp or rsync: while a process commits, they copy
    files of different moments.
    """
    with opened(folder) as log:
        done = log.copy_to(target)
    with piped():
        if as_json:
            click.echo(msgspec.json.encode({"folder": str(target), **asdict(done)}))
            return
        topics, size = counted(done.topics, "topic"), counted(done.bytes, "byte")
        click.echo(f"Copied to {target}: {topics}, as of commit {done.commits:,}, {size}.")
