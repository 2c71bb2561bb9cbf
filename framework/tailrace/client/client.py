"""The client, for code that is not async. ``asynchronous`` has the same for async code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar, overload

from tailrace.client.sending import Sending
from tailrace.core.declare.actor import Actor
from tailrace.core.declare.app import App
from tailrace.core.declare.topic import Table, Topic, refuse_unless_table
from tailrace.core.durations import to_ms
from tailrace.core.errors import BadRecordError, UsageError
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.core.values.types import CODEC_ERRORS
from tailrace.history.reading.app_history import AppHistory
from tailrace.log.interface import StoredLog, TopicPartition
from tailrace.log.opening import open_log
from tailrace.serve.answers import Answering
from tailrace.serve.tables import committed, decoded, rows_from_log

E = TypeVar("E")
K = TypeVar("K")
A = TypeVar("A", bound=Actor)


class Read(NamedTuple, Generic[E]):
    """A committed record of a topic. ``event`` is None for the deletion of a table's key."""

    event: E | None
    key: bytes | None
    partition: int
    offset: int
    timestamp_ms: int


class Client:
    """Sends events to the topics of an app, reads committed records, and reads the state of its actors and the values of tables.

    ``log`` is a folder, or ``kafka://host:9092``, and must exist. One client serves any number of threads. It cannot be used in a
    process that was forked after it was made: make one there. It must be closed, or be used with ``with``.
    """

    def __init__(self, app: App, log: str | Path) -> None:
        self._plan = app.plan()
        self._log: StoredLog = open_log(log)
        self._sending = Sending(self._log)
        self._process, self._mutex = os.getpid(), Lock()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the connection. Sends of other threads end first; a later one is refused."""
        self._sending.close()
        self._log.close()

    def send(
        self, topic: Topic[E, Any], *events: E, timestamp_ms: int | datetime | None = None
    ) -> dict[int, int]:
        """Append events, all or none of them, and return when they are committed.

        The records have the timestamp ``timestamp_ms`` (default: the time of the event, or of the clock if it has none). Threads
        that send at the same time share commits. Returns, by partition that was written, an offset after them: for ``read(after=)``.

        Raises:
            UsageError: The topic is not one of the app's, or is a table that the app writes itself; or an event is not of its type.
            BadRecordError: The time of an event is none that a service would take.
            RecordTooLargeError, UnknownTopicError, LogUnavailableError: Nothing was appended.
            CommitUnknownError: They are all in the log, or none of them is.
        """
        return self.commit(topic, self.outputs(topic, events, timestamp_ms))

    def outputs(
        self, topic: Topic[E, Any], events: Iterable[E], timestamp_ms: int | datetime | None
    ) -> list[Output]:
        """The records of events, for ``commit``. Raises what ``send`` raises before it appends."""
        self._check(topic)
        self._plan.refuse_own_table(topic)
        given_ms = None if timestamp_ms is None else to_ms(timestamp_ms)
        return [self._output(topic, one, given_ms) for one in events]

    def commit(self, topic: Topic[Any, Any], outputs: Sequence[Output]) -> dict[int, int]:
        """Append records of a topic. See ``send``."""
        ends: Mapping[TopicPartition, int] = self._sending.send(outputs) if outputs else {}
        return {place.partition: end for place, end in ends.items() if place.topic == topic.name}

    def read(
        self, topic: Topic[E, Any], *, after: Mapping[int, int] | None = None, wait_s: float = 0.0
    ) -> Iterator[Read[E]]:
        """The committed records of a topic, partition by partition in the order of their offsets, up to what is there.

        ``after``: by partition, the first offset to read (default: the oldest kept). To continue later, give for each partition the
        offset of its last record plus one. ``wait_s``: how long to wait for the first record if there is none.

        Raises:
            UsageError: The topic is not one of the app's.
            BadRecordError: A record cannot be decoded. The message names it; continue after it.
            OffsetGoneError: The log has deleted records after this position.
        """
        self._check(topic)
        starts = dict(after or {})
        places = [TopicPartition(topic.name, number) for number in range(self._log.partitions(topic.name))]
        reader = self._log.reader(
            {one: starts.get(one.partition, self._log.start_offset(*one)) for one in places}
        )
        try:
            until_s, found = time.monotonic() + wait_s, False
            while True:
                for place in places:
                    for one in chain.from_iterable(some for some, _ in committed(reader, place)):
                        found = True
                        yield self._decoded(topic, place, one)
                left_s = until_s - time.monotonic()
                if found or left_s <= 0:
                    return
                reader.wait(left_s)
        finally:
            reader.close()

    @overload
    def get(self, of: Table[E, K], key: K) -> E | None: ...
    @overload
    def get(self, of: type[A], key: Any) -> A | None: ...
    def get(self, of: Topic[Any, Any] | type[Any], key: Any) -> Any:
        """The committed instance of a key of an actor, or the last event of a key of a table; None if there is none.

        It is a copy: changes of it have no effect. Each call reads a partition; for many, use `tailrace serve`.

        Raises:
            UsageError: The actor or table is not one of the app's.
            UnknownTopicError: The app has not run on this log, or the table is not there.
            IncompatibleStateError: Another version of the app has written the state.
            BadRecordError: The last record of the key is no event of the table; or a record has another key than its event.
            WrongPartitionError: A record of the table is not in the partition of its key by murmur2.
        """
        if isinstance(of, Topic):
            self._check(of)
            refuse_unless_table(of, "get was given")
            encoded = of.key_codec.encode(key)
            with self._mutex:
                rows, _ = rows_from_log(self._plan.app, self._log, of, encoded)
            record = rows.last(encoded)
            return None if record is None else decoded(of, rows.place, record)
        self._check_process()
        plan = self._plan.actor_of(of)
        partition = partition_of(plan.key_codec.encode(key), self._plan.partitions)
        with self._mutex:
            found = AppHistory(self._plan, self._log).committed(partition, with_rows=True)
        if found.cut is None or found.rows is None:
            return None
        answering = Answering(self._plan, partition, found.rows)
        return answering.instance(of, key, found.cut, time.time_ns() // 1_000_000)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError(
                "this client was made in another process, which was forked",
                hint="Make a client after the fork, in each process.",
            )

    def _check(self, topic: Topic[Any, Any]) -> None:
        self._check_process()
        if self._plan.topics.get(getattr(topic, "name", None) or "") is not topic:
            names = ", ".join(sorted(self._plan.topics)) or "none"
            raise UsageError(
                f"{topic!r} is not a topic of the app {self._plan.app!r}", hint=f"Its topics: {names}."
            )

    def _output(self, topic: Topic[Any, Any], event: Any, given_ms: int | None) -> Output:
        if type(event) not in topic.types:
            raise UsageError(
                f"{type(event).__name__} was sent to {topic.name!r}, which holds {topic.type_name}",
                hint="Send events of the declared type.",
            )
        now_ms = time.time_ns() // 1_000_000
        try:
            value = topic.encode(event)
        except CODEC_ERRORS as error:
            raise topic.codec.unwritable(event, error) from error
        try:
            topic.decode(value)  # types are not checked where an event is made
        except CODEC_ERRORS as error:
            raise UsageError(f"{event!r:.200} is no {topic.type_name}: {error}") from error
        time_ms = topic.checked_time(event, now_ms)
        at_ms = next(one for one in (given_ms, time_ms, now_ms) if one is not None)
        return Output(topic.name, topic.encode_key(event), value, at_ms)

    def _decoded(self, topic: Topic[Any, Any], place: TopicPartition, record: InputRecord) -> Read[Any]:
        event = None
        if record.value is not None:
            try:
                event = decoded(topic, place, record)
            except BadRecordError as error:
                error.hint = f"To continue after it, give after={{{place.partition}: {record.offset + 1}}}."
                raise
        return Read(event, record.key, place.partition, record.offset, record.timestamp_ms)
