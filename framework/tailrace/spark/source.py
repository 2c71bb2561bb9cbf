"""The PySpark data source ``tailrace``. The options select what is read.

========================================  ==============================================================
options                                   a table of
========================================  ==============================================================
``log``, ``topic``                        the records of a topic, as bytes
``log``, ``topic``, ``app``               its events, a column for each field
``snapshot``, ``app``, ``actor``          the instances of an actor, a row for each key
``snapshot``, ..., ``field``              the entries of one of its MapStates or ListStates
``snapshot``, ``app``, ``table=timers``   the pending timers
========================================  ==============================================================

For ``log``, ``options`` knows other places of the past. What can be written: an actor's table, as a new snapshot. See ``writer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from tailrace.core.errors import UsageError
from tailrace.spark.columns import struct_type
from tailrace.spark.cut import cut_of, with_cut
from tailrace.spark.options import Options, reported
from tailrace.spark.states import StateTable, StateTableReader
from tailrace.spark.topics import TopicTable
from tailrace.spark.writer import StateWriter


class TailraceSource(DataSource):
    """See the head of this file. Created by Spark, in any process that plans a query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({**options})
        with reported():
            self._options = Options(options)

    @classmethod
    def name(cls) -> str:
        """What ``spark.read.format`` is given."""
        return "tailrace"

    def schema(self) -> StructType:
        """The columns of the table, and the cut that is read: see ``cut``."""
        with reported():
            table = _table(self._options)
            return with_cut(struct_type(table.columns), table.cut())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns of ``schema``, at the cut that it carries."""
        with reported():
            table = _table(self._options.at(self._cut(schema)))
            if [(one.name, one.dataType) for one in schema] != [one[:2] for one in table.columns]:
                raise UsageError(
                    "the given schema is not that of the table",
                    hint="Leave the schema out. Select columns by the option columns, or cast what is read.",
                )
            return StateTableReader(table) if isinstance(table, StateTable) else table.reader()

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 (Spark's names)
        """Refused: the records of a service's log are streamed by Spark's own source."""
        with reported():
            raise UsageError(
                'the format "tailrace" has no streams',
                hint='Stream a topic on Kafka with Spark\'s format "kafka", or read tables with spark.read.',
            )

    def _cut(self, schema: StructType) -> dict[str, str]:
        cut = cut_of(schema)
        if cut is None:
            raise UsageError(
                "the given schema does not have the offsets or the snapshot to read",
                hint="Leave the schema out. Select columns by the option columns, or with select.",
            )
        if cut.get("topic") != self._options.get("topic"):
            raise UsageError(
                f"the given schema belongs to the topic {cut.get('topic')!r}, at offsets of its own",
                hint="Leave the schema out.",
            )
        return cut

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writes an actor's table."""
        with reported():
            if overwrite:
                raise UsageError(
                    "a table of an actor cannot be overwritten: keys that it lacks would lose their maps, lists and timers",
                    hint='Write the rows that change: mode("append").',
                )
            return StateWriter(self._options, schema)


def _table(options: Options) -> TopicTable | StateTable:
    return StateTable(options) if "snapshot" in options else TopicTable(options)
