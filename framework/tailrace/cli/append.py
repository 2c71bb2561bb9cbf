"""``tailrace log append``: appends rows of files to a topic, some thousands in each commit."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

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
from tailrace.cli.dropped import DroppedFields
from tailrace.cli.misspelt import Choice
from tailrace.cli.producing import Producer, SideFile, produced, raw, typed
from tailrace.cli.sources import FORMATS, Rows, format_of, is_known
from tailrace.core.errors import BadRecordError, SetAsideError
from tailrace.core.records import Output
from tailrace.log.interface import StoredLog

_ROWS_PER_COMMIT = 10_000
_BYTES_PER_COMMIT = 16 << 20
_STDIN = "-"
_REJECTED = re.compile(r"(.*\.rejected)(?:-(\d+))?\.jsonl")
"""A file of broken lines by its name."""


class _InputFile(click.Path):
    """A file to read, or ``-``. The error for a missing one finds a topic and a file in the wrong order."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.Path``."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            topic = "" if ctx is None else str(ctx.params.get("topic", ""))
            if topic and Path(topic).is_file():
                error.message += f" The topic comes first: did you mean {value} {topic}?"
            raise


@click.command(cls=Command, short_help="Append rows of files to a topic.")
@click.argument("topic")
@click.argument("files", nargs=-1, type=_InputFile(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--app",
    metavar="APP",
    help="The app that declares the topic: rows are its events, validated and keyed.",
)
@click.option(
    "--key", "keys", metavar="FIELD", multiple=True, help="Without --app: the field, or fields, of the key."
)
@click.option("--timestamp", metavar="FIELD", help="The field with the record's timestamp: ms or ISO 8601.")
@click.option(
    "--format",
    "format_",
    type=Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="Format of the input; auto: by the file's suffix, else JSON lines.",
)
@click.option(
    "--rejects",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for broken lines (default: <name>.rejected.jsonl beside the input).",
)
@click.option("--strict", is_flag=True, help="Stop at the first broken line.")
@click.option(
    "--allow-rejects",
    is_flag=True,
    help="Exit with 0 instead of 3 if some lines are broken; with 1 if all are.",
)
@json_option
@any_log_option
def append(
    *,
    topic: str,
    files: tuple[str, ...],
    app: str | None,
    keys: tuple[str, ...],
    timestamp: str | None,
    format_: str,
    rejects: Path | None,
    strict: bool,
    allow_rejects: bool,
    as_json: bool,
    folder: Path | str,
) -> None:
    """Append the rows of FILES, or of standard input, to TOPIC.

    JSON lines, CSV with a header, or Parquet. Broken lines are counted, reported and written to a file; the others are appended. The
    exit code is 3 if some lines are broken, 1 if all are. Correct the texts in that file, and append it like any other.
    """
    if app is not None and keys:
        raise click.UsageError("With --app the topic declares the key: leave --key out.")
    if rejects is not None and any(Path(name).resolve() == rejects.resolve() for name in files):
        raise click.BadParameter(f"{str(rejects)!r} is one of the files to read", param_hint="--rejects")
    dropped = DroppedFields()
    producer = (
        raw(topic, keys, timestamp)
        if app is None
        else typed(topic_of_app(app, topic), timestamp, _notice, dropped)
    )
    kept: dict[Path, SideFile] = {}
    with opened_log(folder) as log, ExitStack() as closing:
        log.partitions(topic)
        refuse_own_topic(log, topic, "keeps its own history in it and could not read what others write")
        appending = _Appending(log, producer, strict=strict)
        try:
            for name in files or (_STDIN,):
                path = rejects or _rejects_of(name, topic)
                side = kept.get(path) or closing.enter_context(SideFile(path))
                kept[path] = side
                if name == _STDIN and sys.stdin.isatty():
                    click.echo("Reading from the terminal, until Ctrl-D.", err=True)
                if format_ == "auto" and name != _STDIN and not is_known(name):
                    _notice(
                        f"{name} is read as JSON lines, as its suffix names no format; --format names another"
                    )
                with click.open_file(name, "rb") as file:
                    rows = FORMATS[format_of(name) if format_ == "auto" else format_]
                    appending.append(rows, file, "standard input" if name == _STDIN else name, side)
        finally:
            sides = [side for side in kept.values() if side.count]
            for said in dropped.said():
                _notice(said)
            with piped():
                _report(topic, appending.count, sides, as_json=as_json)
    if not sides:
        return
    if strict:
        raise click.ClickException("Stopped at the first broken line (--strict).")
    _judge(appending.count, sides, allow_rejects=allow_rejects)


class _Appending:
    """Appends rows to a log, some thousands in each commit."""

    def __init__(self, log: StoredLog, producer: Producer, *, strict: bool) -> None:
        self.count = 0
        self._log = log
        self._producer = producer
        self._strict = strict

    def append(self, read: Rows, file: IO[bytes], source: str, side: SideFile) -> None:
        """Append the valid rows and write the broken ones to a file; with ``strict`` stop at the first broken row."""
        most_bytes = self._log.options.max_record_bytes
        batch: list[Output] = []
        size, now_ms = 0, _now_ms()
        for row in read(file):
            try:
                output = produced(self._producer, row, now_ms, most_bytes)
            except BadRecordError as error:
                side.keep(source, row, error.what)
                if self._strict:
                    break
                continue
            batch.append(output)
            size += len(output.value or b"")
            if len(batch) >= _ROWS_PER_COMMIT or size >= _BYTES_PER_COMMIT:
                self._commit(batch)
                size, now_ms = 0, _now_ms()
        self._commit(batch)

    def _commit(self, batch: list[Output]) -> None:
        if batch:
            self._log.append_all(batch)
            self.count += len(batch)
            batch.clear()


def _notice(said: str) -> None:
    click.echo(f"tailrace: {showing.printable(said)}", err=True)


def _report(topic: str, appended: int, kept: list[SideFile], *, as_json: bool) -> None:
    broken = sum(side.count for side in kept)
    if as_json:
        said = {
            "topic": topic,
            "appended": appended,
            "broken": broken,
            "kept": [str(side.path) for side in kept],
        }
        click.echo(msgspec.json.encode(said))
        return
    click.echo(f"{appended:,} {'record' if appended == 1 else 'records'} appended to {topic}.", err=True)
    for side in kept:
        lines = "1 broken line is" if side.count == 1 else f"{side.count:,} broken lines are"
        where = f"{side.path}, after those of earlier runs" if side.had_lines else f"{side.path}"
        click.echo(f"{lines} written to {where}:", err=True)
        for one in side.first:
            click.echo(f"  {showing.printable(one)}", err=True)
        if side.count > len(side.first):
            click.echo(f"  and {side.count - len(side.first):,} more", err=True)


def _judge(appended: int, sides: list[SideFile], *, allow_rejects: bool) -> None:
    """Set the exit code if lines are broken.

    Raises:
        click.ClickException: All lines are broken.
        SetAsideError: Some lines are broken, and ``allow_rejects`` is not set.
    """
    broken = sum(side.count for side in sides)
    first = showing.printable(sides[0].first[0])
    if not appended:
        which = "the only line is broken" if broken == 1 else f"all {broken:,} lines are broken, the first"
        raise click.ClickException(f"nothing was appended: {which}: {first}")
    if not allow_rejects:
        raise SetAsideError(
            f"{broken:,} of {appended + broken:,} lines not appended, the first: {first}",
            hint=f"Correct each 'text' in {', '.join(str(side.path) for side in sides)} and append that file; "
            "with --allow-rejects the exit code is 0.",
        )


def _rejects_of(name: str, topic: str) -> Path:
    """The default file for broken lines. Those of a file of broken lines go to another one, with the next number."""
    if found := _REJECTED.fullmatch(name):
        return Path(f"{found[1]}-{int(found[2] or 1) + 1}.jsonl")
    return Path(f"{topic}.rejected.jsonl" if name == _STDIN else f"{name}.rejected.jsonl")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
