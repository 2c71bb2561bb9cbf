"""Makes tables of Delta Lake or Iceberg of the Parquet files of an export."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tailrace.core.errors import OptionError, UsageError
from tailrace.core.extras import ExtraModule
from tailrace.state.failures import outage_of
from tailrace.state.snapshots.arrow import dataset, parquet

Format: TypeAlias = Literal["parquet", "delta", "iceberg"]
CATALOGUE = "catalog.db"
_ROWS_AT_ONCE = 50_000
_deltalake: Any = ExtraModule("deltalake", "Delta tables", "delta")
_iceberg: Any = ExtraModule("pyiceberg.catalog.sql", "Iceberg tables", "iceberg")


def check_format(format: Format, folder: Path) -> None:
    """Raises MissingExtraError or OptionError: the library of a format is not installed, or it cannot have this folder."""
    if format == "delta":
        _ = _deltalake.write_deltalake
    elif format == "iceberg":
        _ = _iceberg.SqlCatalog
    if format != "parquet" and set("#?%") & set(str(folder.absolute())):
        raise OptionError(
            f"{format} reads paths as URIs, and {str(folder.absolute())!r} has '#', '?' or '%' in it",
            hint="Name another folder.",
        )


def publish(format: Format, making: Path, folder: Path, names: Sequence[str], app: str) -> None:
    """Publish a folder of Parquet files, each folder in it a table, as another."""
    if format == "iceberg":
        _to_iceberg(making, folder, names, app)
        return
    if format == "delta":
        _to_delta(making, names)
    making.replace(folder)


def _to_delta(making: Path, names: Sequence[str]) -> None:
    """A folder of Delta Lake for each table."""
    for name in names:
        files = making / f"_{name}.parquet"
        (making / name).rename(files)
        with _refused(name, "Delta Lake"):
            rows = dataset.dataset(files).scanner(batch_size=_ROWS_AT_ONCE).to_reader()
            _deltalake.write_deltalake(str(making / name), rows)
        shutil.rmtree(files)


def _to_iceberg(making: Path, folder: Path, names: Sequence[str], app: str) -> None:
    """Tables in a catalogue of SQLite, each in one commit. Iceberg writes absolute paths, so they are made in their place."""
    try:
        folder.mkdir(exist_ok=True)
        catalogue = _iceberg.SqlCatalog(
            "tailrace", uri=f"sqlite:///{folder / CATALOGUE}", warehouse=f"file://{folder}"
        )
        with closing(catalogue):
            catalogue.create_namespace(app)
            for name in names:
                _append(catalogue, (app, name), making / name, f"file://{folder / name}")
        for one in making.iterdir():
            if one.is_file():
                one.replace(folder / one.name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _append(catalogue: Any, name: tuple[str, str], files: Path, location: str) -> None:
    parts = sorted(files.iterdir())
    with _refused(name[1], "Iceberg"):
        table = catalogue.create_table(name, schema=parquet.read_schema(parts[0]), location=location)
        with table.transaction() as transaction:
            for part in parts:
                transaction.append(parquet.read_table(part))


@contextmanager
def _refused(table: str, format: str) -> Generator[None]:
    """Raises UsageError for a table that a format refuses, and OSError if the disk is full or the like."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # deltalake raises bare ones
        what = str(error).partition("\n")[0]
        if outage_of(error) is not None:
            raise OSError(what) from error
        raise UsageError(
            f"{table} cannot be a table of {format}: {what}", hint="Export it as parquet."
        ) from error
