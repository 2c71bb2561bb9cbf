"""The PySpark data source ``tailrace``. The options select what is read.

========================================  ==============================================================
options                                   a table of
========================================  ==============================================================
``log``, ``topic``                        the records of a topic, as bytes
``log``, ``topic``, ``app``               its events, a column for each field
``archive``, ``topic``, maybe ``log``     the same from an archive, and from the log what is not in it yet
``log``, ``app``, ``actor``               the changes of an actor's state, a row for each commit and key
``snapshot``, ``app``, ``actor``          the instances of an actor, a row for each key
``snapshot``, ..., ``field``              the entries of one of its MapStates or ListStates
``snapshot``, ``app``, ``table=timers``   the pending timers
========================================  ==============================================================

The tables of a log are also streams (``spark.readStream``): see ``streams``.
What can be written: an actor's table, as a new snapshot. See ``writer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from tailrace.core.errors import UsageError
from tailrace.history.reading.opening import open_history
from tailrace.spark.changes import ChangeTable
from tailrace.spark.columns import struct_type
from tailrace.spark.cut import cut_of, with_cut
from tailrace.spark.options import Options
from tailrace.spark.reporting import reported
from tailrace.spark.states import StateTable, StateTableReader
from tailrace.spark.streams import TopicStream
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
            self._options.refuse("recordsPerBatch", because="it belongs to a stream (readStream)")
            table = _table(self._options.at(self._cut(schema)))
            _check(schema, table)
            return StateTableReader(table) if isinstance(table, StateTable) else table.reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Reads what comes to the table: see ``streams``."""
        with reported():
            self._cut(schema)
            table = _table(self._options)
            if isinstance(table, StateTable):
                raise UsageError(
                    "a snapshot does not change, so there is no stream of it",
                    hint="For the changes of the state give log, app and actor.",
                )
            _check(schema, table)
            return TopicStream(self._options, table)

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
            return StateWriter(self._options, schema, overwrite)


def _check(schema: StructType, table: TopicTable | StateTable) -> None:
    if [(one.name, one.dataType) for one in schema] != [one[:2] for one in table.columns]:
        raise UsageError(
            "the given schema is not that of the table",
            hint="Leave the schema out. Select columns by the option columns, or cast what is read.",
        )


def _table(options: Options) -> TopicTable | StateTable:
    if "snapshot" in options:
        return StateTable(options)
    if "log" not in options and "archive" not in options:
        raise UsageError(
            "the options do not select anything to read",
            hint="Give log and topic, archive and topic, or snapshot and app.",
        )
    is_of_state = "actor" in options and "topic" not in options
    kind = ChangeTable if is_of_state else TopicTable
    return kind(options, partial(open_history, options.get("log"), options.get("archive")))
