"""Makes records of rows: events of an app's topic, or JSON lines as they are.

msgspec converts cells to the declared types: text of CSV leniently (``"12"`` is an int), values of Parquet
strictly. It would convert these cells to something that the row does not say; here they are invalid:

=============================  =============================================================
a cell                         would become
=============================  =============================================================
``20130101`` for a datetime    21 August 1970, as seconds; so would a number of milliseconds
``5`` for a timedelta          5 seconds
``7.0``, ``1e3`` for an int    an int that can differ, as in ``3.0000000000000000001``
``2**53 + 1`` for a float      another number, from a column of integers or decimals
=============================  =============================================================
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

from tailrace.cli.row_files import Row
from tailrace.core.declare.event_time import seconds_taken_for_ms
from tailrace.core.declare.topic import Topic
from tailrace.core.durations import SECONDS_FIRST_MS, SECONDS_LAST_MS, to_datetime, to_ms
from tailrace.core.errors import BadRecordError, TailraceError
from tailrace.core.records import Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import event_fields, kind_of
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.types import shortened, spell

_NUMBER = re.compile(r"\s*[+-]?[0-9]*\.?[0-9]+\.?([eE][+-]?[0-9]+)?\s*")
_INTEGER = re.compile(r"[+-]?[0-9]+")

MakeRecord = Callable[[Row, int], Output]
"""Makes the record of a row. The int is the current time in ms, for records without a time."""
Notice = Callable[[str], None]


def typed(topic: Topic[Any, Any], timestamp: str | None, notice: Notice) -> MakeRecord:
    """Rows become events of a topic: validated, encoded and keyed as in its app.

    The timestamp of a record is the field ``timestamp``, else the event time, else the current time.
    ``notice`` is called once for each field that rows have and events do not.
    """
    stamp = None if timestamp is None else attrgetter(timestamp)
    decode = topic.decode if topic.settings.format == "json" else msgspec.json.Decoder[Any](topic.type).decode
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    unknown = noticed_once(topic.name, notice)

    def read(row: Row) -> Any:
        if isinstance(row.content, dict):
            return _converted(topic.type, row.content, unknown, strict=not row.is_text)
        event = decode(row.content)
        known = names_in(event)
        if known and not known.issuperset(names := fields(row.content).keys()):
            for name in sorted(names - known):
                unknown(name, known)
        return event

    def make(row: Row, now_ms: int) -> Output:
        event = read(row)
        key = topic.encode_key(event)
        time_ms = _event_time(topic, event)
        if stamp is not None:
            time_ms = _instant(stamp(event), str(timestamp))
        return Output(topic.name, key, topic.encode(event), now_ms if time_ms is None else time_ms)

    return make


def raw(topic: str, key: str | None, timestamp: str | None) -> MakeRecord:
    """JSON lines stay as they are, byte for byte. ``key`` and ``timestamp`` are fields."""
    wanted: Any = dict[str, Any] if key or timestamp else Any

    def make(row: Row, now_ms: int) -> Output:
        line: Any = row.content
        line.decode()
        fields = msgspec.json.decode(line, type=wanted)
        time_ms = now_ms if timestamp is None else _instant(fields.get(timestamp), timestamp)
        return Output(topic, None if key is None else _key(fields.get(key), key), line, time_ms)

    return make


def record_of(make: MakeRecord, row: Row, now_ms: int, most_bytes: int) -> Output:
    """Make the record of a row.

    Raises:
        BadRecordError: The row is invalid; the message has the reason.
    """
    if row.error:
        raise BadRecordError(row.error)
    try:
        output = make(row, now_ms)
    except TailraceError as error:
        raise BadRecordError(error.what) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRecordError(str(error)) from None
    except Exception as error:  # a user's function for the key or the time may raise anything
        raise BadRecordError(f"{type(error).__name__}: {error}") from error
    size = len(output.value or b"") + len(output.key or b"")
    if size > most_bytes:
        raise BadRecordError(f"the record has {size} bytes, and the log takes {most_bytes}")
    return output


# --- fields


UnknownField = Callable[[str, frozenset[str]], None]
"""Called with the path of a field that events do not have, and the names of those that they have."""


def noticed_once(topic: str, notice: Notice) -> UnknownField:
    """Calls ``notice`` the first time that a field is unknown."""
    noticed: set[str] = set()

    def unknown(path: str, known: frozenset[str]) -> None:
        if path not in noticed:
            noticed.add(path)
            said = f"the field {path!r} is dropped: the events of {topic!r} have no such field."
            notice(f"{said} {did_you_mean(path.rpartition('.')[2], known)}".rstrip())

    return unknown


def names_in(event: Any) -> frozenset[str]:
    """The names that an encoded event of this class may have; empty if any name is allowed."""
    cls: Any = event.__class__
    return _names_of(cls)


@cache
def _names_of(cls: Any) -> frozenset[str]:
    names = {one.encode_name for one in event_fields(cls).values()}
    match kind_of(cls):
        case "struct":
            config = cls.__struct_config__
            return (
                frozenset() if config.array_like else frozenset({*names, *filter(None, [config.tag_field])})
            )
        case "model":
            # A validator of the whole model may read other names.
            validators = cls.__pydantic_decorators__.model_validators.values()
            is_open = cls.model_config.get("extra") == "allow" or any(
                one.info.mode != "after" for one in validators
            )
            return frozenset() if is_open else frozenset({*names, *cls.model_fields})
        case _:
            return frozenset(names)


# --- cells


def _converted(declared: Any, cells: dict[str, Any], unknown: UnknownField, *, strict: bool) -> Any:
    if kind_of(declared) == "model":
        raise BadRecordError(
            f"{spell(declared)} is a pydantic model, which is made from JSON lines only, not from a table"
        )
    event = msgspec.convert(cells, declared, strict=strict)
    check_cell(cells, event, "", unknown)
    return event


def check_cell(cell: Any, value: Any, path: str, unknown: UnknownField) -> None:
    """Compare a cell with the value that was made from it, and with the values inside.

    Raises:
        BadRecordError: The value is a guess, or not exactly the one of the cell.
    """
    inner = _inside(value)
    if inner is None:
        why = _guess(cell, value)
        if why is not None:
            raise BadRecordError(f"{path.lstrip('.')!r} is {shortened(cell)}: {why}")
        return
    if type(value) in (dict, set, frozenset):
        for one in cell:
            if type(one) is int and one not in value:
                raise BadRecordError(f"{path.lstrip('.')!r} has {one}: as a float it is {float(one)!r}")
    cells = _by_name(cell)
    is_event = kind_of(type(value)) is not None
    for name, part in inner.items():
        if name in cells:
            check_cell(cells[name], part, f"{path}.{name}" if is_event else f"{path}[{name!r}]", unknown)
    if is_event and len(known := names_in(value)):
        for name in cells.keys() - known:
            unknown(f"{path}.{name}".lstrip("."), known)


def _inside(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a value, by their names in the cell that it was made from. None if it has no parts."""
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
        is_list = value.__struct_config__.array_like
        return dict(enumerate(parts) if is_list else zip(value.__struct_encode_fields__, parts, strict=True))
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return {}
    return _by_name(value) if isinstance(value, (list, tuple, dict)) else None


