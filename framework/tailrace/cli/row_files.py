"""Reads rows from files of JSON lines or CSV.

======  =======================================  ========================
format  a row                                    its number
======  =======================================  ========================
jsonl   a line that is not blank, as bytes       of the line, from 1
csv     the cells by column, no empty ones       of its first line, from 1
======  =======================================  ========================

pyarrow also reads both, but it repairs what is broken: a quote that is never closed swallows the rest of the
file without an error, and the second of two columns with one name replaces the first.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import click

FORMATS = ("jsonl", "csv")
STDIN = "-"
_BY_ENDING = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 16 << 20


class Row(NamedTuple):
    """A line of JSON, or the cells by column. ``error``: why the row is invalid; empty if it could be read."""

    number: int
    content: bytes | dict[str, str]
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
    """
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
        yield Row(number, found, error=why)


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
