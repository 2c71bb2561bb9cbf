"""What a DataFrame reads: one cut of the log or one snapshot, fixed by ``load()`` and carried by the DataFrame's schema.

Spark keeps a data source per DataFrame, and plans to read it once or again for each query, as its version and settings
have it. So nothing may depend on when a query is planned. The offsets (of a topic) or the id (of a snapshot) are looked
up once, when Spark asks for the schema of the table, and go into the metadata of the schema's first column. Whoever
plans a query takes them from there: every query of a DataFrame, of its views and of what is derived from it reads the
same cut. A new ``load()`` reads the newest one.

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
    """The options with which another ``load()`` reads the same data as ``frame``, which a ``load()`` has returned.

    Of a topic: ``topic``, ``startingOffsets`` and ``endingOffsets`` with a number for each partition. Of a snapshot: ``app``
    and ``id``.

    Raises:
        UsageError: The DataFrame is derived from others, or does not come from Tailrace.
    """
    found = cut_of(frame.schema)
    if found is None:
        raise UsageError(
            "this DataFrame carries no cut",
            hint='Pass one that spark.read.format("tailrace")....load() returned, before columns are selected or joined.',
        )
    return found


def with_cut(schema: types.StructType, found: Mapping[str, str]) -> types.StructType:
    """A schema that carries a cut."""
    from pyspark.sql import types  # noqa: PLC0415 (PySpark is an extra)

    first, *others = schema.fields
    metadata = {**(first.metadata or {}), _KEY: msgspec.json.encode(found).decode()}
    return types.StructType(
        [types.StructField(first.name, first.dataType, first.nullable, metadata), *others]
    )


def cut_of(schema: types.StructType) -> dict[str, str] | None:
    """The cut that a schema carries, or None."""
    for field in schema.fields:
        metadata: dict[str, Any] = field.metadata or {}
        if _KEY in metadata:
            return msgspec.json.decode(metadata[_KEY], type=dict[str, str])
    return None
