"""``tailrace faust``: imports tables of a Faust app as events, and hands its inputs over."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from tailrace.cli import showing
from tailrace.cli.append import Appending, notice
from tailrace.cli.arguments import any_log_option, app_argument, json_option, opened_log, tell, topic_of_app
from tailrace.cli.commands import Command, Commands
from tailrace.cli.rows import Row, record_of, typed
from tailrace.core.counting import counted
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import BadRecordError, DefinitionError, TailraceError, UsageError
from tailrace.core.records import Output
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.types import shortened
from tailrace.faust.changelog import FaustTable, TableLayout, TableRow
from tailrace.faust.handover import HandOver, check_not_begun, check_stopped, plan_hand_over
from tailrace.history.provenance.moves import check_lives_here
from tailrace.history.reading.handed_over import note_handed_over, noted
from tailrace.log.interface import StoredLog
from tailrace.processes.app_loading import find_app

_AGAIN = "Delete the topic, create it again (tailrace topics apply) and import again."
_PLACE = re.compile(r"faust://([^/]+)/([^/]+)")


@click.group(cls=Commands, short_help="Take over from Faust.")
def faust() -> None:
    """Take over from a Faust app: its tables as events, its committed offsets as the start of the inputs."""


@faust.command("import", cls=Command, short_help="Import a table, and hand the inputs over.")
@app_argument
@click.option(
    "--from",
    "table",
    required=True,
    metavar="faust://ID/TABLE",
    help="The id of the Faust app, and its table.",
)
@click.option(
    "--into", metavar="TOPIC", help="The topic of APP that takes the rows (default: named as the table)."
)
@click.option(
    "--key-codec",
    default="json",
    show_default=True,
    metavar="CODEC",
    help="Codec of the table's keys, as Faust names it.",
)
@click.option(
    "--value-codec", default="json", show_default=True, metavar="CODEC", help="Codec of the table's values."
)
@click.option(
    "--windowed/--not-windowed",
    default=None,
    help="Whether the table has windows (default: it has none, and keys that look like it are refused).",
)
@click.option(
    "--new-input",
    "new_inputs",
    multiple=True,
    metavar="TOPIC",
    help="An input that Faust has never read; may be repeated.",
)
@click.option(
    "--leave",
    multiple=True,
    metavar="TOPIC",
    help="A topic that Faust has not read to its end and that APP does not read: its records are handled by nobody; may be repeated.",
)
@json_option
@any_log_option
def import_(
    *,
    app: str,
    table: str,
    into: str | None,
    key_codec: str,
    value_codec: str,
    windowed: bool | None,
    new_inputs: tuple[str, ...],
    leave: tuple[str, ...],
    as_json: bool,
    folder: Path | str,
) -> None:
    """Import a table of a stopped Faust app as events of APP, one for each key, before APP runs for the first time.

    Other inputs of APP that the Faust app has read begin at the offsets that it has committed. Create the topics
    first (`tailrace topics apply`). If the command is stopped, delete the topic of the rows, create it and import again.
    """
    if (found := _PLACE.fullmatch(table)) is None:
        raise click.UsageError(f"{table!r} is no table: write faust://APP_ID/TABLE.")
    id_, name = found.groups()
    target = topic_of_app(app, into or name)
    layout = TableLayout(key_codec, value_codec, windowed)
    with opened_log(folder) as log:
        log.partitions(target.name)
        plan = find_app(app).plan()
        check_lives_here(log, plan.app)
        check_stopped(log, id_)
        check_not_begun(log, plan, id_)
        if any(log.end_offset(target.name, number) for number in range(log.partitions(target.name))):
            # The rows of an import that was stopped would be there twice.
            raise UsageError(
                f"the topic {target.name!r} has records: the rows are imported into an empty topic",
                hint=_AGAIN,
            )
        importing = Import(log, FaustTable(log, id_, name, layout), target)
        hand_over = plan_hand_over(log, plan, id_, new_inputs, {target.name, *noted(log)}, leave)
        importing.read(hand_over)
        inputs = [one.name for one in plan.inputs]
        note_handed_over(log, target.name, hand_over.positions, inputs, time.time_ns() // 1_000_000)
        importing.check(log.options.max_record_bytes)
        appending = Appending(log, target.name, importing.make)
        try:
            appending.append(table, "row", importing.rows())
        finally:
            _report(target.name, appending, hand_over, as_json=as_json)


class Import:
    """The rows of a table, as rows to append: a dict with the fields that the events of a topic have.

    Raises DefinitionError: The events have no such fields, or another event time.
    """

    def __init__(self, log: StoredLog, table: FaustTable, topic: Topic[Any, Any]) -> None:
        self._log, self._table = log, table
        self._fields = _checked_fields(topic, is_windowed=table.layout.is_windowed is True)
        self._is_json = table.layout[:2] == ("json", "json")
        self._make = typed(topic, None, notice)
        self._now = TableRow(0, 0, 0, None)
        """The row that is being appended."""
        self._at_ms = 0

    def read(self, hand_over: HandOver) -> None:
        """Find what the table has, and give all rows their event time."""
        self._table.read(is_shared_allowed="partition" in self._fields)
        before_ms = hand_over.before_ms
        self._at_ms = self._table.newest_ms if before_ms is None else before_ms

    def check(self, most_bytes: int) -> None:
        """Raise ClickException if a row is invalid, before any is appended."""
        now_ms = time.time_ns() // 1_000_000
        for row in self.rows():
            try:
                record_of(self.make, row, now_ms, most_bytes)
            except BadRecordError as error:
                place = f"faust://{self._table.app}/{self._table.name}, row {row.number}"
                raise click.ClickException(
                    f"{showing.printable(f'{place}: {error.what}')}. Nothing is imported: correct the options or the type of the events."
                ) from None

    def make(self, row: Row, now_ms: int) -> Output:
        """The record of a row; see ``MakeRecord``. The error of an invalid row names its place in the changelog."""
        one = self._now
        try:
            if one.error:
                raise BadRecordError(one.error)
            return self._make(row, now_ms)
        except (TailraceError, msgspec.MsgspecError) as error:
            why = error.what if isinstance(error, TailraceError) else str(error)
            place = f"changelog partition {one.partition}, offset {one.offset}, key {shortened(one.key)}"
            raise BadRecordError(f"{why} ({place})") from error

    def rows(self) -> Iterator[Row]:
        """The rows of the table."""
        encode = msgspec.json.Encoder().encode
        for number, one in enumerate(self._table.rows(), 1):
            self._now = one
            found = {name: getattr(one, name, self._at_ms) for name in self._fields}
            yield Row(number, b"" if one.error else encode(found) if self._is_json else found)
        check_stopped(self._log, self._table.app)


_KNOWN = {"key", "value", "at_ms", "partition", "changed_ms", "start_ms", "end_ms"}


def _checked_fields(topic: Topic[Any, Any], *, is_windowed: bool) -> set[str]:
    """The fields of the rows that the events have."""
    fields = {one.encode_name for one in event_fields(topic.type).values()}
    needed = ["key", "value", "at_ms", *(["start_ms", "end_ms"] if is_windowed else [])]
    fix = "Declare at least key: tr.Key[…], value: …, at_ms: tr.EventTime[int]; for windows also start_ms and end_ms. See docs/faust.md."
    if missing := [one for one in needed if one not in fields]:
        raise DefinitionError(
            f"the events of {topic.name!r} have no field {missing[0]!r}, which rows of the table have",
            hint=fix,
        )
    if topic.settings.event_time != "at_ms":
        raise DefinitionError(f"the event time of {topic.name!r} is not the field 'at_ms'", hint=fix)
    if topic.settings.watermark == "none":
        raise DefinitionError(
            f"{topic.name!r} is declared with watermark=False, so that events could be handled before the rows",
            hint="Leave it out. Let the input be idle soon instead: idle_after='1s'.",
        )
    return fields & _KNOWN


def _report(topic: str, appending: Appending, hand_over: HandOver, *, as_json: bool) -> None:
    begins: dict[str, dict[int, int]] = {}
    for place, offset in sorted(hand_over.positions.items()):
        begins.setdefault(place.topic, {})[place.partition] = offset
    tell(
        {"topic": topic, "appended": appending.count, "begins": begins, "left": hand_over.left},
        (),
        as_json=as_json,
    )
    if as_json:
        return
    click.echo(f"{counted(appending.count, 'row')} appended to {topic}.", err=True)
    for name, offsets in begins.items():
        where = ", ".join(f"{offset} in partition {number}" for number, offset in offsets.items())
        click.echo(f"{name} begins where Faust has stopped: at offset {where}.", err=True)
    for name, number in sorted(hand_over.left.items()):
        click.echo(f"{counted(number, 'record')} of {name} will be handled by nobody.", err=True)