def _by_name(parts: Any) -> dict[Any, Any]:
    return dict(parts if hasattr(parts, "keys") else enumerate[Any](parts))


def _guess(cell: Any, value: Any) -> str | None:
    """Why the converted value is a guess, or not exactly the value of the cell; None if it is exact."""
    is_text = isinstance(cell, str)
    if is_text and isinstance(value, (datetime, timedelta)) and _NUMBER.fullmatch(cell):
        what, example = (
            ("a date and time", "2013-01-01T05:17:00Z")
            if isinstance(value, datetime)
            else ("a duration", "PT5M")
        )
        return (
            f"a number is not taken for {what}, as its unit is not known. Write ISO 8601, such as {example}"
        )
    if type(value) is int and is_text and not _INTEGER.fullmatch(cell):
        return "it is no integer"
    if type(value) is float:
        if type(cell) is int and cell != value:
            return f"as a float it is {value!r}"
        if isinstance(cell, Decimal) and cell != Decimal(repr(value)):
            return f"as a float it is {value!r}"
    return None


# --- keys and times


def _key(value: Any, path: str) -> bytes:
    if type(value) not in (str, int):
        what = "missing" if value is None else f"{value!r:.100}, neither text nor an integer"
        raise BadRecordError(f"the key {path!r} is {what}")
    return key_codec_for(type(value)).encode(value)


def _event_time(topic: Topic[Any, Any], event: Any) -> int | None:
    """The event time in ms, checked as the app's tasks do; None if it is not in the event."""
    if topic.time_of is None:
        return None
    settings = topic.settings
    time_ms = topic.time_of(event)
    if time_ms is None:
        raise BadRecordError("the event has no event time")
    if not settings.time_min_ms <= time_ms <= settings.time_max_ms:
        raise BadRecordError(
            f"the event time {time_ms} ms is outside of {settings.time_min_ms} to {settings.time_max_ms} ms"
        )
    if settings.refuse_seconds and SECONDS_FIRST_MS <= time_ms <= SECONDS_LAST_MS:
        raise BadRecordError(". ".join(seconds_taken_for_ms(time_ms, settings.event_time)))
    return time_ms


def _instant(value: Any, path: str) -> int:
    """An instant in a row: integer milliseconds or an aware datetime; in JSON also as text."""
    try:
        if isinstance(value, str):
            value = int(value) if re.fullmatch(r"-?[0-9]+", value) else datetime.fromisoformat(value)
        time_ms = to_ms(value)
        to_datetime(time_ms)
    except (TailraceError, ValueError):
        what = "missing" if value is None else f"{value!r:.100}, which is not a time"
        raise BadRecordError(f"the timestamp {path!r} is {what}") from None
    if type(value) is int and SECONDS_FIRST_MS <= value <= SECONDS_LAST_MS:
        raise BadRecordError(
            f"the timestamp {path!r} is {value}, which looks like seconds. Timestamps are milliseconds since "
            "1970, or ISO 8601 with a zone"
        )
    return time_ms
