"""Converts rows to records: as events of an app's topic, or unchanged. Broken rows are set aside.

A row is either appended completely, or it is written to the side file with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import click
import msgspec

from tailrace.cli.cells import event_of_cells, fields_of
from tailrace.cli.dropped import DroppedFields
from tailrace.cli.sources import Row, kept_line
from tailrace.core.declare.annotations import members_of
from tailrace.core.declare.event_time import seconds_taken_for_ms
from tailrace.core.declare.topic import Topic
from tailrace.core.durations import SECONDS_FIRST_MS, SECONDS_LAST_MS, to_datetime, to_ms
from tailrace.core.errors import BadRecordError, TailraceError
from tailrace.core.records import Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.event_values import not_finite
from tailrace.core.values.keys import KeyCodec, key_codec_for

_DATE = re.compile(r"((19|20|21)[0-9]{2}|2200)(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")
"""A date without dashes. Read as milliseconds it would be a time on the first day of 1970."""
_DATE_FIRST, _DATE_LAST = 1900_01_01, 2200_12_31

Producer = Callable[[Row, int], Output]
"""Makes the record of a row. The int is the current time in ms, for records without a time. Raises BadRecordError."""


def typed(
    topic: Topic[Any, Any], timestamp: str | None, notice: Callable[[str], None], dropped: DroppedFields
) -> Producer:
    """A producer for events of a topic: validated, encoded and keyed like in its app. Unknown fields are dropped.

    The timestamp of a record is the field ``timestamp``, else the event time, else the current time. ``notice`` is called with
    a message once for each dropped column of a table; ``dropped`` counts the dropped fields of JSON lines.
    """
    type_, settings = topic.type, topic.settings
    is_json = settings.format == "json"
    decode: Callable[[bytes], Any] = topic.decode if is_json else msgspec.json.Decoder[Any](type_).decode
    if timestamp is not None:
        _check_field(topic, timestamp)
    stamp = None if timestamp is None else attrgetter(timestamp)
    known = set(fields_of(type_))

    def event_of(row: Row) -> Any:
        content = row.content
        if isinstance(content, dict):
            for name in sorted(content.keys() - known):
                notice(_dropped(topic, name, known))
                known.add(name)
            return event_of_cells(content, type_)
        try:
            return decode(content or b"")
        except msgspec.MsgspecError as error:
            raise BadRecordError(str(error)) from None

    complete = topic.codec.complete

    def produce(row: Row, now_ms: int) -> Output:
        read = event_of(row)
        event = read if complete is None else complete(read)
        key = topic.encode_key(event)
        time_ms = None if topic.time_of is None else topic.time_of(event)
        if topic.time_of is not None and time_ms is None:
            raise BadRecordError("the event has no event time", reason="missing-time")
        if time_ms is not None and not settings.time_min_ms <= time_ms <= settings.time_max_ms:
            raise BadRecordError(
                f"the event time {time_ms} ms is outside of {settings.time_min_ms} to {settings.time_max_ms} ms",
                reason="bad-time",
            )
        if time_ms is not None and settings.refuse_seconds and SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS:
            what, hint = seconds_taken_for_ms(time_ms, settings.event_time)
            raise BadRecordError(f"{what}. {hint}", reason="bad-time")
        if time_ms is not None and settings.refuse_seconds and _is_date(time_ms):
            raise BadRecordError(
                f"the event time {time_ms} ms looks like a date. Event times are milliseconds since 1970. If it really is "
                "a time on the first day of 1970, give the topic a time_range that includes it",
                reason="bad-time",
            )
        if stamp is not None:
            time_ms = _time_of(stamp(event), str(timestamp))
        value = topic.encode(event)
        if isinstance(row.content, bytes):
            dropped.count(row.content, read)
        return Output(topic.name, key, value, now_ms if time_ms is None else time_ms)

    return produce


def raw(topic: str, keys: Sequence[str], timestamp: str | None) -> Producer:
    """A producer for unchanged rows: a JSON line byte for byte, cells as a JSON object. The key is one field or several."""

    def produce(row: Row, now_ms: int) -> Output:
        content = row.content
        cells: Any
        if isinstance(content, bytes):
            value = content
            try:
                content.decode()
                cells = msgspec.json.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadRecordError(str(error)) from None
        else:
            cells = content
            lost = not_finite(cells)
            if lost is not None:
                raise BadRecordError(
                    f"{lost[0]} is {lost[1]!r}, and JSON has no such number. Leave it empty, or append with --app"
                )
            try:
                value = msgspec.json.encode(cells)
            except (TypeError, ValueError) as error:
                raise BadRecordError(str(error)) from None
        key = _key_of(cells, keys)
        time_ms = now_ms if timestamp is None else _time_of(_at(cells, timestamp), timestamp)
        return Output(topic, key, value, time_ms)

    return produce


def produced(producer: Producer, row: Row, now_ms: int, most_bytes: int) -> Output:
    """Make the record of a row.

    Raises:
        BadRecordError: The row is broken; the message has the reason.
    """
    if row.content is None:
        raise BadRecordError(row.error)
    try:
        output = producer(row, now_ms)
    except TailraceError as error:
        raise BadRecordError(error.what) from error
    except Exception as error:  # a user's function for the key or the time may raise anything
        raise BadRecordError(f"{type(error).__name__}: {error}") from error
    size = len(output.value or b"") + len(output.key or b"")
    if size > most_bytes:
        raise BadRecordError(f"the record has {size} bytes, and the log takes {most_bytes}")
    return output


class SideFile:
    """The file for broken rows: JSON lines, each with the row's source, line, reason and text. ``json_rows`` can read it.

    It is opened for the first broken row. An existing file is appended to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.first: list[str] = []
        """Messages about the first three rows."""
        self.had_lines = False
        """Whether the file had lines already when it was opened."""
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def keep(self, source: str, row: Row, reason: str) -> None:
        """Write a row to the file.

        Raises:
            click.FileError: The side file cannot be written.
        """
        try:
            if self._file is None:
                self._file = self.path.open("ab")
                self.had_lines = self._file.tell() > 0
            self._file.write(kept_line(source, row, reason))
            self._file.flush()
        except OSError as error:
            why = f"broken lines cannot be kept: {error.strerror}; name a place for them with --rejects"
            raise click.FileError(str(self.path), why) from None
        self.count += 1
        if len(self.first) < 3:
            self.first.append(f"{source}, line {row.number}: {reason}")


