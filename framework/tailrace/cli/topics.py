"""``tailrace topics``: compares the topics that apps need with those of a log; creates, corrects, deletes.

``plan`` ends with exit code 4 if something is to do, so that a script can tell this from a failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tailrace.cli.arguments import (
    KAFKA_ONLY,
    any_log_option,
    json_option,
    name_of,
    new_topics_options,
    opened_log,
    piped,
    plans_of,
    tell_each,
)
from tailrace.cli.commands import Commands
from tailrace.cli.console import Part, table, wrapped
from tailrace.cli.showing import json_line, kept
from tailrace.core.counting import counted
from tailrace.history.reading.generations import located
from tailrace.history.topics.topic_deletion import Deletion, delete_topics, plan_deletion
from tailrace.history.topics.topic_plan import PlannedTopic, apply_topics, in_short, plan_topics
from tailrace.log.options import LogOptions, NewTopics
from tailrace.runtime.first_positions import note_first_positions

TO_DO = 4
"""Exit code: topics are missing, or differ from what the apps need."""

apps_option = click.option(
    "--app", "apps", metavar="APP", multiple=True, required=True, help="An app; may be repeated."
)


@click.group(cls=Commands, short_help="Topics that apps need: plan, apply, delete.")
def topics() -> None:
    """The topics that apps need: compare them with those of the log, create and correct them, delete them."""


@topics.command(short_help="Compare the topics that apps need with those of the log.")
@apps_option
@new_topics_options
@json_option
@any_log_option
def plan(*, apps: tuple[str, ...], new_topics: NewTopics, as_json: bool, folder: Path | str) -> int:
    """Show the topics that apps need: which exist, which are missing, and which differ. Nothing is changed.

    The exit code is 0 if all is right, and 4 if something is to do or differs.
    """
    with opened_log(folder, options=LogOptions(new_topics=new_topics)) as log, piped():
        found = plan_topics(plans_of(apps), log)
        tell_each(found, _lines(found), as_json=as_json)
    return _code(found)


@topics.command(short_help="Create the topics that are missing, and correct those that differ.")
@apps_option
@new_topics_options
@click.option(
    "--change-cleanup",
    is_flag=True,
    help="Also change whether a topic with data is compacted. What was deleted or compacted before does not "
    "come back.",
)
@json_option
@any_log_option
def apply(
    *, apps: tuple[str, ...], new_topics: NewTopics, change_cleanup: bool, as_json: bool, folder: Path | str
) -> int:
    """Create missing topics. In internal topics, change the settings that `plan` lists and that lose nothing.

    Partitions, replicas and the topics that apps declare are never changed. The exit code is 4 if something
    remains that differs.
    """
    plans = plans_of(apps)
    with opened_log(folder, create=True, options=LogOptions(new_topics=new_topics)) as log, piped():
        found = plan_topics(plans, log, change_cleanup=change_cleanup)
        apply_topics(found, log)
        for one in found:
            _report(one)
        left = plan_topics(plans, log)
        tell_each(left, _lines(left), as_json=as_json)
        if all(one.is_right for one in left):
            for each in plans:
                note_first_positions(located(each, log), log, told=False)
    return _code(left)


@topics.command(short_help="Delete the internal topics of apps, and their offsets.")
@apps_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@any_log_option
def delete(*, apps: tuple[str, ...], yes: bool, as_json: bool, folder: Path | str) -> None:
    """Delete the internal topics of apps (their state and history), and the offsets of their groups.

    APP is package.module:app or, if its code no longer exists, its name. Topics that an app declares are
    kept. An app with a live process is refused. The app is retired first, so that readers of its outputs do
    not wait for it.
    """
    with opened_log(folder) as log, piped():
        if log.admin.deletion_refused:
            raise click.UsageError(f"`topics delete` {KAFKA_ONLY}: {log.admin.deletion_refused}.")
        found = [plan_deletion(log, name_of(one)) for one in apps]
        if not as_json:
            for one in found:
                _show_deletion(one)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("Nothing is deleted without --yes, as nobody can be asked here.")
            click.confirm("Delete them? They do not come back", abort=True, err=True)
        for one in found:
            delete_topics(log, one)
            if as_json:
                click.echo(json_line(one))
            else:
                click.echo(f"deleted {one.app!r}: {counted(len(one.topics), 'topic')}", err=True)


def _code(found: Sequence[PlannedTopic]) -> int:
    return 0 if all(one.is_right for one in found) else TO_DO


def _lines(found: Sequence[PlannedTopic]) -> Iterator[Part]:
    header, *lines = table(
        [_cells(one) for one in found], ("topic", "role", "partitions", "replicas", "min in sync", "kept", "")
    )
    yield header, "bold"
    for one, line in zip(found, lines, strict=True):
        yield line
        for finding in one.findings:
            fix = "`apply` changes it" if finding.is_safe else finding.fix
            yield from wrapped(f"{finding.level}: {finding}{f'; {fix}' if fix else ''}")
    yield in_short(found)


def _cells(one: PlannedTopic) -> tuple[object, ...]:
    roles = list(dict.fromkeys(one.roles.values()))
    what = {"none": "ok", "create": "missing", "change": "differs", "refuse": "differs"}[one.action]
    if one.action == "none" and not one.is_right:
        what = "differs"
    return (
        one.topic,
        ", ".join(roles),
        one.partitions,
        "-" if one.replicas is None else one.replicas,
        "-" if one.min_insync is None else one.min_insync,
        kept(one.compacted, one.retention_ms, one.retention_bytes),
        what,
    )


def _report(one: PlannedTopic) -> None:
    """Name on standard error what ``apply`` has done with a topic."""
    if one.action == "create":
        click.echo(f"created {one.topic}, {counted(one.partitions, 'partition')}", err=True)
    for found in one.findings:
        if found.is_safe:
            click.echo(f"changed {one.topic}: {found.setting} from {found.found} to {found.wanted}", err=True)


def _show_deletion(one: Deletion) -> None:
    click.echo(f"{one.app}:")
    for topic in one.topics:
        click.echo(f"  topic {topic}, {counted(one.records[topic], 'offset')}")
    for group in one.groups:
        click.echo(f"  offsets of the group {group}")
    for publisher in one.publishers:
        click.echo(f"  watermarks of {publisher}: readers no longer wait for it")
