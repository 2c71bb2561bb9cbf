"""Converts records to record batches: only the requested columns of a topic's table are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tailrace.core.errors import BadRecordError, UsageError
from tailrace.core.records import InputRecord
from tailrace.log.interface import TopicPartition
from tailrace.spark.arrow import arrow_schema, batch, constant, pa
from tailrace.spark.columns import Column, complete, plain, struct_type
from tailrace.spark.events import TYPE, Events

ERROR, VALUE = "_error", "_value"
"""The columns with the reason why a record could not be decoded, and with its content."""
_NO_EVENT: dict[str, Any] = {}
_KEEP = 'Write .option("undecodable", "keep") to have such records in the table, with the reason'


class _Misfit(NamedTuple):
    """A value that does not fit the type of its column, by the numbers of column and row."""

    column: int
    row: int
    why: str


class _Rows:
    """Records with their events by field, their keys, and the reasons why one could not be decoded."""

    def __init__(self, records: list[InputRecord]) -> None:
        self.records = records
        self.events: list[dict[str, Any]] = []
        self.errors: list[str | None] = []
        self.keys: list[Any] = []

    def refuse(self, at: int, why: str) -> None:
        """Keep a record without its fields, with the first reason."""
        self.events[at] = _NO_EVENT
        if self.errors[at] is None:
            self.errors[at] = why


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
        values = [self._values(one, rows) for one in self._columns]
        try:
            return batch(self._schema, self._columns, values)
        except (OverflowError, pa.ArrowException) as error:
            misfits = [*self._misfits(values)]
            if not misfits:
                raise UsageError(f"a batch could not be made: {error}") from error
            if not self._keeps_undecodable:
                raise self._refused(records, misfits[0]) from error
        for one in misfits:
            values[one.column][one.row] = None
            rows.refuse(one.row, self._why(one))
        decoded = self._fields | {ERROR, VALUE}
        values = [
            self._values(one, rows) if one.name in decoded else given
            for one, given in zip(self._columns, values, strict=True)
        ]
        return batch(self._schema, self._columns, values)

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
                return constant(self._topic, len(records), pa.string())
            case "partition":
                return constant(self._partition, len(records), pa.int32())
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
                    rows.refuse(at, f"the key cannot be decoded: {error.what}")
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
                        said = BadRecordError(
                            f"the value cannot be decoded: {refused}",
                            hint=f"{_KEEP}.",
                        )
                        raise self._placed(said, record) from None
            found.append(event)
            errors.append(error)
        shown: list[Any] = plain(complete(found) if events.omits else found)
        if events.whole:
            return [_NO_EVENT if one is None else {"value": one} for one in shown], errors
        if events.several:
            for event, one in zip(found, shown, strict=True):
                if one is not None:
                    one[TYPE] = type(event).__name__
        return [_NO_EVENT if one is None else one for one in shown], errors

    def _placed(self, error: BadRecordError, record: InputRecord) -> BadRecordError:
        error.topic, error.partition, error.offset = self._topic, self._partition, record.offset
        error.key = record.key
        return error

    def _misfits(self, values: Sequence[Any]) -> Iterator[_Misfit]:
        """The values that do not fit their columns, in the order of columns."""
        for at, (one, given, field) in enumerate(zip(self._columns, values, self._schema, strict=True)):
            if isinstance(given, pa.Array):
                continue
            try:
                pa.array(one.values(given), type=field.type)
            except (OverflowError, pa.ArrowException):
                for row, value in enumerate(given):
                    try:
                        pa.array(one.values([value]), type=field.type)
                    except (OverflowError, pa.ArrowException) as why:
                        yield _Misfit(at, row, str(why))

    def _why(self, one: _Misfit) -> str:
        name, type_ = self._columns[one.column].name, self._columns[one.column].type
        return f"the value of {name!r} does not fit a column of type {type_.simpleString()}: {one.why}"

    def _refused(self, records: list[InputRecord], one: _Misfit) -> BadRecordError:
        """Name the record and the column whose value does not fit."""
        hint = "Leave the column out, or read the topic as bytes."
        if self._events is not None:
            hint = f"{_KEEP}, or leave the column out."
        return self._placed(BadRecordError(self._why(one), reason="wrong-type", hint=hint), records[one.row])
