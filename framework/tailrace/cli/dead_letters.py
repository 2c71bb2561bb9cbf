"""``tailrace dead-letters``: lists, shows and redrives records that an app could not handle."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli import showing
from tailrace.cli.arguments import any_log_option, app_argument, json_option, name_of, opened_log, piped
from tailrace.cli.commands import Commands
from tailrace.cli.console import say_hidden, show_table
from tailrace.core.counting import counted
from tailrace.core.errors import RecordError, UnknownAppError, UnknownTopicError
from tailrace.core.names import dead_letters_of
from tailrace.history.dead_letters import letters
from tailrace.history.dead_letters.letters import DeadLetter
from tailrace.history.dead_letters.outcomes import Outcome, letters_with_outcomes
from tailrace.log.interface import Log

_WIDEST = 60
_OF_TIMERS = "'tailrace rebuild --order canonical' fires them in their place."


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


@click.group(cls=Commands, short_help="Records that an app could not handle: list, show, redrive.")
def dead_letters() -> None:
    """Records that an app could not handle: list, show, redrive. APP is its name, or package.module:app."""


@dead_letters.command(name="list")
@app_argument
@reason_option
@click.option(
    "--pending",
    is_flag=True,
    help="Only dead letters that were neither redriven nor handled by a rebuild; those of timers always "
    "count.",
)
@json_option
@any_log_option
def list_(*, app: str, reasons: tuple[str, ...], pending: bool, as_json: bool, folder: Path | str) -> None:
    """List dead letters: ids, reasons, origins, and their outcomes."""
    name = name_of(app)
    with _opened(folder, name) as log, piped():
        found = [
            (letter, outcome)
            for letter, outcome in letters_with_outcomes(log, name, _wanted((), reasons, set()), say_hidden)
            if not (pending and outcome.state not in {"pending", "timer", "foreign"})
        ]
    with piped():
        if as_json:
            for letter, outcome in found:
                click.echo(msgspec.json.encode(_said(letter, outcome)))
            return
        rows: list[tuple[object, ...]] = [
            (
                letter.id,
                showing.instant(letter.record.timestamp_ms),
                letter.reason,
                _origin(letter),
                _cut(letter.error),
                _became(outcome),
            )
            for letter, outcome in found
        ]
        if rows:
            show_table(rows, ("id", "time", "reason", "from", "error", ""))
        counts = Counter(letter.reason for letter, _ in found)
        summed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()))
        click.echo(f"{counted(len(found), 'dead letter')}{f': {summed}' if summed else ''}.", err=True)
        if any(outcome.state == "timer" for _, outcome in found):
            click.echo(f"Timers have no record to redrive: {_OF_TIMERS}", err=True)


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
        there = letters.dead_letter(log, name, *place, say_hidden) is not None
        shown = letters_with_outcomes(log, name, lambda one: one.id == id_) if there else []
    if not shown:
        raise _missing(name, [id_])
    ((letter, outcome),) = shown
    with piped():
        if as_json:
            click.echo(msgspec.json.encode(_said(letter, outcome)))
            return
        record = showing.as_dict(letter.partition, letter.record)
        lines = {
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
            "redriven": _became(outcome, hint=True).removeprefix("redriven ") or "no",
        }
        for what, said in lines.items():
            if said:
                click.echo(f"{what + ':':<10}{showing.printable(said)}")
        if letter.traceback:
            click.echo("")
            for line in letter.traceback.rstrip().splitlines():
                click.echo(showing.printable(line))


@dead_letters.command(short_help="Append records to their topics again, each once.")
@app_argument
@id_option
@reason_option
@click.option("--all", "everything", is_flag=True, help="All dead letters that were not redriven yet.")
@click.option("--dry-run", is_flag=True, help="Show what would be redriven, without doing it.")
@json_option
@any_log_option
def redrive(
    *,
    app: str,
    ids: tuple[str, ...],
    reasons: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    as_json: bool,
    folder: Path | str,
) -> None:
    """Append the records of dead letters to their topics again, each once.

    Records that were redriven before are left out, so the command can be repeated. Each record has a header,
    tailrace-redriven, that names its dead letter.
    """
    if not (ids or reasons or everything) or (everything and (ids or reasons)):
        raise click.UsageError("Name the dead letters: --id, --reason, or --all.")
    name = name_of(app)
    seen: set[str] = set()
    with _opened(folder, name) as log:
        outcome = letters.redrive(
            log,
            name,
            _wanted(ids, reasons, seen),
            now_ms=time.time_ns() // 1_000_000,
            dry_run=dry_run,
            on_hidden=say_hidden,
        )
    if missing := sorted(set(ids) - seen):
        raise _missing(name, missing)
    with piped():
        _tell(outcome, dry_run=dry_run, as_json=as_json)


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


def _tell(outcome: letters.Redriven, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({**outcome._asdict(), "dry_run": dry_run}))
        return
    would = "would be" if dry_run else "were" if len(outcome.sent) != 1 else "was"
    timers = f"{_some(outcome.without_record)}. {_OF_TIMERS}"
    lines = [
        (outcome.sent, f"{would} redriven."),
        (outcome.before, "had been redriven before."),
        (outcome.rebuilt, "handled by a rebuild that the app was started from."),
        (outcome.foreign, f"written by another program: {_some(outcome.foreign)}. Find it and stop it."),
        (outcome.of_tables, f"came from tables, as old values: {_some(outcome.of_tables)}. Set them again."),
        (outcome.without_record, f"came from timers, which have no record to append again: {timers}"),
    ]
    for ids, said in lines:
        if ids or ids is outcome.sent:
            click.echo(f"{counted(len(ids), 'dead letter')} {said}")


def _some(ids: list[str]) -> str:
    return f"{', '.join(ids[:5])}{' ...' if len(ids) > 5 else ''}"


def _wanted(ids: tuple[str, ...], reasons: tuple[str, ...], seen: set[str]) -> Callable[[DeadLetter], bool]:
    chosen = set(ids)

    def wanted(letter: DeadLetter) -> bool:
        if letter.id in chosen:
            seen.add(letter.id)
        return (not chosen or letter.id in chosen) and (not reasons or letter.reason in reasons)

    return wanted


def _missing(app: str, ids: list[str]) -> RecordError:
    what = f"there is no dead letter {' and no '.join(ids)}"
    return RecordError(
        what, topic=dead_letters_of(app), hint=f"tailrace dead-letters list {app} shows their ids."
    )


def _was_redriven(outcome: Outcome) -> bool:
    return outcome.state not in {"pending", "timer", "rebuilt", "foreign"}


def _became(outcome: Outcome, *, hint: bool = False) -> str:
    """The outcome of a letter, for people; with ``hint``, also what to do if it cannot be redriven."""
    if outcome.state == "timer":
        return f"a timer has no record to redrive. {_OF_TIMERS}" if hint else "cannot be redriven: a timer"
    if outcome.state in {"pending", "foreign"}:
        return ""
    at = "before" if outcome.redriven_ms is None else showing.instant(outcome.redriven_ms)
    if outcome.state == "rebuilt":
        return f"handled by a rebuild: snapshot {outcome.snapshot}"
    then = {"failed": f"failed again: {outcome.failed_as}", "unread": "not read yet", "handled": "handled"}
    return ", ".join(one for one in (f"redriven {at}", then.get(outcome.state)) if one)


def _said(letter: DeadLetter, outcome: Outcome) -> dict[str, Any]:
    said: dict[str, Any] = {
        "id": letter.id,
        **letter._asdict(),
        "redriven": _was_redriven(outcome),
        "redriven_ms": outcome.redriven_ms,
        "outcome": outcome.state,
        "failed_as": outcome.failed_as,
        "snapshot": outcome.snapshot,
    }
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
