"""Writes an export: a folder for each table, with Parquet files of bounded size, and a manifest.

All of it is made in a folder beside the destination, which is renamed when it is whole: a reader finds the whole
export or none. Columns have types that every reader of Parquet has: a duration is its microseconds as an int.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from tailrace.core.errors import ExportError, OptionError, UsageError
from tailrace.core.formats import FOLDER_MODE
from tailrace.state.columns import Column
from tailrace.state.failures import outage_of
from tailrace.state.snapshots.arrow import compute, pa, parquet

MANIFEST = "manifest.json"
ROWS_IN_A_FILE = 1_000_000
BYTES_IN_A_FILE = 128 << 20
"""Of the rows in memory: the file is smaller."""
_ROWS_IN_A_GROUP = 100_000


class TableReport(msgspec.Struct):
    """A table of an export."""

    name: str
    """The name of its folder."""
    columns: dict[str, str]
    """The Arrow type of each column."""
    json_columns: list[str]
    """The columns that hold JSON text, as no Arrow type fits their values."""
    rows: int = 0
    files: int = 0


class TableWriter:
    """Writes the files of one table. ``order``: the columns that the rows of each file are sorted by, if any."""

    def __init__(self, folder: Path, name: str, columns: Sequence[Column], order: Sequence[str] = ()) -> None:
        self._columns = columns
        stored = {one.name: settled(one.type) for one in columns}
        self._schema = pa.schema(list(stored.items()))
        self._folder = folder / name
        self._folder.mkdir()
        self._order = [(one, "ascending") for one in order]
        self._pending: list[Any] = []
        self._rows = self._bytes = 0
        self.report = TableReport(
            name,
            {one: str(type_) for one, type_ in stored.items()},
            [one.name for one in columns if one.is_json],
        )

    def write(self, values: dict[str, Any], where: str = "") -> None:
        """Add rows by their plain values or ``pyarrow.Array``. ``where`` names them. Raises UsageError: one does not fit."""
        arrays = [
            _array(one, values[one.name], type_, where)
            for one, type_ in zip(self._columns, self._schema.types, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._pending.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROWS_IN_A_FILE or self._bytes >= BYTES_IN_A_FILE:
            self._flush()

    def close(self) -> TableReport:
        """Write the rest. A table without rows has one file, for its columns."""
        if self._rows or not self.report.files:
            self._flush()
        return self.report

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, schema=self._schema)
        self._pending.clear()
        self._rows = self._bytes = 0
        if self._order:
            table = table.take(compute.sort_indices(table, sort_keys=self._order))
        for start in range(0, max(1, table.num_rows), ROWS_IN_A_FILE):
            path = self._folder / f"part-{self.report.files:05d}.parquet"
            part = table.slice(start, ROWS_IN_A_FILE)
            with path.open("wb") as file:
                parquet.write_table(
                    part,
                    file,
                    compression="zstd",
                    compression_level=1,
                    row_group_size=_ROWS_IN_A_GROUP,
                    write_statistics=True,
                )
                file.flush()
                os.fsync(file.fileno())
            self.report.files += 1
        self.report.rows += table.num_rows


def settled(type_: Any) -> Any:
    """The type in a file of an Arrow type: an int for a duration, anywhere in it."""
    if pa.types.is_duration(type_):
        return pa.int64()
    if pa.types.is_list(type_):
        return pa.list_(settled(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(settled(type_.key_type), settled(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([(one.name, settled(one.type)) for one in type_])
    return type_


def _array(column: Column, given: Any, type_: Any, where: str) -> Any:
    try:
        found = given if isinstance(given, pa.Array) else pa.array(column.values(given), type=column.type)
        return found if found.type == type_ else found.cast(type_)
    except (OverflowError, pa.ArrowException) as error:
        raise UsageError(
            f"a value of {column.name!r} of {where} does not fit a column of type {type_}: {error}",
            hint="An int must fit 64 bits, a time the years 1677 to 2262, a text must be UTF-8.",
        ) from error


@contextmanager
def published(
    folder: Path, kind: str, finish: Callable[[Path, Path], object] = Path.replace, *, worth: str = ""
) -> Generator[Path]:
    """A folder to write into, in a hidden one beside ``folder``, which must be new or empty. At the end ``finish`` makes it that.

    The hidden folder is removed, unless there was an error and it has something of the pattern ``worth`` for the next run.

    Raises:
        OptionError: There is something in the folder, or another command writes into it.
        ExportError: It cannot be written, such as on a full disk.
    """
    folder = folder.absolute()
    hidden = folder.with_name(f".{folder.name}.{kind}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"there is something in {str(folder)!r}", hint="Name a new or an empty folder.")
    try:
        hidden.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        with FileLock(hidden / "lock", timeout=0):
            try:
                making = hidden / "new"
                shutil.rmtree(making, ignore_errors=True)  # of a command that was killed
                making.mkdir(FOLDER_MODE)
                yield making
                finish(making, folder)
                worth = ""
            finally:
                if not (worth and any(hidden.glob(worth))):
                    shutil.rmtree(hidden, ignore_errors=True)
    except Timeout:
        raise OptionError(f"another command writes into {str(folder)!r}", hint="Wait for it.") from None
    except OSError as error:
        what, hint = outage_of(error) or (
            "the folder cannot be written",
            "Check the folder and its permissions",
        )
        raise ExportError(
            f"{what}: {error.strerror or error}",
            path=str(folder),
            hint=f"{hint}, then run the command again: nothing was published.",
        ) from error
