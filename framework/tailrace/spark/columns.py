"""The columns of Spark's tables: those of ``state.columns``, with the types of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import types
from pyspark.sql.pandas import types as pandas_types

from tailrace.core.values.type_schemas import TypeSchema
from tailrace.state import columns as arrow_columns
from tailrace.state.columns import Column


def column(name: str, schema: TypeSchema) -> Column:
    """The column of values of a type."""
    return in_spark(arrow_columns.column(name, schema))


def in_spark(one: Column) -> Column:
    """A column with the type that Spark has for its Arrow type."""
    from_arrow_type: Any = getattr(pandas_types, "from_arrow_type")  # noqa: B009  # it takes what has no type
    return one._replace(type=from_arrow_type(one.type))


def struct_type(columns: Sequence[Column]) -> types.StructType:
    """The columns together: the schema of a table."""
    return types.StructType([types.StructField(one.name, one.type) for one in columns])
