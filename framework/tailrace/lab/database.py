"""DuckDB: the database of comparisons and queries, in UTC, with views of tables in Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.core.extras import ExtraModule

duckdb: Any = ExtraModule("duckdb", "comparisons of versions", "lab")


def connected(**config: str) -> Any:
    """A database in memory that shows times in UTC."""
    database = duckdb.connect(config=config)
    database.execute("set timezone = 'UTC'")
    return database


def add_views(database: Any, schema: str, folder: Path) -> None:
    """A schema with a view for each table in a folder: the tables are folders of Parquet files."""
    database.execute(f"create schema {schema}")
    for table in sorted(one for one in folder.glob("*") if one.is_dir()):
        name = table.name.replace('"', '""')
        database.execute(f'create view {schema}."{name}" as from read_parquet({quoted(table / "*")})')


def is_one_select(query: str) -> bool:
    """Whether a text is one SELECT, and nothing else. Raises ``duckdb.Error``: it is no SQL."""
    return [one.type for one in duckdb.extract_statements(query)] == [duckdb.StatementType.SELECT]


def quoted(file: Path) -> str:
    """A Parquet file (without its suffix) in SQL."""
    return "'" + f"{file}.parquet".replace("'", "''") + "'"
