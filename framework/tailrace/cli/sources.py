"""Reads files: JSON lines, CSV and Parquet become numbered rows. Some rows may be broken.

A row that cannot be read does not end the reading, and no text is lost: a broken row has its original text, even if it spans
many lines. A line of JSON may be a broken row as an earlier run has kept it (``kept_line``): its text is read in its place.
"""

from __future__ import annotations

import base64
import csv
import importlib
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO, StringIO
from pathlib import PurePath
from typing import IO, Any, NamedTuple

import click
import msgspec

from tailrace.core.values.event_values import not_finite

_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 16 << 20
_ROWS_AT_ONCE = 10_000
_MARK = b'"rejected_from"'
"""Each kept line has it; other lines hardly ever."""


class Row(NamedTuple):
    """One row of a source. ``number`` is the number of its first line, or in Parquet of the row, from 1.

    ``content`` is a line of JSON unchanged, or the cells by name. It is None for a broken row; then ``error`` has the reason.
    ``columns`` is the header above a row of CSV.
    """

    number: int
    raw: bytes
    content: bytes | dict[str, Any] | None
    error: str = ""
    columns: Sequence[str] = ()


Rows = Callable[[IO[bytes]], Iterator[Row]]


def json_rows(file: IO[bytes]) -> Iterator[Row]:
    """The non-blank lines of a file. They are decoded, and so checked, later."""
    for number, line in enumerate(file, 1):
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        if not text:
            continue
        again = _kept_again(number, text) if _MARK in text else None
        if again is None:
            yield Row(number, text, text)
        else:
            yield from again


def csv_rows(file: IO[bytes]) -> Iterator[Row]:
    """The rows of a CSV file with a header, as dicts of text. An empty cell means that the field is missing.

    Raises:
        click.ClickException: There is no header, or it names a column twice.
    """
    csv.field_size_limit(_LONGEST_CELL)
    lines = _Lines(file)
    reader = csv.reader(lines, strict=True)
    header: list[str] = []
    try:
        header = next(reader, header)
    except csv.Error as error:
        raise click.ClickException(f"The CSV header cannot be read: {error}.") from None
    if not header or len(set(header)) < len(header) or "" in header:
        raise click.ClickException(
            f"The first line of a CSV file must name its columns, each once; this one is {','.join(header)!r:.200}."
        )
    if len(header) == 1 and (other := next((one for one in ";\t|" if one in header[0]), None)):
        raise click.ClickException(
            f"The header of the CSV file is one column with {other!r} in it, {header[0]!r:.200}: the separator must be a comma."
        )
    while True:
        lines.taken.clear()
        number = lines.number + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, b"".join(lines.taken), None, str(error), header)
            continue
        raw = b"".join(lines.taken)
        if not cells:
            continue
        if len(cells) != len(header):
            yield Row(number, raw, None, f"{len(cells)} cells under {len(header)} columns", header)
        elif not _is_utf8(raw):
            yield Row(number, raw, None, "the line is not UTF-8", header)
        else:
            found = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            yield Row(number, raw, found, "", header)


def parquet_rows(file: IO[bytes]) -> Iterator[Row]:
    """The rows of a Parquet file, as dicts. A null becomes None, not a missing field, which would get its default.

    Raises:
        click.ClickException: pyarrow is not installed, or the file is not Parquet.
    """
    try:
        # By name: pyarrow is an optional extra, and without it type checkers would not find its types.
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise click.ClickException(
            "Reading Parquet needs pyarrow, which is not installed: pip install 'tailrace[parquet]'."
        ) from None
    number = 0
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=_ROWS_AT_ONCE):
            for cells in batch.to_pylist():
                number += 1
                yield Row(number, _as_json(cells), cells)
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise click.ClickException(
            f"The Parquet file cannot be read after row {number}: {' '.join(str(error).split())}"
        ) from None


FORMATS: dict[str, Rows] = {"jsonl": json_rows, "csv": csv_rows, "parquet": parquet_rows}
_SUFFIXES = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def format_of(path: str) -> str:
    """The format for the suffix of a file name (default: JSON lines)."""
    return _SUFFIXES.get(PurePath(path).suffix.lower(), "jsonl")


def is_known(path: str) -> bool:
    """Whether the suffix of a file name says its format. A name without a suffix, as that of a pipe, says nothing wrong."""
    return PurePath(path).suffix.lower() in {"", *_SUFFIXES}


class _Kept(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A broken row as it is kept. It has its text, or what is no UTF-8 in base64."""

    rejected_from: str
    line: int
    error: str
    text: str | None = None
    base64: str | None = None
    columns: Sequence[str] = ()


def kept_line(source: str, row: Row, reason: str) -> bytes:
    """A broken row of a source as a line of JSON. ``json_rows`` reads the row again, once its text is corrected."""
    kept = _Kept(source, row.number, reason, columns=row.columns)
    try:
        kept.text = row.raw.decode()
    except UnicodeDecodeError:
        kept.base64 = base64.b64encode(row.raw).decode()
    return msgspec.json.encode(kept) + b"\n"


def _kept_again(number: int, line: bytes) -> Iterator[Row] | None:
    """The rows in the text of a kept line. None for any other line."""
    try:
        kept = msgspec.json.decode(line, type=_Kept)
        if kept.text is not None:
            return _rows_again(number, kept.text.encode(), kept.columns)
        if kept.base64 is not None:
            return _rows_again(number, base64.b64decode(kept.base64, validate=True), kept.columns)
    except ValueError:  # also of msgspec
        pass
    return None


def _rows_again(number: int, data: bytes, columns: Sequence[str]) -> Iterator[Row]:
    if columns:
        header = StringIO()
        csv.writer(header).writerow(columns)
        for row in csv_rows(BytesIO(header.getvalue().encode() + data)):
            yield row._replace(number=number)
    elif text := data.strip():
        yield Row(number, text, text)


class _Lines(Iterator[str]):
    """The lines of a file for the CSV reader. ``taken`` has the lines that it has read since ``taken`` was last cleared."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = iter(file)
        self.number = 0
        self.taken: list[bytes] = []

    def __next__(self) -> str:
        line = next(self._file)
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(_BOM)
        self.taken.append(line)
        return line.decode(errors="replace")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_json(cells: dict[str, Any]) -> bytes:
    try:
        return repr(cells).encode() if not_finite(cells) else msgspec.json.encode(cells)
    except (TypeError, ValueError):
        return repr(cells).encode(errors="backslashreplace")
