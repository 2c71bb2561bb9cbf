"""Reads files: JSON lines, CSV and Parquet become numbered rows. Some rows may be broken.

A row that cannot be read does not end the reading, and no text is lost: a broken row has its original text, even if it spans
many lines.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import IO, Any, NamedTuple

import click
import msgspec

from tailrace.core.values.event_values import not_finite

_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 16 << 20
_ROWS_AT_ONCE = 10_000


class Row(NamedTuple):
    """One row of a source. ``number`` is the number of its first line, or in Parquet of the row, from 1.

    ``content`` is a line of JSON unchanged, or the cells by name. It is None for a broken row; then ``error`` has the reason.
    """

    number: int
    raw: bytes
    content: bytes | dict[str, Any] | None
    error: str = ""


Rows = Callable[[IO[bytes]], Iterator[Row]]


def json_rows(file: IO[bytes]) -> Iterator[Row]:
    """The non-blank lines of a file. They are decoded, and so checked, later."""
    for number, line in enumerate(file, 1):
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        if text:
            yield Row(number, text, text)


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
    while True:
        lines.taken.clear()
        number = lines.number + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(number, b"".join(lines.taken), None, str(error))
            continue
        raw = b"".join(lines.taken)
        if not cells:
            continue
        if len(cells) != len(header):
            yield Row(number, raw, None, f"{len(cells)} cells under {len(header)} columns")
        elif not _is_utf8(raw):
            yield Row(number, raw, None, "the line is not UTF-8")
        else:
            found = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            yield Row(number, raw, found)


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
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def format_of(path: str) -> str:
    """The format for the suffix of a file name (default: JSON lines)."""
    return _SUFFIXES.get(PurePath(path).suffix.lower(), "jsonl")


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
