"""Converts records to record batches: only the requested columns of a topic's table are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.core.errors import BadRecordError
from tailrace.core.records import InputRecord
from tailrace.history.reading.event_columns import NO_EVENT, Events
from tailrace.log.interface import TopicPartition
from tailrace.spark.columns import MisfitError, arrow_schema, batch, pa, struct_type
from tailrace.state.columns import Column, plain

ERROR, VALUE = "_error", "_value"
"""The columns with the reason why a record could not be decoded, and with its content."""


class _Rows:
    """Records with their events by field, their keys, and the reasons why one could not be decoded."""

    def __init__(self, records: list[InputRecord]) -> None:
        self.records = records
        self.events: list[dict[str, Any]] = []
        self.errors: list[str | None] = []
        self.keys: list[Any] = []


class Batches:
    """Makes batches of the records of one partition."""

    def __init__(
        self,
        place: TopicPartition,
        columns: Sequence[Column],
        events: Events | None,
        *,
        keeps_undecodable: bool,
    ) -> None:
        self._topic, self._partition = place
        self._columns = columns
        self._schema = arrow_schema(struct_type(columns))
        self._events = events
        self._keeps_undecodable = keeps_undecodable
        self._fields = frozenset(one.name for one in (events.columns if events is not None else ()))
        made = self._fields | {ERROR, VALUE}
        self._decodes = events is not None and any(one.name in made for one in columns)

    def batch(self, records: list[InputRecord]) -> Any:
        """A batch of these records."""
        rows = self._decoded(records)
        try:
            return batch(self._schema, self._columns, [self._values(one, rows) for one in self._columns])
        except MisfitError as error:
            hint = "Leave the column out, or read the topic as bytes."
            refused = BadRecordError(str(error), reason="wrong-type", hint=hint)
            raise self._placed(refused, records[error.row]) from error

    def _values(self, one: Column, rows: _Rows) -> Any:
        """A column: a list of plain values, or a ``pyarrow.Array``."""
        name, records = one.name, rows.records
        prefix = "" if self._events is None else "_"
        if name in self._fields:
            return [event.get(name) for event in rows.events]
        if self._events is not None and name == ERROR:
            return rows.errors
        if self._events is not None and name == VALUE:
            return [
                record.value if error is not None else None
                for record, error in zip(records, rows.errors, strict=True)
            ]
        match name.removeprefix(prefix):
            case "topic":
                return pa.repeat(pa.scalar(self._topic, pa.string()), len(records))
            case "partition":
                return pa.repeat(pa.scalar(self._partition, pa.int32()), len(records))
            case "timestamp":
                return [record.timestamp_ms * 1000 for record in records]  # microseconds, as Arrow takes them
            case "headers" if not any(one.headers for one in records):
                none: list[Any] = []
                return [none] * len(records)
            case "headers":
                return [[{"key": header, "value": value} for header, value in one.headers] for one in records]
            case "key" if self._events is not None:
                return rows.keys
            case other:
                return [getattr(record, other) for record in records]

    def _decoded(self, records: list[InputRecord]) -> _Rows:
        """The events by their fields, and the errors. A deletion has neither."""
        rows = _Rows(records)
        events = self._events
        if events is None:
            return rows
        if self._decodes:
            rows.events, rows.errors = self._decoded_events(events, records)
        if any(one.name == "_key" for one in self._columns):
            rows.keys = [None] * len(records)
            for at, record in enumerate(records):
                if record.key is None:
                    continue
                try:
                    rows.keys[at] = plain(events.key_codec.decode(record.key))
                except BadRecordError as error:
                    if not self._keeps_undecodable:
                        raise self._placed(error, record) from None
                    if self._decodes:
                        rows.events[at] = NO_EVENT
                        rows.errors[at] = rows.errors[at] or f"the key cannot be decoded: {error.what}"
        return rows

    def _decoded_events(
        self, events: Events, records: list[InputRecord]
    ) -> tuple[list[dict[str, Any]], list[str | None]]:
        decode, keeps = events.decode, self._keeps_undecodable
        found: list[Any] = []
        errors: list[str | None] = []
        for record in records:
            event, error = None, None
            if record.value is not None:
                try:
                    event = decode(record.value)
                except (msgspec.MsgspecError, ValueError) as refused:
                    error = str(refused)
                    if not keeps:
                        hint = 'To have such records in the table, write .option("undecodable", "keep").'
                        bad = BadRecordError(f"the value cannot be decoded: {refused}", hint=hint)
                        raise self._placed(bad, record) from None
            found.append(event)
            errors.append(error)
        return events.shown(found), errors

    def _placed(self, error: BadRecordError, record: InputRecord) -> BadRecordError:
        error.topic, error.partition, error.offset = self._topic, self._partition, record.offset
        error.key = record.key
        return error
