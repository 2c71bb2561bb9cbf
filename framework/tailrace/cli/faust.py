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
from tailrace.cli.append import Appending
from tailrace.cli.append_notes import Source
from tailrace.cli.arguments import any_log_option, app_argument, json_option, opened_log, piped, topic_of_app
from tailrace.cli.commands import Command, Commands
from tailrace.cli.console import progress
from tailrace.cli.row_files import Row
from tailrace.cli.row_records import check_cell, noticed_once, typed
from tailrace.core.counting import counted
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import BadRecordError, DefinitionError, TailraceError
from tailrace.core.records import Output
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.types import shortened
from tailrace.faust.changelog import FaustTable, TableLayout, TableRow
from tailrace.faust.handover import HandOver, check_not_begun, check_stopped, plan_hand_over
from tailrace.history.reading.handed_over import FAUST, imported, note_handed_over
from tailrace.history.reading.residence import check_lives_here
from tailrace.log.interface import StoredLog
from tailrace.processes.app_loading import find_app

_PLACE = re.compile(rf"{FAUST}([^/]+)/([^/]+)")


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
    as_json: bool,
    folder: Path | str,
) -> None:
    """Import a table of a stopped Faust app as events of APP, one for each key, before APP runs for the first time.

    Other inputs of APP that the Faust app has read begin at the offsets that it has committed. If the command is
    stopped, run it again: it continues. Create the topics first (`tailrace topics apply`).
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
        importing = Import(log, FaustTable(log, id_, name, layout), target)
        hand_over = plan_hand_over(log, plan, id_, new_inputs, {target.name, *imported(log)})
        importing.read(hand_over)
        inputs = [one.name for one in plan.inputs]
        note_handed_over(log, target.name, hand_over.positions, inputs, time.time_ns() // 1_000_000)
        with progress() as report:
            appending = Appending(log, target.name, importing.make, report, skip_invalid=False)
            try:
                appending.append(importing.source)
            finally:
                with piped():
                    _report(target.name, appending, hand_over, as_json=as_json)


class Import:
    """The rows of a table, as rows to append: a dict with the fields that the events of a topic have.

    Raises DefinitionError: The events have no such fields, or another event time.
    """

    def __init__(self, log: StoredLog, table: FaustTable, topic: Topic[Any, Any]) -> None:
        self._log, self._table, self._topic = log, table, topic
        self._fields = _checked_fields(topic, is_windowed=table.layout.is_windowed is True)
        """In an order that is the same in every process: a digest of the rows is noted."""
        self._is_json = table.layout[:2] == ("json", "json")
        self._make = typed(topic, None, _notice)
        self._unknown = noticed_once(topic.name, _notice)
        self._now = TableRow(0, 0, 0, None)
        """The row that is being appended."""
        self._at_ms = 0
        name = f"{FAUST}{table.app}/{table.name}"
        self.source = Source(
            name,
            f"{name} {log.identity.hex()}",
            self._rows,
            "row",
            "correct the options or the type of the events, and run the command again: it continues.",
            f"Delete the topic {topic.name!r}, create it again and import again.",
        )

    def read(self, hand_over: HandOver) -> None:
        """Find what the table has, and give all rows their event time."""
        self._table.read(is_shared_allowed="partition" in self._fields)
        before_ms = hand_over.before_ms
        self._at_ms = self._table.newest_ms if before_ms is None else before_ms

    def make(self, row: Row, now_ms: int) -> Output:
        """The record of a row; see ``MakeRecord``. The error of an invalid row names its place in the changelog."""
        one, value = self._now, self._now.value
        try:
            if one.error:
                raise BadRecordError(one.error)
            output = self._make(row, now_ms)
            if self._is_json and isinstance(value, (dict, list)):
                check_cell({"value": value}, self._topic.decode(output.value or b""), "", self._unknown)
        except (TailraceError, msgspec.MsgspecError) as error:
            why = error.what if isinstance(error, TailraceError) else str(error)
            place = f"changelog partition {one.partition}, offset {one.offset}, key {shortened(one.key)}"
            raise BadRecordError(f"{why} ({place})") from error
        return output

    def _rows(self) -> Iterator[Row]:
        encode = msgspec.json.Encoder().encode
        for number, one in enumerate(self._table.rows(), 1):
            self._now = one
            found = {name: getattr(one, name, self._at_ms) for name in self._fields}
            yield Row(number, b"" if one.error else encode(found) if self._is_json else found)
        check_stopped(self._log, self._table.app)


def _notice(said: str) -> None:
    click.echo(showing.printable(f"tailrace: {said}"), err=True)


_KNOWN = {"key", "value", "at_ms", "partition", "changed_ms", "start_ms", "end_ms"}


def _checked_fields(topic: Topic[Any, Any], *, is_windowed: bool) -> list[str]:
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
    return sorted(fields & _KNOWN)


def _report(topic: str, appending: Appending, hand_over: HandOver, *, as_json: bool) -> None:
    begins: dict[str, dict[int, int]] = {}
    for place, offset in sorted(hand_over.positions.items()):
        begins.setdefault(place.topic, {})[place.partition] = offset
    if as_json:
        said = {"topic": topic, "appended": appending.count, "before": appending.before, "begins": begins}
        click.echo(msgspec.json.encode(said))
        return
    click.echo(f"{counted(appending.count, 'row')} appended to {topic}.", err=True)
    for name, offsets in begins.items():
        where = ", ".join(f"{offset} in partition {number}" for number, offset in offsets.items())
        click.echo(f"{name} begins where Faust has stopped: at offset {where}.", err=True)
