"""``tailrace dead-letters``: lists, shows, redrives and drops records that an app could not handle."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tailrace.cli import showing
from tailrace.cli.arguments import (
    any_log_option,
    app_argument,
    json_option,
    name_of,
    opened_log,
    piped,
    tell,
    tell_each,
)
from tailrace.cli.commands import Commands
from tailrace.cli.console import say_hidden, styled_table
from tailrace.core.counting import counted
from tailrace.core.errors import FencedError, TailraceError, UnknownAppError, UnknownTopicError
from tailrace.core.names import dead_letters_of
from tailrace.history.dead_letters import letters
from tailrace.history.dead_letters.letters import DeadLetter
from tailrace.history.dead_letters.redriving import Closed, How, close_letters, closed_letters
from tailrace.log.interface import Log

_WIDEST = 60
_OF_TIMERS = "Set the state right, and drop them."


class _IdType(click.ParamType):
    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the format of the id, and return it unchanged."""
        if letters.parse_id(str(value)) is None:
            self.fail(f"{value!r} is not the id of a dead letter, such as 2-17.", param, ctx)
        return str(value)


reason_option = click.option(
    "--reason",
    "reasons",
    type=click.Choice(letters.REASONS),
    multiple=True,
    help="Only dead letters with this reason; may be repeated.",
)

id_option = click.option(
    "--id", "ids", multiple=True, type=_IdType(), help="Only this dead letter; may be repeated."
)


@click.group(cls=Commands, short_help="Records that an app could not handle: list, show, redrive, drop.")
def dead_letters() -> None:
    """Records that an app could not handle: list, show, redrive, drop. APP is its name, or package.module:app."""


@dead_letters.command(name="list", short_help="List the dead letters that are open.")
@app_argument
@reason_option
@click.option("--all", "everything", is_flag=True, help="Also dead letters that were redriven or dropped.")
@json_option
@any_log_option
def list_(*, app: str, reasons: tuple[str, ...], everything: bool, as_json: bool, folder: Path | str) -> None:
    """List the open dead letters, which were neither redriven nor dropped: ids, reasons, origins, errors."""
    name = name_of(app)
    with _opened(folder, name) as log, piped():
        closed = closed_letters(log, name, say_hidden)
        wanted = _wanted((), reasons, set())
        found = [
            one
            for one in letters.dead_letters(log, name, say_hidden)
            if wanted(one) and (everything or one.id not in closed)
        ]
    rows = [
        (
            letter.id,
            showing.instant(letter.record.timestamp_ms),
            letter.reason,
            _origin(letter),
            _cut(letter.error),
            *([_closed(letter, closed)] if everything else []),
        )
        for letter in found
    ]
    header = ("id", "time", "reason", "from", "error", *([""] if everything else []))
    lines = styled_table(rows, header) if rows else ()
    tell_each((_said(letter, closed) for letter in found), lines, as_json=as_json)
    if not as_json:
        counts = Counter(letter.reason for letter in found)
        summed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
        what = counted(len(found), "dead letter" if everything else "open dead letter")
        click.echo(f"{what}{f': {summed}' if summed else ''}.", err=True)


@dead_letters.command(short_help="Show the record, the error and the traceback.")
@app_argument
@click.argument("id_", metavar="ID", type=_IdType())
@json_option
@any_log_option
def show(*, app: str, id_: str, as_json: bool, folder: Path | str) -> None:
    """Show one dead letter: the record, the error and the traceback."""
    name = name_of(app)
    place = letters.parse_id(id_)
    assert place is not None
    with _opened(folder, name) as log:
        letter = letters.dead_letter(log, name, *place, say_hidden)
        closed = closed_letters(log, name)
    if letter is None:
        raise _missing(name, [id_])
    record = showing.as_dict(letter.partition, letter.record)
    parts = {
        "id": letter.id,
        "reason": letter.reason,
        "error": letter.error,
        "from": _origin(letter),
        "handler": letter.handler,
        "timer": letter.timer,
        "time": showing.instant(letter.record.timestamp_ms),
        "key": letter.key or showing.cell(record, "key"),
        "value": showing.cell(record, "value"),
        "headers": showing.cell(record, "headers"),
        "closed": _closed(letter, closed) or "no",
    }
    lines = [f"{what + ':':<10}{showing.printable(said)}" for what, said in parts.items() if said]
    if letter.traceback:
        lines += ["", *map(showing.printable, letter.traceback.rstrip().splitlines())]
    tell(_said(letter, closed), lines, as_json=as_json)


