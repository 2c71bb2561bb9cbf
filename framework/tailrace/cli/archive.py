"""``tailrace archive``: copies a log's topics to Parquet files, which have no retention limit."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.arguments import any_log_option, json_option, opened_log, outside_of_log, tell
from tailrace.cli.commands import Command
from tailrace.cli.console import progress
from tailrace.cli.settings import setting
from tailrace.core.counting import counted
from tailrace.core.errors import OtherHistoryError
from tailrace.core.names import apps_in
from tailrace.history.provenance.topics import check_history
from tailrace.log import Log
from tailrace.log.archive import Archive, ArchiveStatus, archive_log


@click.command(cls=Command, short_help="Archive a log's topics as Parquet files.")
@any_log_option
@setting(
    "--to",
    "uri",
    setting="archive",
    required=True,
    metavar="URI",
    help="The archive, new or existing: a folder, file://…, s3://bucket/prefix.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; may be repeated. An app can be replayed from an archive of all topics only.",
)
@json_option
def archive(*, folder: Path | str, uri: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Archive what the log holds and the archive does not: a file for each topic, partition and day.

    The service may run meanwhile. An interrupted archive resumes with the same command.
    """
    outside_of_log(uri, folder, "--to")
    found = Archive.at(uri)
    with opened_log(folder) as log, progress() as report_progress:
        for app in () if topics else apps_in(log.topics()):
            _check(app, log)
        report = archive_log(
            log, found, topics=topics or None, on_progress=lambda status: report_progress(*_progress(status))
        )
    records, chunks = counted(report.records, "record"), counted(report.chunks, "chunk")
    tell(report, [f"archived {records} of {counted(report.topics, 'topic')} in {chunks}"], as_json=as_json)


def _check(app: str, log: Log) -> None:
    """Refuse to archive the history of an app that no longer fits together."""
    try:
        check_history(app, log)
    except OtherHistoryError as error:
        error.hint = (
            "An archive of it could not be replayed. Restore the old topic from a copy. To archive other "
            "topics, name them (--topic); to "
            f"leave {app!r} out for good, delete its own topics: tailrace topics delete --app {app}."
        )
        raise


def _progress(status: ArchiveStatus) -> tuple[str, int, int]:
    said = (
        f"{status.topic} partition {status.partition}: offset {status.offset:,} of {status.end:,}, "
        f"{status.records:,} records"
    )
    return said, status.offset, status.end
