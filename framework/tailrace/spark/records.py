"""From records to record batches: the columns of a topic's table, made for those that are asked for and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.core.errors import BadRecordError, TailraceError, UsageError
from tailrace.core.records import InputRecord
from tailrace.log.interface import TopicPartition
from tailrace.spark.arrow import arrow_schema, batch, constant, pa
from tailrace.spark.columns import Column, complete, plain, struct_type
from tailrace.spark.events import TYPE, Events

ERROR, VALUE = "_error", "_value"
"""The columns that say why a record could not be decoded, and what was in it, where such records are kept."""
_NO_EVENT: dict[str, Any] = {}


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
        events: list[dict[str, Any]] = []
        errors: list[str | None] = []
        if self._decodes and self._events is not None:
            events, errors = self._decoded(self._events, records)
        values = [self._values(one, records, events, errors) for one in self._columns]
        try:
            return batch(self._schema, self._columns, values)
        except (OverflowError, pa.ArrowException) as error:
            raise self._refused(records, values, error) from error

    def _values(
        self,
        one: Column,
        records: list[InputRecord],
        events: list[dict[str, Any]],
        errors: list[str | None],
    ) -> Any:
        """A column: a sequence of plain values, or a ``pyarrow.Array``."""
        name, prefix = one.name, "" if self._events is None else "_"
        if name in self._fields:
            return [event.get(name) for event in events]
        if self._events is not None and name == ERROR:
            return errors
        if self._events is not None and name == VALUE:
            return [
                record.value if error is not None else None
                for record, error in zip(records, errors, strict=True)
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
                return [None if one.key is None else self._key(self._events, one) for one in records]
            case other:
                return [getattr(record, other) for record in records]

    def _key(self, events: Events, record: InputRecord) -> Any:
        try:
            return plain(events.key_codec.decode(record.key or b""))
        except BadRecordError as error:
            if self._keeps_undecodable:
                return None
            raise self._placed(error, record) from None

    def _decoded(
        self, events: Events, records: list[InputRecord]
    ) -> tuple[list[dict[str, Any]], list[str | None]]:
        """The events by their fields, and what is wrong with those that are none. A deletion has neither."""
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
                            mend='Write .option("undecodable", "keep") to have such records in the table, with the reason.',
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

    def _refused(
        self, records: list[InputRecord], values: Sequence[Sequence[Any]], error: Exception
    ) -> TailraceError:
        """Name the record and the column whose value does not fit."""
        for at, record in enumerate(records):
            for one, given, field in zip(self._columns, values, self._schema, strict=True):
                try:
                    pa.array(one.values([given[at]]), type=field.type)
                except (OverflowError, pa.ArrowException) as why:
                    said = BadRecordError(
                        f"the value of {one.name!r} does not fit a column of type {one.type.simpleString()}: {why}",
                        reason="wrong-type",
                        mend="Leave the column out, or read the topic as bytes.",
                    )
                    return self._placed(said, record)
        return UsageError(f"a batch could not be made: {error}")
