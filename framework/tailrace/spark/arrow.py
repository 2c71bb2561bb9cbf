"""PyArrow has no types and is ``Any`` to both checkers. The functions here give its operations types."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from pyspark.sql import types
from pyspark.sql.pandas import types as pandas_types

from tailrace.state.columns import Column

pa: Any = importlib.import_module("pyarrow")
compute: Any = importlib.import_module("pyarrow.compute")


def arrow_schema(schema: types.StructType) -> Any:
    """The Arrow schema of a Spark table. Batches must have exactly this schema."""
    to_arrow_schema: Any = getattr(pandas_types, "to_arrow_schema")  # noqa: B009  # it gives what has no type
    return to_arrow_schema(schema, timezone="UTC")


def batch(schema: Any, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
    """A record batch of plain values, column by column; one may also be a ``pyarrow.Array`` already.
    Raises MisfitError: a value does not fit the type of its column.
    """
    arrays = [
        given if isinstance(given, pa.Array) else _array(column, given, one.type)
        for column, given, one in zip(columns, values, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class MisfitError(Exception):
    """The value in a row does not fit the type of its column."""

    def __init__(self, column: Column, row: int, why: Exception) -> None:
        type_ = column.type.simpleString()
        super().__init__(f"the value of {column.name!r} does not fit a column of type {type_}: {why}")
        self.row = row


def _array(column: Column, given: Sequence[Any], type_: Any) -> Any:
    try:
        return pa.array(column.values(given), type=type_)
    except (OverflowError, pa.ArrowException):
        for row, value in enumerate(given):
            try:
                pa.array(column.values([value]), type=type_)
            except (OverflowError, pa.ArrowException) as why:
                raise MisfitError(column, row, why) from None
        raise
