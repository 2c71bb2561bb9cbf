"""A topic as a table: the fields of its events, ``_key``, ``_partition``, ``_offset`` and ``_time``.

Rows are in the order of partitions and offsets. A record without a value, which deletes its key, has nulls in the
columns of its fields. Records that the declaration cannot decode are left out and counted.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import BadRecordError, UsageError
from tailrace.core.records import InputRecord
from tailrace.core.values.type_schemas import TypeSchema
from tailrace.history.reading.event_columns import Events, events_of, schema_of
from tailrace.history.reading.stretches import batches
from tailrace.lab.files import TableWriter
from tailrace.lab.state_tables import INSTANT, Values, key_columns, key_values
from tailrace.log.interface import OneCommitLog
from tailrace.state.columns import column
from tailrace.state.snapshots.arrow import pa

_PARTITION, _OFFSET, _TIME = "_partition", "_offset", "_time"
_BAD = (msgspec.MsgspecError, ValueError, BadRecordError)


class TopicTable:
    """A topic of an app, as the app declares it. Raises UnknownTopicError, or UsageError: two columns have one name."""

    def __init__(self, plan: Plan, topic: str) -> None:
        self.topic = topic
        self._events: Events = events_of(plan, topic)
        self._keys = key_columns("_key", schema_of(self._events.key_codec.type))
        self._fields = [one.name for one in self._events.columns]
        whole = TypeSchema("int")
        self.columns = [
            *self._events.columns,
            *self._keys,
            column(_PARTITION, whole),
            column(_OFFSET, whole),
            column(_TIME, INSTANT),
        ]
        names = [one.name for one in self.columns]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UsageError(
                f"the events of {topic!r} have a field {twice[0]!r}, and a column of the log has that name",
                hint="Export another topic, or read this one in Spark as bytes.",
            )
        self.skipped = 0
        self.notes: list[str] = []

    def write(self, log: OneCommitLog, partition: int, stop: int, writer: TableWriter) -> None:
        """Write the records of a partition below an offset. Raises OffsetGoneError."""
        for records in batches(log, self.topic, partition, None, stop):
            self.write_records(partition, records, writer)

    def write_records(self, partition: int, records: list[InputRecord], writer: TableWriter) -> None:
        """Write some records of a partition."""
        if rows := self._decoded(partition, records):
            writer.write(self._values(partition, *rows), f"{self.topic} partition {partition}")

    def _decoded(self, partition: int, records: list[InputRecord]) -> tuple[Any, Any, Any] | None:
        """The records that can be decoded, their events and their keys; None if there are none."""
        try:
            return records, *self._read(records)
        except _BAD:
            kept = [one for one in records if self._can_be_read(partition, one)]
            return (kept, *self._read(kept)) if kept else None

    def _read(self, records: list[InputRecord]) -> tuple[list[Any], list[Any]]:
        decode, key_of = self._events.decode, self._events.key_codec.decode
        keys = {one.key: None if one.key is None else key_of(one.key) for one in records}
        events = [None if value is None else decode(value) for _, _, _, value, _ in records]
        return events, [keys[one.key] for one in records]

    def _can_be_read(self, partition: int, record: InputRecord) -> bool:
        try:
            self._read([record])
        except _BAD as error:
            if not self.skipped:
                where = f"{self.topic} partition {partition} offset {record.offset}"
                self.notes.append(f"left out: {where}, and others like it, cannot be decoded: {error}")
            self.skipped += 1
            return False
        return True

    def _values(
        self, partition: int, records: list[InputRecord], events: list[Any], keys: list[Any]
    ) -> Values:
        shown = self._events.shown(events)
        return {
            **{name: [one.get(name) for one in shown] for name in self._fields},
            **key_values(self._keys, keys),
            _PARTITION: pa.repeat(pa.scalar(partition, pa.int64()), len(records)),
            _OFFSET: [one.offset for one in records],
            _TIME: pa.array([one.timestamp_ms for one in records], pa.timestamp("ms", "UTC")),
        }
