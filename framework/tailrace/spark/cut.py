"""The cut of a DataFrame: offsets or a snapshot, fixed by ``load()`` and stored in its schema.

Spark keeps a data source per DataFrame, and plans its read once or for each query, depending on version and
settings. So results must not depend on the time at which a query is planned. The offsets (of a topic) or the
id (of a snapshot) are looked up once, when Spark asks for the schema of the table, and are stored in the
metadata of the schema's first column. Each query takes them from there: all queries of a DataFrame, of its
views and of DataFrames derived from it read the same cut. A new ``load()`` reads the newest one.

A cut is written as options, so that another ``load()`` with them reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.core.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, types

_KEY = "tailrace.cut"


def cut(frame: DataFrame) -> dict[str, str]:
    """The options with which another ``load()`` reads the same data as ``frame``.

    Of a topic: ``topic``, ``startingOffsets`` and ``endingOffsets`` with a number for each partition. Of a
    snapshot: ``app`` and ``id``.

    Raises:
        UsageError: The DataFrame is derived from others, or does not come from Tailrace.
    """
    found = cut_of(frame.schema)
    if found is None:
        raise UsageError(
            "this DataFrame has no cut",
            hint='Pass one that spark.read.format("tailrace")....load() returned, before columns are '
            "selected or joined.",
        )
    return found


def with_cut(schema: types.StructType, found: Mapping[str, str]) -> types.StructType:
    """A schema with a cut in its metadata."""
    from pyspark.sql import types  # noqa: PLC0415 (PySpark is an extra)

    first, *others = schema.fields
    metadata = {**(first.metadata or {}), _KEY: msgspec.json.encode(found).decode()}
    return types.StructType(
        [types.StructField(first.name, first.dataType, first.nullable, metadata), *others]
    )


def cut_of(schema: types.StructType) -> dict[str, str] | None:
    """The cut in a schema's metadata, or None."""
    for field in schema.fields:
        metadata: dict[str, Any] = field.metadata or {}
        if _KEY in metadata:
            return msgspec.json.decode(metadata[_KEY], type=dict[str, str])
    return None
