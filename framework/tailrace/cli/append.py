"""``tailrace log append``: appends rows of files to a topic, some thousands in each commit."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from tailrace.cli import showing
from tailrace.cli.append_notes import FileNotes, Source
from tailrace.cli.arguments import (
    any_log_option,
    json_option,
    name_of,
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
from tailrace.history.reading.residence import check_lives_here
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
    help="Begin with this row of a file, which an error has named (default: after the rows that were appended "
    "before).",
)
@click.option("--again", is_flag=True, help="Append the files again, also rows that were appended before.")
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
    from_row: int | None,
    again: bool,
    skip_invalid: bool,
    as_json: bool,
    folder: Path | str,
) -> None:
    """Append the rows of FILES, or of standard input, to TOPIC.

    JSON lines, CSV with a header, or Parquet. The first invalid row ends the command, with exit code 1. The
    rows before it are appended, and the error names its number: correct it, and continue with --from-row.

    The log notes how far each file was appended. If the command is repeated, it appends only the rows after that.
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
    if from_row is not None and len(sources) > 1:
        raise click.UsageError("--from-row is for one file: append the files after it with another command.")
    with opened_log(folder) as log:
        log.partitions(topic)
        if app is not None:
            check_lives_here(log, name_of(app))
        refuse_own_topic(log, topic, "keeps its own history in it and could not read what others write")
        with progress(shown=STDIN not in sources) as report:
            appending = Appending(log, topic, make, report, skip_invalid=skip_invalid)
            try:
                for name, one in zip(sources, formats, strict=True):
                    appending.append(_source(name, one), from_row, again=again)
            finally:
                with piped():
                    _report(topic, appending, as_json=as_json)
    if appending.invalid:
        raise SetAsideError(
            f"{counted(appending.invalid, 'invalid row')} not appended", hint="Correct and append them."
        )


def _source(name: str, format_: str) -> Source:
    return Source(
        "standard input" if name == STDIN else name,
        "" if name == STDIN else str(Path(name).resolve()),
        lambda: rows_of(name, format_),
        "line" if format_ in ("jsonl", "csv") else "row",
        "correct it and continue with --from-row {row}, or leave invalid rows out with --skip-invalid.",
        "Give the row to begin with (--from-row), or append all rows again with --again.",
        "--again appends them again.",
    )


class Appending:
    """Appends rows to a log, some thousands in each commit."""

    def __init__(
        self, log: StoredLog, topic: str, make: MakeRecord, report: ReportProgress, *, skip_invalid: bool
    ) -> None:
        self.count = 0
        self.before = 0
        """The number of rows that were appended before."""
        self.invalid = 0
        self._log = log
        self._topic = topic
        self._make = make
        self._report = report
        self._skip_invalid = skip_invalid
        self._batch: list[Output] = []
        self._notes: FileNotes | None = None
        """Those of the current source; None if it has none."""

    def append(self, source: Source, from_row: int | None = None, *, again: bool = False) -> None:
        """Append the rows of a source, from a row on.

        Raises:
            click.ClickException: The source cannot be read, or a row is invalid. All rows before it are
            appended.
        """
        with ExitStack() as stack:
            self._notes, before = None, 0
            if source.identity:
                self._notes = notes = FileNotes(self._log, self._topic, source)
                stack.callback(notes.close)
                before = 0 if again else notes.appended(from_row)
            if before:
                said = f"{source.name}: the rows up to {before:,} were appended before. {source.again}"
                _say(said.rstrip())
            try:
                self._append(source, before, from_row or 1)
            except click.ClickException:
                self._commit(is_end=False)
                raise
            self._commit(is_end=True)

    def _append(self, source: Source, before: int, from_row: int) -> None:
        most_bytes = self._log.options.max_record_bytes
        size, now_ms, row = 0, _now_ms(), None
        for row in source.rows():
            if row.number >= from_row and row.number > before:
                try:
                    output = record_of(self._make, row, now_ms, most_bytes)
                except BadRecordError as error:
                    self._refuse(
                        source, f"{source.name}, {source.unit} {row.number}: {error.what}", row.number
                    )
                else:
                    self._batch.append(output)
                    size += len(output.value or b"")
            else:
                self.before += row.number <= before
            if self._notes is not None:
                self._notes.add(row)
            if len(self._batch) >= _ROWS_PER_COMMIT or size >= _BYTES_PER_COMMIT:
                self._commit(is_end=False)
                size, now_ms = 0, _now_ms()
        if row is None:
            _say(f"{source.name} has no rows, so nothing of it was checked.")

    def _refuse(self, source: Source, reason: str, number: int) -> None:
        if not self._skip_invalid:
            advice = source.if_invalid.format(row=number)
            raise click.ClickException(
                f"{showing.printable(reason)}. The rows before it are appended: {advice}"
            )
        self.invalid += 1
        _say(reason)

    def _commit(self, *, is_end: bool) -> None:
        if self._notes is not None:
            self._notes.commit(self._batch, _now_ms(), is_end=is_end)
        elif self._batch:
            self._log.append_all(self._batch)
        if self._batch:
            self.count += len(self._batch)
            self._batch.clear()
            self._report(f"{self.count:,} records appended to {self._topic}", self.count, 0)


def _say(said: str) -> None:
    click.echo(showing.printable(said), err=True)


def _report(topic: str, appending: Appending, *, as_json: bool) -> None:
    if as_json:
        said = {
            "topic": topic,
            "appended": appending.count,
            "before": appending.before,
            "invalid": appending.invalid,
        }
        click.echo(msgspec.json.encode(said))
    else:
        click.echo(f"{counted(appending.count, 'record')} appended to {topic}.", err=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
