"""Reads rows of files, and makes records of them: events of an app's topic, or JSON lines as they are.

========  ============================================================  =======================
format    a row                                                         its number
========  ============================================================  =======================
jsonl     a line that is not blank, as bytes                            of the line, from 1
csv       a line that is not blank: its cells by column, all of them
          text, without the empty ones                                  of the line, from 1
parquet,  the cells by column, as Python values; a null is None         of the row in the file,
orc                                                                     from 1
========  ============================================================  =======================

A line of CSV is a row of its own. A reader that allows line breaks in cells, such as that of pyarrow, takes all lines from one stray
quote to the next as a cell, and reports nothing.

msgspec converts cells to the declared types: text of CSV leniently (``"12"`` is an int), other values strictly. Where
the result is not what the row says, the row is invalid:

=============================  =============================================================
a cell                         would become
=============================  =============================================================
``20130101`` for a datetime    21 August 1970, as seconds; so would a number of milliseconds
``5`` for a timedelta          5 seconds
``7.0``, ``1e3`` for an int    an int that can differ, as in ``3.0000000000000000001``
``2**53 + 1`` for a float      another number, from an integer or a decimal
=============================  =============================================================
"""

from __future__ import annotations

import csv
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

import click
import msgspec

from tailrace.core.declare.topic import Topic
from tailrace.core.durations import SECONDS_FIRST_MS, SECONDS_LAST_MS, to_datetime, to_ms
from tailrace.core.engine.failure import FAILURES
from tailrace.core.errors import BadRecordError, TailraceError
from tailrace.core.extras import ExtraModule
from tailrace.core.records import Output
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.event_fields import event_fields, kind_of
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.types import shortened, spell

pa: Any = ExtraModule("pyarrow", "Parquet and ORC files", "parquet")
dataset: Any = ExtraModule("pyarrow.dataset", "Parquet and ORC files", "parquet")

FORMATS = ("jsonl", "csv", "parquet", "orc")
STDIN = "-"
_BY_ENDING = {**{f".{one}": one for one in FORMATS}, ".ndjson": "jsonl", ".json": "jsonl"}
_ROWS_AT_ONCE = 10_000
_READ_ERRORS = (OSError, ValueError, KeyError, ArithmeticError, NotImplementedError)
"""What pyarrow raises for data that it cannot read, or that Python has no value for."""
_NUMBER = re.compile(r"\s*[+-]?[0-9]*\.?[0-9]+\.?([eE][+-]?[0-9]+)?\s*")
_SCALARS = frozenset({str, int, float, bool, type(None)})
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TIMES = (datetime, time, timedelta)
_BELOW_MICROSECONDS = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")


class Row(NamedTuple):
    """A row of a file: a line of JSON, or the cells by column; with ``is_text`` all of them are text.

    ``error`` is the reason why the row is invalid; empty if it could be read.
    """

    number: int
    content: bytes | dict[str, Any]
    is_text: bool = False
    error: str = ""


MakeRecord = Callable[[Row, int], Output]
"""Makes the record of a row. The int is the current time in ms, for records without a time."""
UnknownField = Callable[[str, frozenset[str]], None]
"""Called with the path of a field that events do not have, and the names of those that they have."""


# --- files


def format_of(name: str) -> str:
    """The format of a file by the ending of its name. Standard input is JSON lines.
    Raises click.BadParameter: the ending names no format.
    """
    ending = ".jsonl" if name == STDIN else Path(name).suffix.lower()
    if ending not in _BY_ENDING:
        raise click.BadParameter(
            f"the ending of {name!r} names no format: give --format, {', '.join(FORMATS)}"
        )
    return _BY_ENDING[ending]


