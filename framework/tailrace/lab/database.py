"""DuckDB: the database of comparisons and queries, in UTC, with views of tables in Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tailrace.core.errors import OptionError
from tailrace.core.extras import ExtraModule
from tailrace.state.snapshots.arrow import parquet

duckdb: Any = ExtraModule("duckdb", "comparisons of versions", "lab")


def connected(**config: str) -> Any:
    """A database in memory that shows times in UTC."""
    database = duckdb.connect(config=config)
    database.execute("set timezone = 'UTC'")
    return database


def add_views(database: Any, folder: Path, schemas: Sequence[str]) -> None:
    """Schemas, which are folders, with a view for each of their tables: a table is a folder of Parquet files there.

    Raises OptionError: the names of two tables, or of two columns of one, differ by case only, and SQL ignores case.
    """
    for schema in schemas:
        database.execute(f"create schema {schema}")
        tables = sorted(one for one in (folder / schema).glob("*") if one.is_dir())
        check_case("tables", (one.name for one in tables))
        for table in tables:
            _check_columns(table.name, parquet.read_schema(min(table.glob("*.parquet"))))
            name = table.name.replace('"', '""')
            database.execute(f'create view {schema}."{name}" as from read_parquet({quoted(table / "*")})')


def _check_columns(table: str, columns: Iterable[Any]) -> None:
    fields = [*columns]
    check_case(f"columns of {table}", [one.name for one in fields])
    for one in fields:
        _check_columns(table, (one.type.field(at) for at in range(one.type.num_fields)))


def check_case(what: str, names: Iterable[str]) -> None:
    """Check that SQL tells these names apart. Raises OptionError."""
    seen = dict[str, str]()
    for name in sorted(names):
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise OptionError(
                f"the {what} {other!r} and {name!r} differ by case only, which SQL ignores",
                hint="Name one of the tables, with its schema, or export them (tailrace export).",
            )


def is_one_select(query: str) -> bool:
    """Whether a text is one SELECT, and nothing else. Raises ``duckdb.Error``: it is no SQL."""
    return [one.type for one in duckdb.extract_statements(query)] == [duckdb.StatementType.SELECT]


def quoted(file: Path) -> str:
    """A Parquet file (without its suffix) in SQL."""
    return "'" + f"{file}.parquet".replace("'", "''") + "'"