def _at(cells: Any, path: str) -> Any:
    for part in path.split("."):
        if not isinstance(cells, dict):
            return None
        cells = cells.get(part)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # any JSON
    return cells  # pyright: ignore[reportUnknownVariableType]  # any JSON


def _check_field(topic: Topic[Any, Any], path: str) -> None:
    """Refuse a field that the events of a topic do not have, before every row fails because of it."""
    fields = {name for member in members_of(topic.type) for name in event_fields(member)}
    name = path.partition(".")[0]
    if name not in fields:
        raise click.BadParameter(
            f"the events of {topic.name!r} have no field {name!r}, but {', '.join(sorted(fields))}. "
            f"{did_you_mean(name, fields)}",
            param_hint="--timestamp",
        )


def _dropped(topic: Topic[Any, Any], name: str, known: set[str]) -> str:
    meant = did_you_mean(name, known)
    return (
        f"the column {name!r} is dropped: the events of {topic.name!r} have no such field. {meant}".rstrip()
    )


def _missing(cells: Any, path: str) -> str:
    """The message for a field that a row does not have."""
    names: list[str] = [*map(str, cells)] if isinstance(cells, dict) else []  # pyright: ignore[reportUnknownArgumentType]  # any JSON
    meant = "" if path in names or "." in path else did_you_mean(path, names)
    return f"missing. {meant}" if meant else "missing"


def _key_of(cells: Any, paths: Sequence[str]) -> bytes | None:
    if not paths:
        return None
    found = tuple(_at(cells, path) for path in paths)
    for path, value in zip(paths, found, strict=True):
        if type(value) not in (str, int):
            raise BadRecordError(
                f"the key {path!r} is {_missing(cells, path) if value is None else f'{value!r:.100}, neither text nor an integer'}",
                reason="missing-key" if value is None else "bad-key",
            )
    codec = _codec(*(str if isinstance(value, str) else int for value in found))
    return codec.encode(found[0] if len(found) == 1 else found)


@cache
def _codec(*types: Any) -> KeyCodec:
    declared: Any = tuple.__class_getitem__(types) if types[1:] else types[0]
    return key_codec_for(declared)


def _time_of(value: Any, path: str) -> int:
    """An instant in a row: integer milliseconds, an aware datetime, or either as text."""
    try:
        if isinstance(value, str):
            if _DATE.fullmatch(value):
                raise BadRecordError(
                    f"the timestamp {path!r} is {value!r}, which may be a date or a number of milliseconds. "
                    "Write a date and time in ISO 8601, with a zone"
                )
            value = int(value) if _is_number(value) else datetime.fromisoformat(value)
        time_ms = to_ms(value)
        to_datetime(time_ms)
    except BadRecordError:
        raise
    except (TailraceError, ValueError):
        raise BadRecordError(
            f"the timestamp {path!r} is {'missing' if value is None else f'{value!r:.100}, which is not a time'}",
            reason="missing-time" if value is None else "bad-time",
        ) from None
    if SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS and not isinstance(value, datetime):
        raise BadRecordError(
            f"the timestamp {path!r} is {value!r} ms, which looks like seconds since 1970. "
            "Timestamps are milliseconds, or ISO 8601",
            reason="bad-time",
        )
    return time_ms


def _is_date(time_ms: int) -> bool:
    return _DATE_FIRST <= time_ms <= _DATE_LAST and _DATE.fullmatch(str(time_ms)) is not None


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal() and text.isascii()
