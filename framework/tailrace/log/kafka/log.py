"""The public class of the log on Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.core.errors import UsageError
from tailrace.core.records import CHANNEL
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.cluster import WATERMARKS, Cluster
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.library import Consumer
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.watermarks import decode
from tailrace.log.kafka.writer import KafkaWriter
from tailrace.log.routing import Router


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How a process uses a cluster."""

    settings: Mapping[str, str] | None = None
    """Settings of librdkafka, see ``connection``."""
    max_record_bytes: int = 1 << 20
    """Size limit of an event, key and value together. Records of state and tape are limited by their topics only."""
    patience_s: float = 60.0
    """For how long a call waits for brokers that do not answer."""
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
        self._members: dict[str, Consumer] = {}
        """By group, a consumer that is no member, for its metadata."""
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
        return {name: one.settings for name, one in self._cluster.describe(names).items()}

    def partitions(self, topic: str, /) -> int:
        """See ``Log.partitions``."""
        return self._cluster.known(topic).settings.partitions

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
        return self._cluster.committed(group, partitions)

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
            membership=self._membership,
            follow=self._follow,
            committed=self._note_commit,
        )
        try:
            writer.take_over()
        except BaseException:
            writer.close()
            raise
        return writer

    def reader(self, positions: Mapping[TopicPartition, int], /) -> KafkaReader:
        """See ``Log.reader``."""
        reader = KafkaReader(
            self._connection.consumer(self.options.group),
            self._cluster,
            patience_s=self.options.patience_s,
            commits=lambda: self._commits,
            follow=self._follow,
        )
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def close(self) -> None:
        """See ``Log.close``."""
        with self._mutex:
            members, self._members = self._members, {}
        for consumer in members.values():
            consumer.close()
        self._cluster.close()

    # --- internal

    def _router(self) -> Router:
        return Router(self.partitions, self.options.max_record_bytes)

    def _membership(self, group: str) -> Any:
        """The metadata of a group without members: its commits are fenced by the transactional id alone."""
        with self._mutex:
            found = self._members.get(group)
            if found is None:
                found = self._members[group] = self._connection.consumer(group)
        return found.consumer_group_metadata()

    def _follow(self, topic: str) -> str:
        """The topic of a topic's watermarks, which is created if it does not exist."""
        name = f"{topic}{WATERMARKS}"
        if name not in self._followed:
            kept_ms = self._cluster.known(topic).settings.retention_ms
            lag_ms = 2**63 - 1 if kept_ms is None else kept_ms
            self._cluster.create(
                name, TopicSettings(1, compacted=True), {"min.compaction.lag.ms": str(lag_ms)}
            )
            self._followed.add(name)
        return name

    def _note_commit(self) -> None:
        with self._mutex:
            self._commits += 1
