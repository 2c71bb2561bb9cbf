"""A topic as a table: a row for each record within the requested offsets, times and keys.

Without a declaration the columns are those of Spark's own source for Kafka: ``topic``, ``partition``,
``offset``, ``timestamp``, ``key``, ``value``, ``headers``. With one they are the fields of the event; the
places and times have a ``_`` before their names then, so that no field is in their way.

Records excluded by the options are not read: partitions without any of the requested keys, and offsets before
and after the range. Keys and times of the other records are checked before a value is decoded. Only requested
columns are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import datasource as ds
from pyspark.sql import types

from tailrace.core.errors import OffsetGoneError, OtherHistoryError, UnknownTopicError, UsageError
from tailrace.core.records import InputRecord
from tailrace.core.suggestions import did_you_mean
from tailrace.core.values.keys import key_codec_for
from tailrace.core.values.partitioner import partition_of
from tailrace.history.reading.event_columns import Events, events_of
from tailrace.history.reading.stretches import batches
from tailrace.log.interface import OneCommitLog, RecordFilter, TopicPartition
from tailrace.log.opening import open_past
from tailrace.log.same_topics import check_same
from tailrace.processes.app_loading import find_app
from tailrace.spark.columns import in_spark
from tailrace.spark.options import Options, reported
from tailrace.spark.records import ERROR, VALUE, Batches
from tailrace.state.columns import Column

AT_ONCE = 10_000
"""Records in a batch."""
PER_TASK = 500_000
"""Default number of offsets that one task of Spark reads."""

ANSWER_S = 30.0
LOAD_AGAIN = "Load the table again to read what is there now; for all of it, leave startingOffsets and endingOffsets out."

_HEADERS = types.ArrayType(
    types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
)


@dataclass(frozen=True, slots=True)
class Range:
    """The whole numbers from ``start`` up to, without, ``stop``."""

    start: int = -(1 << 63)
    stop: int = (1 << 63) - 1


ALL = Range()


@dataclass(frozen=True)
class Slice(ds.InputPartition):
    """The slice of one task of Spark: some offsets of a partition."""

    partition: int
    start: int
    stop: int


def _events(options: Options, topic: str) -> Events | None:
    """How a topic is read; None without an app: then keys and values are bytes."""
    if "app" not in options:
        options.refuse("undecodable", because="values are read as bytes without app")
        return None
    try:
        found = events_of(find_app(options.required("app")).plan(), topic)
    except UnknownTopicError as error:
        error.hint = f"{error.hint} Without the option app, the topic is read as bytes."
        raise
    return found._replace(key=in_spark(found.key), columns=tuple(map(in_spark, found.columns)))


class TopicTable:
    """A topic with its columns, by the options.
    Raises TailraceError: an option is wrong, or names something that does not exist.
    """

    def __init__(self, options: Options) -> None:
        options.refuse("actor", "field", "table", "id", because="it belongs to a snapshot, but this is a log")
        self.options = options
        self.past = options.past()
        self.topic = options.required("topic")
        self.events = _events(options, self.topic)
        self.partitioned = self.events is not None and self.events.partitioned
        self.per_task = options.count("recordsPerTask", PER_TASK)
        self.keeps_undecodable = (
            self.events is not None and options.one_of("undecodable", "fail", "keep") == "keep"
        )
        prefix = "" if self.events is None else "_"
        all_columns = self._all_columns(prefix)
        taken: set[str] = set()
        for one in all_columns:
            if one.name in taken:
                raise UsageError(
                    f"the events have a field {one.name!r}, and a column of the log has that name",
                    hint="Read the topic as bytes, without app.",
                )
            taken.add(one.name)
        self.columns = chosen(all_columns, options.names("columns"))
        if self.keeps_undecodable and all(one.name != ERROR for one in self.columns):
            raise UsageError(
                f"undecodable is keep, and columns leaves out {ERROR!r}: then no column would show which "
                "rows are incomplete",
                hint=f"Add {ERROR} to columns.",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # An app's decoders stay where they are: a worker makes its own.
        return TopicTable, (self.options,)

    def _all_columns(self, prefix: str) -> list[Column]:
        key = Column("key", types.BinaryType()) if self.events is None else self.events.key
        meta = [
            Column(f"{prefix}topic", types.StringType()),
            Column(f"{prefix}partition", types.IntegerType()),
            Column(f"{prefix}offset", types.LongType()),
            Column(f"{prefix}timestamp", types.TimestampType()),
            key,
        ]
        headers = Column(f"{prefix}headers", _HEADERS)
        if self.events is None:
            return [*meta, Column("value", types.BinaryType()), headers]
        kept = [Column(ERROR, types.StringType()), Column(VALUE, types.BinaryType())]
        return [*self.events.columns, *meta, headers, *(kept if self.keeps_undecodable else ())]

    def times_ms(self) -> Range:
        """The timestamps to read."""
        start_ms, stop_ms = self.options.instant_ms("startingTime"), self.options.instant_ms("endingTime")
        return Range(ALL.start if start_ms is None else start_ms, ALL.stop if stop_ms is None else stop_ms)

    def keys(self) -> frozenset[bytes] | None:
        """The keys to read, encoded; None for all."""
        return self.options.keys(key_codec_for(bytes) if self.events is None else self.events.key_codec)

    def reader(self) -> TopicReader:
        """Reads the table."""
        return TopicReader(self)

    def cut(self) -> dict[str, str]:
        """The offsets to read, of all partitions as of one commit: see ``cut``."""
        with closing(open_past(self.past)) as log:
            topic_id = self.check_topic(log)
            spans = self.spans(log, log.ends([self.topic]).offsets[self.topic])
            self.check_topic(log)
        starts = {str(number): span.start for number, span in enumerate(spans)}
        stops = {str(number): span.stop for number, span in enumerate(spans)}
        return {
            "topic": self.topic,
            **({"topicId": topic_id} if topic_id else {}),
            "startingOffsets": msgspec.json.encode(starts).decode(),
            "endingOffsets": msgspec.json.encode(stops).decode(),
        }

    def check_topic(self, log: OneCommitLog) -> str:
        """The id of the topic in the log. Called before and after something is read.
        Raises OtherHistoryError: another topic has its name now.
        """
        id_, wanted = log.watch([self.topic]).get(self.topic, ""), self.options.get("topicId") or ""
        if wanted and "/" not in wanted:
            raise UsageError(f"topicId is {wanted!r}", hint="Take it from tailrace.spark.cut().")
        try:
            for one in (id_, wanted):
                check_same(log, {self.topic: one})
        except OtherHistoryError as error:
            raise OtherHistoryError(
                "the topic was deleted and created again since this DataFrame was loaded: its offsets mean "
                "other records now",
                why="topic",
                topic=self.topic,
                hint=LOAD_AGAIN,
            ) from error
        return id_

    def spans(self, log: OneCommitLog, ends: Sequence[int]) -> list[Range]:
        """The requested offsets of each partition."""
        first, last = (self.options.offsets(name) for name in ("startingOffsets", "endingOffsets"))
        for name, given in (("startingOffsets", first), ("endingOffsets", last)):
            unknown = set(given) - set(range(len(ends))) if isinstance(given, dict) else set[int]()
            if unknown:
                raise UsageError(
                    f"{name} names partition {min(unknown)} of {self.topic!r}",
                    hint=f"It has 0 to {len(ends) - 1}.",
                )
        found: list[Range] = []
        for number, end in enumerate(ends):
            kept = Range(log.start_offset(self.topic, number), end)
            asked = Range(_of(first, number, kept.start), _of(last, number, kept.stop))
            self._check(number, asked, kept)
            found.append(asked)
        return found

    def _check(self, number: int, asked: Range, kept: Range) -> None:
        """Offsets that were asked for by number have to be there: less would be read in silence otherwise."""
        for offset, said in ((asked.start, "first"), (asked.stop, "last")):
            if not kept.start <= offset <= kept.stop:
                raise OffsetGoneError(
                    f"the {said} offset that is asked for is not in the log, which holds {kept.start} to "
                    f"{kept.stop}",
                    topic=self.topic,
                    partition=number,
                    offset=offset,
                    hint=LOAD_AGAIN,
                )


def chosen(columns: Sequence[Column], names: Sequence[str]) -> list[Column]:
    """The columns of these names, in this order; all if none is named."""
    known = {one.name: one for one in columns}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"The columns are: {', '.join(known)}.")
            raise UsageError(f"columns: there is no column {name!r}", hint=hint)
    return [known[name] for name in names] or list(columns)


class TopicReader(ds.DataSourceReader):
    """Reads a topic at its cut; see the head of this file."""

    def __init__(self, table: TopicTable) -> None:
        self.table = table
        self.times_ms, self.keys = table.times_ms(), table.keys()

    # --- planning

    def partitions(self) -> list[ds.InputPartition]:
        """A slice for each task of Spark."""
        with reported(), closing(open_past(self.table.past)) as log:
            self.table.check_topic(log)
            found: list[ds.InputPartition] = [*self._slices(log)]
            self.table.check_topic(log)
            return found

    def _slices(self, log: OneCommitLog) -> Iterator[Slice]:
        table, start_ms = self.table, self.times_ms.start
        topic = table.topic
        # The cut is already chosen: a transaction that was opened since is behind it, and is not waited for.
        spans = table.spans(log, [log.end_offset(topic, number) for number in range(log.partitions(topic))])
        numbers = set(range(len(spans)))
        if self.keys is not None and table.partitioned:
            numbers &= {partition_of(key, len(spans)) for key in self.keys}
        for number in sorted(numbers):
            span = spans[number]
            if start_ms > ALL.start and span.start < span.stop:
                span = Range(max(span.start, log.offset_at(topic, number, start_ms)), span.stop)
            for start in range(span.start, span.stop, table.per_task):
                yield Slice(number, start, min(start + table.per_task, span.stop))

    def _wanted(self) -> RecordFilter:
        """The times and columns that are read."""
        made = {one.name for one in self.table.columns}
        names = {name for name in ("key", "headers") if {name, f"_{name}"} & made}
        if self.keys is not None:
            names.add("key")
        events = self.table.events
        if events is None:
            names |= made & {"value"}
        elif made & {ERROR, VALUE, *(one.name for one in events.columns)}:
            names |= {"key", "value"}  # the key to name a record by, should its value not be decoded
        return RecordFilter(self.times_ms.start, self.times_ms.stop, frozenset(names))

    # --- reading

    def read(self, partition: ds.InputPartition) -> Iterator[Any]:
        """The record batches of a slice."""
        if not isinstance(partition, Slice):
            return  # nothing is left to read: Spark makes one partition of its own
        with reported():
            yield from self._batches(partition)

    def _batches(self, partition: Slice) -> Iterator[Any]:
        with closing(open_past(self.table.past, self._wanted())) as log:
            try:
                self.table.check_topic(log)
                yield from self._read(log, partition)
                self.table.check_topic(log)
            except OffsetGoneError as error:
                error.hint = LOAD_AGAIN
                raise

    def _read(self, log: OneCommitLog, part: Slice) -> Iterator[Any]:
        table, place = self.table, TopicPartition(self.table.topic, part.partition)
        make = Batches(place, table.columns, table.events, keeps_undecodable=table.keeps_undecodable)
        for records in batches(
            log, *place, part.start, part.stop, whole=True, at_once=AT_ONCE, patience_s=ANSWER_S
        ):
            if found := self._kept(records):
                yield make.batch(found)

    def _kept(self, records: list[InputRecord]) -> list[InputRecord]:
        keys = self.keys
        if keys is not None:
            records = [one for one in records if one.key in keys]
        if self.times_ms != ALL:
            start, stop = self.times_ms.start, self.times_ms.stop
            records = [one for one in records if start <= one.timestamp_ms < stop]
        return records


def _of(given: int | Mapping[int, int] | None, number: int, default: int) -> int:
    if given is None:
        return default
    return given if isinstance(given, int) else given.get(number, default)
