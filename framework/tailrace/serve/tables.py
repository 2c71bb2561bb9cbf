"""The last record of each key of a table, and how a follower keeps a copy of them.

Theory. A key is looked up in the partition that murmur2 gives to it. If a producer uses another partitioner or other record keys than those
of the events, its records are where nobody looks for them: "there is no value", and an older value, would be wrong. Such a record
leaves a mark, until its record key is deleted in its partition, or set by a record that is in place. A deletion of what is not there
leaves one, too. While a table has a mark, no key of it is looked up.

    row                 value
    ``k``, record key   offset, timestamp and value of the last record
    ``w``               the offset of a record without a key, as a mark
    ``x``, record key   the offset of a record that is not in place, as a mark
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tailrace.core.declare.topic import Topic
from tailrace.core.engine.failure import FAILURES, spelled_error
from tailrace.core.errors import (
    BadRecordError,
    OtherHistoryError,
    TailraceError,
    TopicMismatchError,
    WrongPartitionError,
)
from tailrace.core.records import InputRecord, RecordMark
from tailrace.core.storage import Store
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.json_values import as_json_value
from tailrace.core.values.models import ModelCodec
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.types import spell
from tailrace.history.provenance.judging import Same, judge_read
from tailrace.log.interface import Log, Reader, StoredLog, TopicPartition
from tailrace.log.opening import open_log
from tailrace.log.same_topics import check_same
from tailrace.log.threads import in_thread
from tailrace.runtime.restore import ChangelogEnd, Restore
from tailrace.serve.answers import Answer, Question, table_fields
from tailrace.serve.unanswered import FAILED, NOT_FOUND, Unanswered
from tailrace.state import MemoryStore
from tailrace.state.store_cut import StoreCut, decode_store_cut

E = TypeVar("E")

_AT_ONCE: Final = 1_000
_LOOK_S: Final = 5.0
_ROW, _NO_KEY, _MARK, _END = b"k", b"w", b"x", b"y"
_encode = msgspec.msgpack.encode
_decode_row: Final = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode
_decode_offset: Final = msgspec.msgpack.Decoder(int).decode


class _Source(msgspec.Struct, frozen=True, array_like=True):
    """What a copy is of, in the cut of its store."""

    log: bytes
    topic: str
    """Its id, see ``Log.topic_ids``."""
    declared: str
    """How the keys of the table were declared: marks depend on it."""
    last: RecordMark | None
    """The last record. A log that lost its end and has grown again has another one there."""


_decode_source: Final = msgspec.msgpack.Decoder(_Source).decode


class TableRows:
    """The last records of one partition of a table, in ``store``."""

    def __init__(self, app: str, topic: Topic[Any, Any], number: int, partitions: int, store: Store) -> None:
        self.place = TopicPartition(topic.name, number)
        self._app, self.topic, self._partitions, self._store = app, topic, partitions, store
        self._first_mark: tuple[bytes, bytes] | None = None
        """The row and the value of the first mark. None: there is none, or it has to be looked up."""
        self._looked = False

    def apply(self, records: Sequence[InputRecord], cut: bytes = b"") -> None:
        """Apply the next records, and store the cut with them."""
        changed: dict[bytes, bytes | None] = {}
        marks: dict[bytes, bytes | None] = {}
        for record in records:
            offset, timestamp_ms, key, value, _ = record
            if key is None:
                marks[_NO_KEY] = _encode(offset)
                continue
            row = _ROW + key
            if value is None:
                is_wrong = partition_of(key, self._partitions) != self.place.partition and (
                    (changed[row] if row in changed else self._store.get(row)) is None
                )
                changed[row] = None
            else:
                is_wrong = not self._is_in_place(key, record)
                changed[row] = _encode((offset, timestamp_ms, value))
            marks[_MARK + key] = _encode(offset) if is_wrong else None
        for (mark, found), before in zip(marks.items(), self._store.get_many([*marks]), strict=True):
            if found != before:
                changed[mark], self._looked = found, False
        self._store.write(changed, cut)

    def last(self, key: bytes) -> InputRecord | None:
        """The last record of a key; None if the key was never set, or is deleted."""
        held = self._store.get(_ROW + key)
        if held is None:
            return None
        offset, timestamp_ms, value = _decode_row(held)
        return InputRecord(offset, timestamp_ms, key, value)

    def doubt(self) -> TailraceError | None:
        """Why no key can be looked up for certain: a record is not where its event's key belongs. None if all are."""
        if not self._looked:
            self._first_mark = next(iter(self._store.scan(_NO_KEY, _END)), None)
            self._looked = True
        if self._first_mark is None:
            return None
        row, offset = self._first_mark
        key = row[len(_MARK) :]
        belongs = partition_of(key, self._partitions)
        is_here = row == _NO_KEY or belongs == self.place.partition
        hint, wrong = (
            "give each record the key of its event",
            f"the record key {key!r:.80} is not the key of the event",
        )
        if row == _NO_KEY:
            wrong = "a record has no key"
        elif not is_here:
            hint = "place records by murmur2: clients of librdkafka need partitioner=murmur2_random"
            wrong = f"the record key {key!r:.80} belongs to partition {belongs} by murmur2"
        return (BadRecordError if is_here else WrongPartitionError)(
            f"{wrong}, so no key of the table can be looked up for certain",
            topic=self.topic.name,
            partition=self.place.partition,
            offset=_decode_offset(offset),
            hint=f"The producer must {hint}. Delete this record key in its partition, and set the value again.",
        )

    def answer(self, question: Question, _cut: bytes, offset: int, age_ms: int, _now_ms: int) -> Answer:
        """The answer at a position, as ``Answering`` gives it. Raises Unanswered or BadRecordError."""
        topic, name = self.topic, question.name
        record = self.last(topic.key_codec.encode(question.key))
        if record is None:
            what = "the table has no value of this key"
            raise Unanswered(what, status=NOT_FOUND, topic=topic.name, key=question.key)
        event = decoded(topic, self.place, record)
        try:
            value: Any = as_json_value(event, getattr(topic.codec, "plain", None))
            if name and topic.codec.__class__ is ModelCodec:
                value = value.get(name)
            elif name:  # which a record may leave out
                own = {one.encode_name: one.name for one in event_fields(type(event)).values()}
                plain = getattr(event, own.get(name, ""), UNSET)
                value = None if plain is UNSET else as_json_value(plain)
        except TypeError as error:
            what = f"the value cannot be written as JSON: {error}"
            raise Unanswered(what, status=FAILED, topic=topic.name, key=question.key) from None
        return Answer(
            app=self._app,
            table=topic.name,
            key=as_json_value(question.key),
            partition=self.place.partition,
            offset=offset,
            age_ms=age_ms,
            timestamp_ms=record.timestamp_ms,
            value=value,
        )

    def _is_in_place(self, key: bytes, record: InputRecord) -> bool:
        """Whether a record has the key of its event, and is in its partition. One that cannot be decoded is an error when it is asked for."""
        if partition_of(key, self._partitions) != self.place.partition:
            return False
        try:
            event = decoded(self.topic, self.place, record)
        except BadRecordError:
            return True
        try:
            return self.topic.encode_key(event) == key
        except FAILURES:  # a function of the user may give the key
            return False


