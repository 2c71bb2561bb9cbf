"""The two topics with the publications for a topic: created, and read. Whether they belong together is checked.

``<topic>.publishers`` begins with a note of the id of ``<topic>.watermarks``. The process that creates the two topics adds it; if two
processes do so at the same time, both write the same. Without this note, or with another id, one of the two was deleted and created again:
what was published before is not known any more. That is refused; both have to be deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.core.errors import LogUnavailableError, OtherHistoryError
from tailrace.core.records import InputRecord
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.failures import as_log_error, kafka_error
from tailrace.log.kafka.library import Producer
from tailrace.log.kafka.topic_ids import WatchedTopics
from tailrace.log.kafka.watermarks import NOTE_KEY, PUBLISHERS, WATERMARKS, Published, counted, decode

_COMPACTED_MS = 3_600_000
"""After which a publication that is not the last of its publisher is to be gone."""

_NAP_S = 0.02

Records = Callable[[Mapping[TopicPartition, tuple[int, int]]], Iterator[tuple[TopicPartition, InputRecord]]]
"""Reads the records of partitions, of each from one offset to another, which is no later than its stable end. A partition after the
other, by one consumer: it takes a moment until the first of its records arrive.
"""


class Last(NamedTuple):
    """What a topic says of publishers."""

    publications: list[Published]
    """The last of each."""
    watermarks_id: str | None
    """The id in the note, if there is one."""


class Followed(NamedTuple):
    """A topic whose publications are read or written."""

    topic_id: str
    feeds: tuple[str, str]
    """The topics with all publications, and with the last of each publisher."""


class FollowedTopics:
    """The topics that a process follows. ``producer`` makes a producer with the given settings."""

    def __init__(
        self,
        cluster: Cluster,
        topics: WatchedTopics,
        producer: Callable[[Mapping[str, Any]], Producer],
        records: Records,
    ) -> None:
        self._cluster, self._topics, self._producer, self._records = cluster, topics, producer, records
        self._known: dict[str, Followed] = {}

    def follow(self, topic: str) -> Followed:
        """A topic, whose two topics of publications are created if they do not exist."""
        if topic not in self._known:
            self._known[topic] = self._followed(topic)
        return self._known[topic]

    def last(self, feeds: Mapping[str, str | None], wait_s: float = 0.0) -> dict[str, Last]:
        """What topics say of publishers. For ``wait_s`` see ``all``.

        ``feeds`` has the id of the topic that each is for; None if all publications count.
        """
        last = {feed: dict[tuple[str, str | None], Published]() for feed in feeds}
        noted = dict[str, str]()
        for (feed, _), record in self.all(feeds, wait_s):
            if record.key == NOTE_KEY:
                noted[feed] = (record.value or b"").decode(errors="replace")
                continue
            one, topic_id = decode(feed, record.offset, record.key, record.value), feeds[feed]
            said = one if topic_id is None else counted(one, topic_id)
            if said is not None:
                last[feed][said.name, said.prefix] = said
        return {feed: Last([*found.values()], noted.get(feed)) for feed, found in last.items()}

    def all(self, feeds: Iterable[str], wait_s: float = 0.0) -> Iterator[tuple[TopicPartition, InputRecord]]:
        """The records of topics of publications, up to their stable ends.

        A commit returns before its markers are at all partitions, and hides its records until then. ``wait_s`` is for how long to wait
        for the markers of what is there now; a transaction that is open longer is left out.
        """
        places = [TopicPartition(feed, 0) for feed in feeds]
        if not places:
            return iter(())
        starts, now = self._cluster.starts(places), self._cluster.ends(places) if wait_s else {}
        until_s = time.monotonic() + wait_s
        ends = self._cluster.stable_ends(places)
        while any(ends[place] < end for place, end in now.items()) and time.monotonic() < until_s:
            time.sleep(_NAP_S)
            ends = self._cluster.stable_ends(places)
        return self._records({place: (starts[place], ends[place]) for place in places})

    def _followed(self, topic: str) -> Followed:
        settings = self._cluster.known(topic)
        lag_ms = 2**63 - 1 if settings.retention_ms is None else settings.retention_ms
        feeds = f"{topic}{WATERMARKS}", f"{topic}{PUBLISHERS}"
        configs = ({"min.compaction.lag.ms": str(lag_ms)}, {"max.compaction.lag.ms": str(_COMPACTED_MS)})
        for name, config in zip(feeds, configs, strict=True):
            self._cluster.create(name, TopicSettings(1, compacted=True), config)
        ids = self._topics.ids([topic, *feeds])
        place = TopicPartition(feeds[0], 0)
        # Asked first: another process writes the note before it publishes.
        is_empty = not self._cluster.ends([place])[place]
        noted = self.last({feeds[1]: ids[topic]})[feeds[1]].watermarks_id
        if noted is None and is_empty:
            self._write(feeds[1], NOTE_KEY, ids[feeds[0]].encode())
        elif noted != ids[feeds[0]]:
            raise OtherHistoryError(
                f"{feeds[0]!r} or {feeds[1]!r} was deleted and created again, and with it what was published about {topic!r}",
                why="topic",
                topic=feeds[0],
                hint=f"Stop the services that write to {topic!r} or read it, delete both topics, and start the services again.",
            )
        return Followed(ids[topic], feeds)

    def _write(self, feed: str, key: bytes, value: bytes) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        producer = self._producer({})
        try:
            producer.produce(
                f"{self._cluster.prefix}{feed}",
                value,
                key,
                0,
                timestamp=time.time_ns() // 1_000_000,
                on_delivery=delivered,
            )
            left = producer.flush(self._cluster.patience_s)
        except Exception as error:
            raise as_log_error(kafka_error(error), "publishing watermarks", feed) from error
        if failed:
            raise as_log_error(failed[0], "publishing watermarks", feed)
        if left:
            raise LogUnavailableError(
                f"Kafka does not take a record of {feed!r}", hint="Look at the brokers."
            )