def rows_of(name: str, format_: str) -> Iterator[Row]:
    """The rows of a file, or of standard input.

    Raises:
        click.ClickException: The file cannot be read.
        MissingExtraError: pyarrow is needed and not installed.
    """
    with click.open_file(name, "rb") as file:
        match format_:
            case "jsonl":
                for number, line in _lines(file):
                    yield Row(number, line.strip())
            case "csv":
                yield from _csv_rows(file)
            case _:
                yield from _table_rows(name, file, format_)


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, without its byte order mark."""
    for number, line in enumerate(file, 1):
        if not (line := line if number > 1 else line.removeprefix(b"\xef\xbb\xbf")).isspace() and line:
            yield number, line


def _csv_rows(file: IO[bytes]) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    lines = _lines(file)
    header, why = _csv_cells(next(lines, (1, b""))[1])
    if why:
        raise click.ClickException(f"The CSV header cannot be read: {why}.")
    if not header or len(set(header)) < len(header) or "" in header:
        raise click.ClickException(
            "The first line of a CSV file must name its columns, each once; this one is "
            f"{','.join(header)!r:.200}."
        )
    if len(header) == 1 and any(separator in header[0] for separator in ";\t|"):
        raise click.ClickException(
            f"The CSV header is one column, {header[0]!r:.200}: the separator must be a comma."
        )
    for number, line in lines:
        cells, why = _csv_cells(line)
        if not why and len(cells) != len(header):
            why = f"{len(cells)} cells under {len(header)} columns"
        found = {name: cell for name, cell in zip(header, cells, strict=False) if cell}
        yield Row(number, found, is_text=True, error=why)


def _csv_cells(line: bytes) -> tuple[list[str], str]:
    """The cells of a line, and why it has none."""
    try:
        return [cell for row in csv.reader([line.decode()], strict=True) for cell in row], ""
    except UnicodeDecodeError:
        return [], "it is not UTF-8"
    except csv.Error as error:
        is_open = str(error) == "unexpected end of data"
        return [], "a quote is not closed in its line, and a cell has no line breaks" if is_open else str(
            error
        )


def _table_rows(name: str, file: IO[bytes], format_: str) -> Iterator[Row]:
    what, make = {"parquet": ("Parquet", "ParquetFileFormat"), "orc": ("ORC", "OrcFileFormat")}[format_]
    reader: Any = getattr(dataset, make)()  # fails without pyarrow
    if name == STDIN or not file.seekable():
        raise click.ClickException(f"{what} cannot be read from standard input or a pipe: name a file.")
    number = 0
    try:
        # Read ahead, the error of a later batch would come before this one.
        for batch in reader.make_fragment(file).to_batches(batch_size=_ROWS_AT_ONCE, batch_readahead=0):
            for cells in _in_microseconds(batch).to_pylist(maps_as_pydicts="strict"):
                number += 1
                yield Row(number, cells)
    except _READ_ERRORS as error:
        raise click.ClickException(
            f"{name} cannot be read after row {number}: {' '.join(str(error).split()).rstrip('.')}."
        ) from None


def _in_microseconds(batch: Any) -> Any:
    """The batch with microseconds, as Python has no nanoseconds.
    Raises ValueError: a timestamp is no whole number of microseconds; or a column has nanoseconds and is not
    of timestamps.
    """
    for at, field in enumerate(batch.schema):
        if "[ns" in str(field.type):
            if not pa.types.is_timestamp(field.type):
                raise ValueError(f"the column {field.name!r} is {field.type}: write it with microseconds")
            cast = batch.column(at).cast(pa.timestamp("us", field.type.tz), safe=True)
            batch = batch.set_column(at, field.name, cast)
    return batch


# --- records


def typed(topic: Topic[Any, Any], timestamp: str | None, notice: Callable[[str], None]) -> MakeRecord:
    """Rows become events of a topic: validated, encoded and keyed as in its app.

    The timestamp of a record is the field ``timestamp``, else the event time, else the current time.
    ``notice`` is called once for each field that rows have and events do not.
    """
    stamp = None if timestamp is None else attrgetter(timestamp)
    decode = topic.decode if topic.settings.format == "json" else msgspec.json.Decoder[Any](topic.type).decode
    noticed: set[str] = set()

    def unknown(path: str, known: frozenset[str]) -> None:
        if path not in noticed:
            noticed.add(path)
            said = f"the field {path!r} is dropped: the events of {topic.name!r} have no such field."
            notice(f"{said} {did_you_mean(path.rpartition('.')[2], known)}".rstrip())

    def make(row: Row, now_ms: int) -> Output:
        cells: Any = row.content
        if isinstance(cells, bytes):
            event = decode(cells)
            cells = msgspec.json.decode(cells)
        elif kind_of(topic.type) == "model":
            raise BadRecordError(
                f"{spell(topic.type)} is a pydantic model, which is made from JSON lines only, not from a table"
            )
        else:
            event = msgspec.convert(cells, topic.type, strict=not row.is_text)
        _check_cell(cells, event, "", unknown)
        key = topic.encode_key(event)
        time_ms = topic.checked_time(event, now_ms)
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
    """Make the record of a row. Raises BadRecordError: the row is invalid; the message has the reason."""
    if row.error:
        raise BadRecordError(row.error)
    try:
        output = make(row, now_ms)
    except TailraceError as error:
        raise BadRecordError(error.what) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRecordError(str(error)) from None
    except FAILURES as error:  # a user's function for the key or the time may raise anything
        raise BadRecordError(f"{type(error).__name__}: {error}") from error
    size = len(output.value or b"") + len(output.key or b"")
    if size > most_bytes:
        raise BadRecordError(f"the record has {size} bytes, and the log takes {most_bytes}")
    return output


# --- cells


def _check_cell(cell: Any, value: Any, path: str, unknown: UnknownField) -> None:
    """Compare a cell with the value that was made from it, and with the values inside.
    Raises BadRecordError: the value is a guess, or not exactly the one of the cell.
    """
    cls: Any = value.__class__
    if cls in _SCALARS and cls is type(cell):
        return
    is_event = kind_of(cls) is not None
    if not is_event and not isinstance(value, (dict, list, tuple, set, frozenset)):
        if (why := _guess(cell, value)) is not None:
            raise BadRecordError(f"{path!r} is {shortened(cell)}: {why}")
        return
    if cls in (dict, set, frozenset):
        for one in cell:
            if type(one) is int and one not in value:
                raise BadRecordError(f"{path!r} has {one}: as a float it is {float(one)!r}")
    cells, parts = _by_name(cell), _parts(value)

    def inner(name: Any) -> str:
        return f"{path}.{name}".lstrip(".") if is_event else f"{path}[{name!r}]"

    for name, part in parts.items():
        if name in cells:
            _check_cell(cells[name], part, inner(name), unknown)
    known = _names_in(cls) if is_event else frozenset[str]()
    if cls is dict and len(parts) < len(cells):  # a TypedDict
        known = frozenset(map(str, parts)) or frozenset({""})
    for name in sorted(cells.keys() - known if known else (), key=str):
        unknown(inner(name), known)


def _parts(value: Any) -> Mapping[Any, Any]:
    """The values inside of an event or a collection, by their names in the cell that it was made from."""
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
        config = value.__struct_config__
        if config.array_like:
            return dict(enumerate(parts, config.tag is not None))
        return dict(zip(value.__struct_encode_fields__, parts, strict=True))
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return _by_name(value) if isinstance(value, (dict, list, tuple)) else {}


def _by_name(parts: Any) -> dict[Any, Any]:
    if hasattr(parts, "keys"):
        return dict(parts)
    return dict(enumerate[Any](parts)) if issubclass(parts.__class__, (list, tuple)) else {}


@cache
def _names_in(cls: Any) -> frozenset[str]:
    """The names that an encoded event of this class may have; empty if any name is allowed."""
    names = {one.encode_name for one in event_fields(cls).values()}
    match kind_of(cls):
        case "struct":
            config = cls.__struct_config__
            return frozenset(() if config.array_like else {*names, *filter(None, [config.tag_field])})
        case "model":
            # A validator of the whole model may read other names.
            validators = cls.__pydantic_decorators__.model_validators.values()
            is_open = cls.model_config.get("extra") == "allow" or any(
                one.info.mode != "after" for one in validators
            )
            return frozenset(() if is_open else {*names, *cls.model_fields})
        case _:
            return frozenset(names)


def _guess(cell: Any, value: Any) -> str | None:
    """Why the converted value is a guess, or not exactly the value of the cell; None if it is exact."""
    cls: Any = value.__class__
    is_text = isinstance(cell, str)
    if is_text and cls in (datetime, timedelta) and _NUMBER.fullmatch(cell):
        what, example = "a date and time", "2013-01-01T05:17:00Z"
        if cls is timedelta:
            what, example = "a duration", "PT5M"
        return (
            f"a number is not taken for {what}, as its unit is not known. Write ISO 8601, such as {example}"
        )
    if is_text and cls is int and not _INTEGER.fullmatch(cell):
        return "it is no integer"
    if is_text and cls in _TIMES and _BELOW_MICROSECONDS.search(cell):
        return "Python has no nanoseconds: write whole microseconds"
    number = Decimal(cell) if is_text and cls is float and _NUMBER.fullmatch(cell) else cell
    if cls is float and (
        (type(number) is int and number != value)
        or (isinstance(number, Decimal) and number != Decimal(repr(value)))
    ):
        return f"as a float it is {value!r}"
    return None


# --- keys and times


def _key(value: Any, path: str) -> bytes:
    if type(value) not in (str, int):
        what = "missing" if value is None else f"{value!r:.100}, neither text nor an integer"
        raise BadRecordError(f"the key {path!r} is {what}")
    return key_codec_for(type(value)).encode(value)


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
