"""``tailrace log``: creates and lists topics, appends to them from files, and shows their records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from heapq import nlargest
from pathlib import Path
from typing import Any

import click

from tailrace.cli import showing
from tailrace.cli.append import append
from tailrace.cli.arguments import (
    any_log_option,
    check_is_read,
    json_option,
    log_option,
    new_topics_options,
    opened_log,
    partitions_option,
    piped,
    tell,
    tell_each,
    topic_of_app,
)
from tailrace.cli.commands import Commands
from tailrace.cli.console import say_hidden, styled_table
from tailrace.cli.value_types import DurationType, TopicPosition, TopicPositionType
from tailrace.core.counting import counted
from tailrace.core.declare.topic_declaration import legal_name
from tailrace.core.errors import DefinitionError
from tailrace.core.records import InputRecord
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, TopicPartition, TopicSettings
from tailrace.log.opening import FolderLog
from tailrace.log.options import LogOptions, NewTopics

_AT_ONCE = 1_000

app_option = click.option(
    "--app", metavar="APP", help="Read keys and values as this app's topic declares them."
)


@click.group(cls=Commands, short_help="Topics of an event log, and their records.")
def log() -> None:
    """Topics of an event log: create, list, append, tail, dump; and a copy of the log.

    Copy a log that is in use with `tailrace log copy`, not with cp: it would copy files of different moments.
    """


log.add_command(append)


@log.command(short_help="Create a topic.")
@click.argument("topic")
@click.option(
    "--partitions", type=click.IntRange(1, 10_000), default=4, show_default=True, help="Number of partitions."
)
@click.option("--compacted", is_flag=True, help="Keep the last record of each key only.")
@click.option("--retention", type=DurationType(), help="Delete records that are older, by their timestamps.")
@click.option(
    "--retention-bytes",
    type=click.IntRange(1),
    help="Delete the oldest records of a partition that is larger.",
)
@new_topics_options
@any_log_option
def create(
    *,
    topic: str,
    partitions: int,
    compacted: bool,
    retention: int | None,
    retention_bytes: int | None,
    new_topics: NewTopics,
    folder: Path | str,
) -> None:
    """Create TOPIC; and the log, if it does not exist. `tailrace topics apply` creates the topics of an app.

    A topic that exists with the same settings is not changed.
    """
    if compacted and (retention, retention_bytes) != (None, None):
        raise click.UsageError(
            "A compacted topic keeps the last record of each key: leave --compacted or the retention out."
        )
    try:
        legal_name(topic, "a topic")
    except DefinitionError as error:
        raise click.BadParameter(str(error), param_hint="TOPIC") from None
    with opened_log(folder, create=True, options=LogOptions(new_topics=new_topics)) as log:
        is_new = topic not in log.topics()
        log.create_topic(topic, TopicSettings(partitions, compacted, retention, retention_bytes))
    said = f"created {topic}, {counted(partitions, 'partition')}" if is_new else f"{topic} exists already"
    click.echo(said, err=True)


@log.command(name="list", short_help="List the topics, and how long they are kept.")
@json_option
@any_log_option
def list_(*, as_json: bool, folder: Path | str) -> None:
    """List the topics, with their partitions and offsets."""
    with opened_log(folder) as log:
        found = [_described(log, name, settings) for name, settings in sorted(log.topics().items())]
    rows = [
        (
            one["topic"],
            one["partitions"],
            one["offsets"],
            showing.kept(one["compacted"], one["retention_ms"], one["retention_bytes"]),
        )
        for one in found
    ]
    tell_each(found, styled_table(rows, ("topic", "partitions", "offsets", "kept")), as_json=as_json)


@log.command(short_help="Show the last records, and new ones as they arrive.")
@click.argument("topic")
@click.option(
    "-n",
    "--records",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Number of past records to show first.",
)
@partitions_option
@click.option("--no-follow", is_flag=True, help="Do not wait for more.")
@app_option
@json_option
@any_log_option
def tail(
    *,
    topic: str,
    records: int,
    partitions: tuple[int, ...],
    no_follow: bool,
    app: str | None,
    as_json: bool,
    folder: Path | str,
) -> None:
    """Show the last records of TOPIC, and new ones as they arrive, until Ctrl-C."""
    declared = None if app is None else topic_of_app(app, topic)
    show = showing.as_json if as_json else showing.as_text
    with opened_log(folder) as log, piped():
        numbers = _numbers(log, topic, partitions)
        ends = {number: log.end_offset(topic, number) for number in numbers}
        for number, record in _last(log, topic, ends, records):
            click.echo(show(number, record, declared))
        if not no_follow:
            _follow(log, topic, ends, lambda number, record: click.echo(show(number, record, declared)))


@log.command(short_help="Write what is in a topic, as JSON lines.")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=TopicPositionType(),
    default=TopicPosition(),
    help="Begin at this offset, or at this time.",
)
@click.option(
    "--until",
    "stop",
    type=TopicPositionType(),
    default=TopicPosition(),
    help="Stop before this offset, or before this time.",
)
@partitions_option
@app_option
@any_log_option
def dump(
    *,
    topic: str,
    start: TopicPosition,
    stop: TopicPosition,
    partitions: tuple[int, ...],
    app: str | None,
    folder: Path | str,
) -> None:
    """Write the records in TOPIC now, with offsets, timestamps, keys and headers, partition after partition.

    A time selects records by their timestamps, whatever their order in the log.
    """
    declared = None if app is None else topic_of_app(app, topic)
    with opened_log(folder) as log:
        numbers = _numbers(log, topic, partitions)
        with piped():
            is_empty = True
            for number, record in _between(log, topic, numbers, start, stop):
                is_empty = False
                sys.stdout.buffer.write(showing.as_json(number, record, declared) + b"\n")
        if is_empty and (start, stop) != (TopicPosition(), TopicPosition()):
            held = ", ".join(
                f"{number} from {log.start_offset(topic, number):,} up to {log.end_offset(topic, number):,}"
                for number in numbers
            )
            click.echo(f"{topic!r} has no record there; its offsets by partition: {held}", err=True)


@log.command(short_help="Check the log, and copy it while it is used.")
@click.argument("target", type=click.Path(path_type=Path))
@json_option
@log_option
def copy(*, target: Path, as_json: bool, folder: Path) -> None:
    """Check the log, and copy it, as of one moment, to the folder TARGET, which must be empty or not exist.

    SQLite checks the log's file first, and each block of records is read: a damaged log is not copied.
    Services may keep running. Do not copy a log in use with cp or rsync: while a process commits, they copy
    files of different moments.
    """
    with closing(FolderLog(folder, create=False)) as log:
        log.verify()
        commits = log.copy_to(target)
    said = {"folder": str(target), "commits": commits}
    tell(said, [f"Copied to {target}, as of commit {commits:,}."], as_json=as_json)


def _numbers(log: Log, topic: str, partitions: tuple[int, ...]) -> Iterable[int]:
    count = log.partitions(topic)
    for number in partitions:
        if number >= count:
            raise click.BadParameter(
                f"{topic!r} has {count} partitions, 0 to {count - 1}.", param_hint="--partition"
            )
    return sorted(set(partitions)) or range(count)


def _between(
    log: Log, topic: str, numbers: Iterable[int], start: TopicPosition, stop: TopicPosition
) -> Iterator[tuple[int, InputRecord]]:
    for number in numbers:
        first = start.offset
        if start.time_ms is not None:
            first = log.offset_at(topic, number, start.time_ms)
        for record in scan(log, topic, number, first, stop.offset, on_hidden=say_hidden):
            if start.time_ms is not None and record.timestamp_ms < start.time_ms:
                continue
            if stop.time_ms is not None and record.timestamp_ms >= stop.time_ms:
                continue
            yield number, record


def _last(log: Log, topic: str, ends: dict[int, int], count: int) -> list[tuple[int, InputRecord]]:
    """The last records of some partitions together, by timestamp; fewer in a compacted topic."""
    found = [
        (number, record)
        for number, end in ends.items()
        for record in scan(log, topic, number, max(0, end - count), end)
    ]

    def place(one: tuple[int, InputRecord]) -> tuple[int, int, int]:
        return one[1].timestamp_ms, one[0], one[1].offset

    return sorted(nlargest(count, found, key=place), key=place)


def _follow(
    log: Log, topic: str, positions: dict[int, int], show: Callable[[int, InputRecord], None]
) -> None:
    places = {TopicPartition(topic, number): offset for number, offset in positions.items()}
    with closing(log.reader(places)) as reader:
        while True:
            for number in positions:
                while records := reader.fetch(topic, number, _AT_ONCE).records:
                    for record in records:
                        show(number, record)
            check_is_read()
            reader.wait(1.0)


def _described(log: Log, name: str, settings: TopicSettings) -> dict[str, Any]:
    starts = [log.start_offset(name, number) for number in range(settings.partitions)]
    ends = [log.end_offset(name, number) for number in range(settings.partitions)]
    return {
        "topic": name,
        "partitions": settings.partitions,
        "offsets": sum(ends) - sum(starts),
        "starts": starts,
        "ends": ends,
        "compacted": settings.compacted,
        "retention_ms": settings.retention_ms,
        "retention_bytes": settings.retention_bytes,
    }
