"""``tailrace log append``: appends rows of files to a topic, some thousands in each commit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import click

from tailrace.cli import showing
from tailrace.cli.arguments import (
    any_log_option,
    json_option,
    name_of,
    opened_log,
    plans_of,
    refuse_own_topic,
    tell,
    topic_of_app,
)
from tailrace.cli.commands import Command
from tailrace.cli.rows import FORMATS, STDIN, MakeRecord, Row, format_of, raw, record_of, rows_of, typed
from tailrace.core.counting import counted
from tailrace.core.errors import BadRecordError, SetAsideError
from tailrace.core.records import Output
from tailrace.history.provenance.moves import check_lives_here
from tailrace.log.interface import StoredLog

_ROWS_PER_COMMIT = 10_000
_BYTES_PER_COMMIT = 16 << 20
_ROWS_PER_NOTICE = 1_000_000


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
    help="Begin with this row of a file, which a message has named.",
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

    JSON lines, CSV with a header, Parquet or ORC. The first invalid row ends the command, with exit code 1. The
    rows before it are appended, and the error names its number: correct it, and continue with --from-row.

    A command that is repeated appends all rows again. The last line that it writes names the rows that are appended.
    """
    if app is not None and key is not None:
        raise click.UsageError("With --app the topic declares the key: leave --key out.")
    make = raw(topic, key, timestamp) if app is None else typed(topic_of_app(app, topic), timestamp, notice)
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
        if app is not None:
            check_lives_here(log, name_of(app))
            plans_of([app])[0].refuse_own_table(topic_of_app(app, topic))
        refuse_own_topic(log, topic, "keeps its own history in it and could not read what others write")
        appending = Appending(log, topic, make, skip_invalid=skip_invalid)
        try:
            for name, one in zip(sources, formats, strict=True):
                source = "standard input" if name == STDIN else name
                unit = "line" if one in ("jsonl", "csv") else "row"
                appending.append(source, unit, rows_of(name, one), from_row)
        finally:
            tell(
                {"topic": topic, "appended": appending.count, "invalid": appending.invalid},
                (),
                as_json=as_json,
            )
            if not as_json:
                _say(f"{counted(appending.count, 'record')} appended to {topic}.")
    if appending.invalid:
        raise SetAsideError(
            f"{counted(appending.invalid, 'invalid row')} not appended", hint="Correct and append them."
        )


class Appending:
    """Appends rows to a log, some thousands in each commit.

    After each million rows, a line on standard error names the last one that is appended.
    """

    def __init__(self, log: StoredLog, topic: str, make: MakeRecord, *, skip_invalid: bool = False) -> None:
        self.count = 0
        self.invalid = 0
        self._log = log
        self._topic = topic
        self._make = make
        self._skip_invalid = skip_invalid
        self._batch: list[Output] = []

    def append(self, source: str, unit: str, rows: Iterable[Row], from_row: int = 1) -> None:
        """Append the rows of a source, from a row on. ``unit``: what a row is called.
        Raises click.ClickException: the source cannot be read, or a row is invalid. All rows before it are appended.
        """
        most_bytes = self._log.options.max_record_bytes
        size, now_ms, row, named = 0, _now_ms(), None, self.count
        try:
            for row in rows:
                if row.number < from_row:
                    continue
                if len(self._batch) >= _ROWS_PER_COMMIT or size >= _BYTES_PER_COMMIT:
                    self._commit()
                    if self.count - named >= _ROWS_PER_NOTICE:
                        where = f"up to {unit} {row.number - 1:,} of {source}"
                        _say(f"{counted(self.count, 'record')} appended to {self._topic}, {where}")
                        named = self.count
                    size, now_ms = 0, _now_ms()
                try:
                    output = record_of(self._make, row, now_ms, most_bytes)
                except BadRecordError as error:
                    self._refuse(f"{source}, {unit} {row.number}: {error.what}", row.number)
                else:
                    self._batch.append(output)
                    size += len(output.value or b"")
        except click.ClickException:
            self._commit()
            raise
        self._commit()
        if row is None:
            _say(f"{source} has no rows, so nothing of it was checked.")

    def _refuse(self, reason: str, number: int) -> None:
        if not self._skip_invalid:
            raise click.ClickException(
                f"{showing.printable(reason)}. The rows before it are appended: correct it and continue with "
                f"--from-row {number}, or leave invalid rows out with --skip-invalid."
            )
        self.invalid += 1
        _say(reason)

    def _commit(self) -> None:
        if self._batch:
            self._log.append_all(self._batch)
            self.count += len(self._batch)
            self._batch.clear()


def notice(said: str) -> None:
    """Write a message about the rows to standard error."""
    _say(f"tailrace: {said}")


def _say(said: str) -> None:
    click.echo(showing.printable(said), err=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