everything_option = click.option("--all", "everything", is_flag=True, help="All open dead letters.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that closes dead letters: which ones, and how."""
    for option in (any_log_option, json_option, dry_run_option, everything_option, reason_option, id_option):
        command = option(command)
    return app_argument(command)


@dead_letters.command(short_help="Handle records again, each once.")
@_choosing
def redrive(**chosen: Any) -> None:
    """Append the records of open dead letters to the inbox of the app, each once: it handles them again, and no other app does.

    Letters that were redriven or dropped before are left out, so the command can be repeated.
    """
    _close("redriven", **chosen)


@dead_letters.command(short_help="Close dead letters without handling their records.")
@_choosing
def drop(**chosen: Any) -> None:
    """Close open dead letters without handling their records: 'list' and 'redrive' leave them out from then on."""
    _close("dropped", **chosen)


def _close(
    how: How,
    *,
    app: str,
    ids: tuple[str, ...],
    reasons: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    as_json: bool,
    folder: Path | str,
) -> None:
    if everything and (ids or reasons):
        raise click.UsageError("--all goes with neither --id nor --reason.")
    if not (ids or reasons or everything):
        raise click.UsageError("Name the dead letters: --id, --reason, or --all.")
    name, seen = name_of(app), set[str]()
    wanted, now_ms = _wanted(ids, reasons, seen), time.time_ns() // 1_000_000
    with _opened(folder, name) as log:
        try:
            outcome = close_letters(
                log, name, how, wanted, now_ms=now_ms, dry_run=dry_run, on_hidden=say_hidden
            )
        except FencedError as error:
            raise FencedError(
                f"another command redrives or drops dead letters of {name!r} at the same time",
                hint="Run this command again when that one has ended.",
            ) from error
    if missing := sorted(set(ids) - seen):
        raise _missing(name, missing)
    said = {**outcome._asdict(), "dry_run": dry_run}
    tell(said, _lines(outcome, how, dry_run=dry_run), as_json=as_json)


@contextmanager
def _opened(folder: Path | str, app: str) -> Generator[Log]:
    """The log. If it has no dead letters of the app, the app is unknown there."""
    with opened_log(folder) as log:
        try:
            yield log
        except UnknownTopicError as error:
            if error.topic != dead_letters_of(app):
                raise
            raise UnknownAppError(error.what, hint=error.hint) from None


def _lines(outcome: Closed, how: How, *, dry_run: bool) -> Iterator[str]:
    were = "would be" if dry_run else "were" if len(outcome.done) != 1 else "was"
    timers = f"{_some(outcome.without_record)}. {_OF_TIMERS}"
    lines = [
        (outcome.done, f"{were} {how}."),
        (outcome.before, "had been redriven or dropped before."),
        (outcome.foreign, f"written by another program: {_some(outcome.foreign)}. Find it and stop it."),
        (outcome.of_tables, f"came from tables, as old values: {_some(outcome.of_tables)}. Set them again."),
        (
            outcome.cut,
            f"have only the beginning of a record that was too large: {_some(outcome.cut)}. Its producer has to send it again.",
        ),
        (outcome.without_record, f"came from timers, which have no record to handle again: {timers}"),
    ]
    for ids, said in lines:
        if ids or ids is outcome.done:
            yield f"{counted(len(ids), 'dead letter')} {said}"


def _some(ids: list[str]) -> str:
    return f"{', '.join(ids[:5])}{' ...' if len(ids) > 5 else ''}"


def _wanted(ids: tuple[str, ...], reasons: tuple[str, ...], seen: set[str]) -> Callable[[DeadLetter], bool]:
    chosen = set(ids)

    def wanted(letter: DeadLetter) -> bool:
        if letter.id in chosen:
            seen.add(letter.id)
        return (not chosen or letter.id in chosen) and (not reasons or letter.reason in reasons)

    return wanted


def _missing(app: str, ids: list[str]) -> TailraceError:
    what = f"there is no dead letter {' and no '.join(ids)}"
    return TailraceError(
        what, topic=dead_letters_of(app), hint=f"tailrace dead-letters list {app} shows their ids."
    )


def _closed(letter: DeadLetter, closed: Mapping[str, tuple[How, int]]) -> str:
    how, at_ms = closed.get(letter.id, ("", 0))
    return f"{how} {showing.instant(at_ms)}" if how else ""


def _said(letter: DeadLetter, closed: Mapping[str, tuple[How, int]]) -> dict[str, Any]:
    how, at_ms = closed.get(letter.id, (None, None))
    said: dict[str, Any] = {"id": letter.id, **letter._asdict(), "closed": how, "closed_ms": at_ms}
    said["record"] = showing.as_dict(letter.partition, letter.record)
    return said


def _origin(letter: DeadLetter) -> str:
    if letter.reason == letters.FOREIGN:
        return "another program"
    if letter.topic is None:
        return f"timer of {letter.actor}"
    return f"{letter.topic} {letter.origin_partition}/{letter.origin_offset}"


def _cut(text: str) -> str:
    line = showing.printable(text.partition("\n")[0])
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"