def rows_from_log(app: str, log: Log, topic: Topic[Any, Any], key: bytes) -> tuple[TableRows, int]:
    """The rows of the partition that a key belongs to, as of now, and the position after them. All partitions are read, as a record may
    be out of place. Raises BadRecordError or WrongPartitionError: one is; UnknownTopicError, OffsetGoneError, LogUnavailableError.
    """
    count = log.partitions(topic.name)
    own = partition_of(key, count)
    found: dict[int, tuple[TableRows, int]] = {}
    for number in range(count):
        rows = TableRows(app, topic, number, count, MemoryStore())
        position = log.start_offset(*rows.place)
        with closing(log.reader({rows.place: position})) as reader:
            for records, next_offset in committed(reader, rows.place):
                rows.apply(records)
                position = next_offset
        if (doubt := rows.doubt()) is not None:
            raise doubt
        if number == own:
            found[own] = rows, position
    return found[own]


def committed(reader: Reader, place: TopicPartition) -> Iterator[tuple[list[InputRecord], int]]:
    """The records of a partition up to its end as it is now, in batches, each with the position after it."""
    more = True
    while more:
        records, next_offset, more, _ = reader.fetch(*place, _AT_ONCE)
        yield records, next_offset


def decoded(topic: Topic[E, Any], place: TopicPartition, record: InputRecord) -> E:
    """The event of a record with a value. Raises BadRecordError: it is none of the topic's type."""
    try:
        event: E = topic.decode(record.value or b"")
        return event
    except (MemoryError, TailraceError):
        raise
    except FAILURES as error:  # a validator of the user may refuse it
        raise BadRecordError(
            f"the record is no {topic.type_name}: {spelled_error(error, bare=True)}",
            reason="undecodable",
            topic=place.topic,
            partition=place.partition,
            offset=record.offset,
        ) from error


