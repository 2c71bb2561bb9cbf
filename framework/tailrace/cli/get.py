"""``tailrace get``: shows the committed state or value of one key, or the result of a query on it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from urllib.parse import quote

import click
import msgspec
from msgspec import UNSET

from tailrace.cli.arguments import any_log_option, app_argument, json_option, opened_log, tell
from tailrace.cli.commands import Command
from tailrace.cli.showing import instant, printable
from tailrace.processes.app_loading import find_app
from tailrace.serve.answers import Answer, Questions
from tailrace.serve.from_log import answer_from_log


@click.command(cls=Command, short_help="Show the committed state of one key.")
@app_argument
@click.argument("of", metavar="ACTOR|TABLE")
@click.argument("key", metavar="KEY")
@click.argument("name", metavar="[FIELD|QUERY]", default="")
@click.argument("given", metavar="[ARGUMENT=VALUE]...", nargs=-1)
@click.option("--percent-encoded", is_flag=True, help="KEY is percent-encoded: for bytes that are no text.")
@json_option
@any_log_option
def get(
    *,
    app: str,
    of: str,
    key: str,
    name: str,
    given: tuple[str, ...],
    percent_encoded: bool,
    as_json: bool,
    folder: Path | str,
) -> None:
    """Show what is committed for a key of an actor of APP: the whole instance, one FIELD, or the result of a QUERY.
    Of a table: the value, or one FIELD of it.

    It reads the changelog or table in the partition that the key belongs to. The app may be running or not. For many
    questions use `tailrace serve`, which answers at once.
    """
    questions = Questions(find_app(app).plan())
    arguments: dict[str, list[str]] = defaultdict(list)
    for one in given:
        argument, sign, value = one.partition("=")
        if not sign:
            raise click.UsageError(f"{one!r} is no argument of a query: write NAME=VALUE.")
        arguments[argument].append(value)
    question = questions.question(
        of, key if percent_encoded else quote(key, errors="surrogateescape"), name, arguments
    )
    with opened_log(folder) as log:
        answer = answer_from_log(questions.plan, log, question)
    tell(answer, _lines(answer), as_json=as_json)


def _lines(answer: Answer) -> list[str]:
    of = answer.actor or answer.table
    time, at_ms = ("set at", answer.timestamp_ms) if answer.table else ("watermark", answer.watermark_ms)
    lines = [
        f"{of} {_text(answer.key)}: partition {answer.partition}, offset {answer.offset}, {time} {instant(None if at_ms is UNSET else at_ms)}"
    ]
    if answer.value is not UNSET or answer.result is not UNSET:
        lines.append(_text(answer.result if answer.value is UNSET else answer.value))
    for name, value in (answer.fields or {}).items():
        lines.append(f"  {name}: {_text(value)}")
    lines += [
        f"  {one.domain} timer{f' {one.name}' if one.name else ''}: {instant(one.at_ms)}"
        + ("" if one.payload is UNSET else f", {_text(one.payload)}")
        for one in answer.timers or ()
    ]
    if answer.cut_short:
        lines.append(f"not shown: further entries of {', '.join(answer.cut_short)} (limit=N shows more)")
    return lines


def _text(value: object) -> str:
    return printable(msgspec.json.encode(value).decode())
