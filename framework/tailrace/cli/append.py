"""``tailrace log append``: appends rows of files to a topic, some thousands in each commit."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from tailrace.cli import showing
from tailrace.cli.arguments import (
    any_log_option,
    json_option,
    opened_log,
    piped,
    refuse_own_topic,
    topic_of_app,
)
from tailrace.cli.commands import Command
from tailrace.cli.console import ReportProgress, progress
from tailrace.cli.row_files import FORMATS, STDIN, format_of, rows_of
from tailrace.cli.row_records import MakeRecord, raw, record_of, typed
from tailrace.core.counting import counted
from tailrace.core.errors import BadRecordError, SetAsideError
from tailrace.core.records import Output
from tailrace.log.interface import StoredLog

_ROWS_PER_COMMIT = 10_000
_BYTES_PER_COMMIT = 16 << 20


@click.command(cls=Command, short_help="Append rows of files to a topic.")
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--app", metavar="APP", help="The app that declares the topic: rows are its events, validated and keyed."
)
@click.option("--key", metavar="FIELD", help="Without --app: the field that is the key.")
@click.option("--timestamp", metavar="FIELD", help="The field with the record's timestamp: ms or ISO 8601.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="Format of the input (default: by the file's ending; standard input is JSON lines).",
)
@click.option(
    "--from-row",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Begin with this row of a file, which an error has named.",
)
@click.option("--skip-invalid", is_flag=True, help="Report invalid rows and append the others; exit with 3.")
@json_option
@any_log_option
def append(
    *,
    topic: str,
    files: tuple[str, ...],
    app: str | None,
    key: str | None,
    timestamp: str | None,
    format_: str | None,
    from_row: int,
    skip_invalid: bool,
    as_json: bool,
    folder: Path | str,
) -> None:
    """Append the rows of FILES, or of standard input, to TOPIC.

    JSON lines, CSV with a header, or Parquet. The first invalid row ends the command, with exit code 1. The
    rows before it are appended, and the error names its number: correct it, and continue with --from-row.
    """
    if app is not None and key is not None:
        raise click.UsageError("With --app the topic declares the key: leave --key out.")
    make = (
        raw(topic, key, timestamp)
        if app is None
        else typed(topic_of_app(app, topic), timestamp, lambda said: _say(f"tailrace: {said}"))
    )
    sources = files or (STDIN,)
    formats = [format_ or format_of(name) for name in sources]
    if app is None and set(formats) != {"jsonl"}:
        raise click.UsageError(
            "Without --app only JSON lines are read: name the app whose events the rows are."
        )
    if from_row > 1 and len(sources) > 1:
        raise click.UsageError("--from-row is for one file: append the files after it with another command.")
    with opened_log(folder) as log:
        log.partitions(topic)
        refuse_own_topic(log, topic, "keeps its own history in it and could not read what others write")
        with progress(shown=STDIN not in sources) as report:
            appending = _Appending(log, topic, make, report, skip_invalid=skip_invalid)
            try:
                for name, one in zip(sources, formats, strict=True):
                    appending.append(name, one, from_row)
            finally:
                with piped():
                    _report(topic, appending, as_json=as_json)
    if appending.invalid:
        raise SetAsideError(
            f"{counted(appending.invalid, 'invalid row')} not appended", hint="Correct and append them."
        )


class _Appending:
    """Appends rows to a log, some thousands in each commit."""

    def __init__(
        self, log: StoredLog, topic: str, make: MakeRecord, report: ReportProgress, *, skip_invalid: bool
    ) -> None:
        self.count = 0
        self.invalid = 0
        self._log = log
        self._topic = topic
        self._make = make
        self._report = report
        self._skip_invalid = skip_invalid
        self._batch: list[Output] = []

    def append(self, name: str, format_: str, from_row: int) -> None:
        """Append the rows of a file, from a row on.

        Raises:
            click.ClickException: The file cannot be read, or a row is invalid. All rows before it are
            appended.
        """
        try:
            self._append(name, format_, from_row)
        except click.ClickException:
            self._commit()
            raise
        self._commit()

    def _append(self, name: str, format_: str, from_row: int) -> None:
        most_bytes = self._log.options.max_record_bytes
        source = "standard input" if name == STDIN else name
        size, now_ms = 0, _now_ms()
        for row in rows_of(name, format_):
            if row.number < from_row:
                continue
            try:
                output = record_of(self._make, row, now_ms, most_bytes)
            except BadRecordError as error:
                said = (
                    f"{source}, {'line' if format_ in ('jsonl', 'csv') else 'row'} {row.number}: {error.what}"
                )
                if not self._skip_invalid:
                    raise click.ClickException(
                        f"{showing.printable(said)}. The rows before it are appended: correct "
                        f"it and continue with --from-row {row.number}, or leave invalid rows "
                        "out with --skip-invalid."
                    ) from None
                self.invalid += 1
                _say(said)
                continue
            self._batch.append(output)
            size += len(output.value or b"")
            if len(self._batch) >= _ROWS_PER_COMMIT or size >= _BYTES_PER_COMMIT:
                self._commit()
                size, now_ms = 0, _now_ms()

    def _commit(self) -> None:
        if self._batch:
            self._log.append_all(self._batch)
            self.count += len(self._batch)
            self._batch.clear()
            self._report(f"{self.count:,} records appended to {self._topic}", self.count, 0)


def _say(said: str) -> None:
    click.echo(showing.printable(said), err=True)


def _report(topic: str, appending: _Appending, *, as_json: bool) -> None:
    if as_json:
        said = {"topic": topic, "appended": appending.count, "invalid": appending.invalid}
        click.echo(msgspec.json.encode(said))
    else:
        click.echo(f"{counted(appending.count, 'record')} appended to {topic}.", err=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