@dataclass(frozen=True)
class TableRestore(Restore):
    """Keeps ``rows`` with the records of a table, as ``Restore`` keeps state for a ``Standby``.

    The core of the store's cut is the log and the topic that it is a copy of. If the log has another topic, or has lost records or its
    end, or may have dropped deletions since, the store is emptied and filled again.
    """

    log: StoredLog
    rows: TableRows = field(kw_only=True)
    looks: list[Future[object]] = field(default_factory=list[Future[object]])
    """The look at the topic that is under way."""

    @property
    def changelog(self) -> TopicPartition:
        """The partition of the table."""
        return self.rows.place

    def oldest(self) -> int:
        """See ``Restore``."""
        return self.log.start_offset(*self.changelog)

    def last_cut(self) -> None:
        """See ``Restore``: each record counts, as it is committed."""

    def count_whole(self, records: list[InputRecord]) -> int:
        """See ``Restore``."""
        return len(records)

    def held(self, end: ChangelogEnd, now_ms: int) -> Generator[bool, None, StoreCut]:
        """See ``Restore``. Raises TopicMismatchError: the table has another number of partitions than the app."""
        if (count := self.log.partitions(self.changelog.topic)) != self.plan.partitions:
            raise TopicMismatchError(
                f"the table has {count} partitions, and the app has {self.plan.partitions}",
                topic=self.changelog.topic,
                hint="Only `tailrace get` and a client can ask it.",
            )
        held = None if self.store.cut is None else decode_store_cut(self.store.cut)
        if held is not None and held.core is not None and not super().may_have_missed(held.at_end_ms, now_ms):
            source = _decode_source(held.core)
            with suppress(OtherHistoryError):
                self._look(source)
                is_same = source.declared == self._declared() and self._has(source.last)
                if is_same and self.oldest() <= held.changelog_position <= end.offset:
                    return held
        return (yield from self.emptied(now_ms))

    def emptied(self, now_ms: int) -> Generator[bool, None, StoreCut]:
        """See ``Restore``."""
        empty = yield from super().emptied(now_ms)
        topic = self.changelog.topic
        # A log that watches a topic is of no use any more when the topic is replaced.
        with closing(open_log(self.log.place, self.log.options)) as other:
            id_ = other.watch([topic]).get(topic, "")
        empty = replace(empty, core=_encode(_Source(self.log.identity, id_, self._declared(), None)))
        self.store.write({}, empty.encode())
        return empty

    def apply(
        self,
        records: list[InputRecord],
        held: StoreCut,
        position: int,
        toward: bytes | None,  # noqa: ARG002
    ) -> StoreCut:
        """See ``Restore``."""
        source = replace(_decode_source(held.core or b""), last=RecordMark.of(records[-1]))
        now = replace(held, changelog_position=position, core=_encode(source))
        self.rows.apply(records, now.encode())
        return now

    def is_replaced(self) -> bool:
        """See ``Restore``: a reader does not notice it. It is looked every few seconds."""
        is_replaced = False
        if self.looks and self.looks[0].done():
            is_replaced = isinstance(self.looks.pop().exception(), OtherHistoryError)
        if not self.looks:
            source = _decode_source(decode_store_cut(self.store.cut or b"").core or b"")
            self.looks.append(in_thread("tailrace-look", lambda: self._look(source, _LOOK_S)))
        return is_replaced

    def _look(self, source: _Source, pause_s: float = 0.0) -> None:
        """Raises OtherHistoryError."""
        time.sleep(pause_s)
        if source.log != self.log.identity:
            raise OtherHistoryError("the log is another one", why="topic", topic=self.changelog.topic)
        check_same(self.log, {self.changelog.topic: source.topic})
        self.log.topics()  # what was known of one is forgotten if it has other partitions now
        if self.log.partitions(self.changelog.topic) != self.plan.partitions:
            raise OtherHistoryError(
                "the table has more partitions now", why="topic", topic=self.changelog.topic
            )

    def _has(self, last: RecordMark | None) -> bool:
        """Whether the log has the last record of the copy. If it was compacted away, the copy is filled again."""
        return last is None or isinstance(judge_read(self.log, *self.changelog, last), Same)

    def _declared(self) -> str:
        topic = self.rows.topic
        return repr(
            (topic.type_name, topic.settings.key, spell(topic.key_codec.type), sorted(table_fields(topic)))
        )
