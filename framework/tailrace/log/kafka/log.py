"""The public class of the log on Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

from tailrace.core.errors import LogUnavailableError, UsageError
from tailrace.core.records import CHANNEL, Output
from tailrace.log.interface import Ends, TopicPartition, TopicSettings
from tailrace.log.kafka.cluster import WATERMARKS, Cluster
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.library import Consumer
from tailrace.log.kafka.membership import Membership
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.watermarks import decode
from tailrace.log.kafka.writer import KafkaWriter
from tailrace.log.routing import Router

_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How a process uses a cluster."""

    settings: Mapping[str, str] | None = None
    """Settings of librdkafka, see ``connection``."""
    max_record_bytes: int = 1 << 20
    """Size limit of an event, key and value together. Records of state and tape are limited by their topics only."""
    patience_s: float = 60.0
    """For how long a call waits for brokers that do not answer."""
    hidden_s: float = 10.0
    """How long a reader of history waits for the end of a transaction that hides records."""
    group: str = "tailrace"
    """The consumer group that readers name to the brokers. They commit nothing in it."""


class KafkaLog:
    """The topics of a Kafka cluster as a log; implements ``tailrace.log.Log``. ``url`` is ``kafka://host:port,…``.

    Nothing is asked of the brokers before the first call.

    Raises:
        UsageError: The URL or a setting is wrong.
        MissingExtraError: confluent-kafka is not installed.
    """

    def __init__(self, url: str, options: KafkaOptions | None = None) -> None:
        self.options = options = options or KafkaOptions()
        self._connection = Connection(url, options.settings)
        self._cluster = Cluster(self._connection, options.patience_s)
        self.check_owned: Callable[[], None] = lambda: None
        """Called by ``writer`` right before it takes an id over; may raise."""
        self._mutex = threading.Lock()
        self._outsiders: dict[str, Consumer] = {}
        """By group, a consumer that is no member, for its offsets and metadata."""
        self._joined: dict[str, Membership] = {}
        self._followed: set[str] = set()
        self._commits = 0

    def __str__(self) -> str:
        return str(self._connection)

    # --- topics and positions

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        """See ``Log.create_topic``."""
        if topic.endswith(WATERMARKS):
            raise UsageError(
                f"names that end with {WATERMARKS!r} are those of published watermarks",
                hint="Choose another.",
            )
        self._cluster.create(topic, settings)

    def topics(self) -> Mapping[str, TopicSettings]:
        """See ``Log.topics``."""
        names = [name for name in self._cluster.names() if not name.endswith(WATERMARKS)]
        return self._cluster.describe(names)

    def partitions(self, topic: str, /) -> int:
        """See ``Log.partitions``."""
        return self._cluster.known(topic).partitions

    def start_offset(self, topic: str, partition: int, /) -> int:
        """See ``Log.start_offset``."""
        place = TopicPartition(topic, partition)
        return self._cluster.starts([place])[place]

    def end_offset(self, topic: str, partition: int, /) -> int:
        """See ``Log.end_offset``."""
        place = TopicPartition(topic, partition)
        return self._cluster.ends([place])[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        """See ``Log.offset_at``."""
        return self._cluster.at_time(TopicPartition(topic, partition), timestamp_ms)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """See ``Log.committed_offsets``. Waits while a transaction that changes them is open."""
        return self._cluster.committed(self._outsider(group), group, partitions)

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        """See ``Log.publications``."""
        found: dict[tuple[str, str], int | None] = {}
        feeds = [name for name in self._cluster.names() if name.endswith(WATERMARKS)]
        places = [TopicPartition(name, 0) for name in feeds]
        starts, ends = self._cluster.starts(places), self._cluster.ends(places)
        reader = self.reader({place: starts[place] for place in places})
        try:
            for place in places:
                topic, at = place.topic.removesuffix(WATERMARKS), starts[place]
                while at < ends[place]:
                    fetched = reader.fetch(*place, 10_000)
                    for record in fetched.records:
                        one = decode(place.topic, record.key, record.value)
                        publisher, mark, channel = one.name.partition(CHANNEL)
                        found[f"{topic}{mark}{channel}", publisher] = one.watermark_ms
                    at = fetched.next_offset
                    if not fetched.records:
                        reader.wait(0.1)
        finally:
            reader.close()
        return found

    def ends(self, topics: Iterable[str], /) -> Ends:
        """See ``OneCommitLog.ends``. Kafka has no moment that covers all partitions, so one is found: the ends are read again and
        again until two readings in a row are equal, with no transaction open. Between the two, nothing was committed.

        Raises:
            UnknownTopicError: One of the topics does not exist.
            LogUnavailableError: There was no such moment for ``patience_s``, since services commit all the time.
        """
        wanted = list(topics)
        places = [
            TopicPartition(topic, number) for topic in wanted for number in range(self.partitions(topic))
        ]
        deadline = time.monotonic() + self.options.patience_s
        before: dict[TopicPartition, int] | None = None
        while True:
            found = self._cluster.ends(places)
            if found == before and found == self._cluster.stable_ends(places):
                break
            if before is not None and time.monotonic() > deadline:
                raise LogUnavailableError(
                    "the topics change all the time, and Kafka has no moment that covers all of them",
                    hint="Stop the services that write them, or take a moment with fewer commits.",
                )
            before = found
            time.sleep(_PAUSE_S)
        offsets: dict[str, list[int]] = {topic: [] for topic in wanted}
        for place in places:
            offsets[place.topic].append(found[place])
        return Ends(sum(found.values()), offsets)

    @property
    def identity(self) -> bytes:
        """See ``OneCommitLog.identity``: the cluster and the prefix."""
        return sha256(self._cluster.identity() + self._cluster.prefix.encode()).digest()[:16]

    def last_written(self) -> Mapping[TopicPartition, int]:
        """See ``OneCommitLog.last_written``: Kafka does not know."""
        return {}

    def uncleaned(self) -> AbstractContextManager[None]:
        """Does nothing: brokers compact when they want. So history is read while nothing is written; see ``ends``."""
        return nullcontext()

    # --- writers and readers

    def writer(self, transactional_id: str, /) -> KafkaWriter:
        """See ``Log.writer``."""
        self.check_owned()
        writer = KafkaWriter(
            self._connection.producer(transactional_id),
            transactional_id,
            self._cluster,
            self._router(),
            patience_s=self.options.patience_s,
            membership=self._metadata_of,
            follow=self._follow,
            committed=self._note_commit,
        )
        try:
            writer.take_over()
        except BaseException:
            writer.close()
            raise
        return writer

    def reader(self, positions: Mapping[TopicPartition, int], /, *, live: bool = False) -> KafkaReader:
        """See ``Log.reader``. The fetches of a ``live`` reader do not wait for records that are on their way."""
        reader = KafkaReader(
            self._connection.consumer(self.options.group),
            self._cluster,
            patience_s=self.options.patience_s,
            commits=lambda: self._commits,
            follow=self._follow,
            hidden_s=self.options.hidden_s,
            live=live,
        )
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def join(
        self,
        app: str,
        tape: str,
        *,
        given: Callable[[Collection[int]], None],
        taken: Callable[[Collection[int], bool], None],
    ) -> Membership:
        """Become a member of an app's group; see ``Membership``. Its metadata goes with all commits for the group."""
        made = Membership(self._connection, self._cluster, app, tape, given=given, taken=taken)
        self._joined[app] = made
        return made

    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append many records as an external producer, in one transaction. Returns the new end of each partition written."""
        writer = self.writer(f"append-{uuid4().hex}")
        try:
            writer.append(outputs, partition)
            return writer.commit()
        finally:
            writer.close()

    def close(self) -> None:
        """See ``Log.close``."""
        with self._mutex:
            outsiders, self._outsiders = self._outsiders, {}
        for consumer in outsiders.values():
            consumer.close()
        self._cluster.close()

    # --- internal

    def _router(self) -> Router:
        return Router(self.partitions, self.options.max_record_bytes)

    def _metadata_of(self, group: str) -> Any:
        """The metadata of a group. If this process is no member, commits are fenced by the transactional id alone."""
        if (joined := self._joined.get(group)) is not None:
            return joined.metadata()
        return self._outsider(group).consumer_group_metadata()

    def _outsider(self, group: str) -> Consumer:
        """A consumer of a group that is no member of it."""
        with self._mutex:
            found = self._outsiders.get(group)
            if found is None:
                found = self._outsiders[group] = self._connection.consumer(group)
            return found

    def _follow(self, topic: str) -> str:
        """The topic of a topic's watermarks, which is created if it does not exist."""
        name = f"{topic}{WATERMARKS}"
        if name not in self._followed:
            kept_ms = self._cluster.known(topic).retention_ms
            lag_ms = 2**63 - 1 if kept_ms is None else kept_ms
            self._cluster.create(
                name, TopicSettings(1, compacted=True), {"min.compaction.lag.ms": str(lag_ms)}
            )
            self._followed.add(name)
        return name

    def _note_commit(self) -> None:
        with self._mutex:
            self._commits += 1
