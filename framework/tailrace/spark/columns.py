"""The columns of Spark's tables: those of ``state.columns``, with the types of Spark; batches of them; and their values as plain values again.

PyArrow has no types and is ``Any`` to both checkers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import types
from pyspark.sql.pandas import types as pandas_types

from tailrace.core.errors import UsageError
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


Restore = Callable[[Any], Any]


def restorer(schema: TypeSchema) -> Restore:
    """Converts what Arrow gives for a value of a type (a dict for a struct, pairs for a map) to the plain value.
    Raises UsageError: the type has no column of its own, but JSON.
    """
    match schema.kind:
        case "list" | "tuple...":
            return _many(schema.of[0])
        case "tuple":
            return _places([(f"_{at}", one) for at, one in enumerate(schema.of, 1)], None)
        case "namedtuple":
            return _places([(one.name, one.type) for one in schema.fields], None)
        case "struct" if schema.fields and schema.array_like:
            return _places([(one.name, one.type) for one in schema.fields], schema.tag)
        case "struct" if schema.fields:
            return _fields(schema)
        case "dict" if not isinstance(column("", schema).type, types.StringType):
            key, value = restorer(schema.of[0]), restorer(schema.of[1])
            return lambda given: {_hashable(key(one)): _or_none(value, item) for one, item in given}
        case "union" if len(members := [one for one in schema.of if one.kind != "None"]) == 1:
            return restorer(members[0])
        case _ if column("", schema).convert is not None:
            raise UsageError(
                f"values of type {schema.kind} are JSON in their column, and cannot be written",
                hint="Drop the column.",
            )
        case _:
            return lambda given: given


def _or_none(restore: Restore, value: Any) -> Any:
    return None if value is None else restore(value)


def _hashable(key: Any) -> Any:
    """A key for a dict: a tuple, where JSON has a list."""
    return tuple(_hashable(one) for one in key) if key.__class__ is list else key


def _many(of: TypeSchema) -> Restore:
    restore = restorer(of)
    return lambda given: [_or_none(restore, one) for one in given]


def _places(named: list[tuple[str, TypeSchema]], tag: str | int | None) -> Restore:
    restores = [(name, restorer(one)) for name, one in named]
    first = [] if tag is None else [tag]
    return lambda given: [*first, *(_or_none(restore, given[name]) for name, restore in restores)]


def _fields(schema: TypeSchema) -> Restore:
    restores = [(one.name, restorer(one.type)) for one in schema.fields]
    tag = {} if schema.tag is None or schema.tag_field is None else {schema.tag_field: schema.tag}
    absent = {one.name for one in schema.fields if one.absent}

    def restore_fields(given: Any) -> dict[str, Any]:
        return tag | {
            name: _or_none(restore, given[name])
            for name, restore in restores
            if given[name] is not None or name not in absent
        }

    return restore_fields


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
