"""Reads rows from files: JSON lines and CSV with the standard library, Parquet with pyarrow.

========  =========================================================  ==============================
format    a row                                                      its number
========  =========================================================  ==============================
jsonl     a line that is not blank, as bytes                         of the line, from 1
csv       the cells by column, all of them text; no empty cell       of its first line, from 1
parquet   the cells by column, as Python values; a null is None      of the row in the file, from 1
========  =========================================================  ==============================

pyarrow also reads CSV and JSON, but it repairs what is broken: a quote that is never closed swallows the rest
of the file without an error, and the second of two columns with one name replaces the first.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from tailrace.core.extras import ExtraModule

pa: Any = ExtraModule("pyarrow", "Parquet files", "parquet")
dataset: Any = ExtraModule("pyarrow.dataset", "Parquet files", "parquet")

FORMATS = ("jsonl", "csv", "parquet")
STDIN = "-"
_BY_ENDING = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 16 << 20
_ROWS_AT_ONCE = 10_000
_READ_ERRORS = (OSError, ValueError, KeyError, ArithmeticError, NotImplementedError)
"""What pyarrow raises for data that it cannot read, or that Python has no value for."""


class Row(NamedTuple):
    """A row of a file: a line of JSON, or the cells by column; with ``is_text`` all of them are text.

    ``error`` is the reason why the row is invalid; empty if it could be read.
    """

    number: int
    content: bytes | dict[str, Any]
    is_text: bool = False
    error: str = ""


def format_of(name: str) -> str:
    """The format of a file by the ending of its name. Standard input is JSON lines.

    Raises:
        click.BadParameter: The ending names no format.
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
    if format_ == "parquet":
        if name == STDIN:
            raise click.ClickException("Parquet cannot be read from standard input: name a file.")
        yield from _table_rows(name)
        return
    with click.open_file(name, "rb") as file:
        yield from (_json_rows if format_ == "jsonl" else _csv_rows)(file)


def _json_rows(file: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate(_lines(file), 1):
        if text := line.strip():
            yield Row(number, text)


def _csv_rows(file: IO[bytes]) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader((line.decode(errors="surrogateescape") for line in _lines(file)), strict=True)
    header: list[str] = []
    try:
        header = next(reader, header)
    except csv.Error as error:
        raise click.ClickException(f"The CSV header cannot be read: {error}.") from None
    if not header or len(set(header)) < len(header) or "" in header:
        raise click.ClickException(
            "The first line of a CSV file must name its columns, each once; this one is "
            f"{','.join(header)!r:.200}."
        )
    if len(header) == 1 and any(separator in header[0] for separator in ";\t|"):
        raise click.ClickException(
            f"The CSV header is one column, {header[0]!r:.200}: the separator must be a comma."
        )
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, b"", error=str(error))
            continue
        if not cells:
            continue
        why = ""
        if len(cells) != len(header):
            why = f"{len(cells)} cells under {len(header)} columns"
        elif not _is_utf8(cells):
            why = "it is not UTF-8"
        found = {name: cell for name, cell in zip(header, cells, strict=False) if cell}
        yield Row(number, found, is_text=True, error=why)


def _table_rows(name: str) -> Iterator[Row]:
    number = 0
    read: Any = dataset.dataset  # fails without pyarrow
    try:
        source = read(name, format="parquet")
        # Read ahead, the error of a later batch would come before this one.
        for batch in source.to_batches(batch_size=_ROWS_AT_ONCE, batch_readahead=0):
            for cells in _in_microseconds(batch).to_pylist(maps_as_pydicts="strict"):
                number += 1
                yield Row(number, cells)
    except _READ_ERRORS as error:
        raise click.ClickException(
            f"{name} cannot be read after row {number}: {' '.join(str(error).split()).rstrip('.')}."
        ) from None


def _in_microseconds(batch: Any) -> Any:
    """The batch with microseconds, as Python has no nanoseconds.

    Raises:
        ValueError: A timestamp is no whole number of microseconds; or a column has nanoseconds and is not of
        timestamps.
    """
    for at, field in enumerate(batch.schema):
        if "[ns" in str(field.type):
            if not pa.types.is_timestamp(field.type):
                raise ValueError(f"the column {field.name!r} is {field.type}: write it with microseconds")
            cast = batch.column(at).cast(pa.timestamp("us", field.type.tz), safe=True)
            batch = batch.set_column(at, field.name, cast)
    return batch


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file without its byte order mark."""
    for at, line in enumerate(file):
        yield line if at else line.removeprefix(_BOM)


def _is_utf8(cells: Iterable[str]) -> bool:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return False
    return True
