"""The two topics with the publications for a topic: created, read, and brought together again if one of them was replaced.

Theory. ``<topic>.publishers`` begins with a note (``watermarks.Begun``) that names the topic and its ``.watermarks`` by their ids.

    note                                   what is done
    names the topics that are there        nothing
    none: the topics were just created,    the last publications of all publishers are read from ``.watermarks`` and added, if they are
    or ``.publishers`` was replaced        missing here; then the note
    names another topic                    the same: publications of the other topic do not count
    names another ``.watermarks``          the same, and the note has the present ends of the topic: what was published before is lost,
                                           except for the last publication of each publisher

Two processes may do this at the same time. The later note has the later ends, which holds readers back the longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.core.errors import LogUnavailableError
from tailrace.core.records import InputRecord
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.failures import as_log_error, kafka_error
from tailrace.log.kafka.library import Producer
from tailrace.log.kafka.topic_ids import WatchedTopics
from tailrace.log.kafka.watermarks import (
    PUBLISHERS,
    WATERMARKS,
    Begun,
    Published,
    counted,
    decode,
    decode_begun,
    encode,
)

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
    begun: Begun | None
    """The note, if there is one."""


class Followed(NamedTuple):
    """A topic whose publications are read or written."""

    topic_id: str
    since: Sequence[int]
    """By partition, where the topic ended when earlier publications were lost."""
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
        """What topics say of publishers. ``feeds`` has the id of the topic that each is for; None if all publications count. For
        ``wait_s`` see ``all``.
        """
        last = {feed: dict[tuple[str, str | None], Published]() for feed in feeds}
        begun = dict[str, Begun]()
        for (feed, _), record in self.all(feeds, wait_s):
            if not record.key:
                begun[feed] = decode_begun(feed, record.offset, record.value)
                continue
            one, topic_id = decode(feed, record.offset, record.key, record.value), feeds[feed]
            said = one if topic_id is None else counted(one, topic_id)
            if said is not None:
                last[feed][said.name, said.prefix] = said
        return {feed: Last([*found.values()], begun.get(feed)) for feed, found in last.items()}

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
        last, begun = self.last({feeds[1]: ids[topic]})[feeds[1]]
        if begun is None or (begun.topic_id, begun.watermarks_id) != (ids[topic], ids[feeds[0]]):
            places = [TopicPartition(topic, number) for number in range(settings.partitions)]
            is_lost = begun is not None and begun.watermarks_id != ids[feeds[0]]
            ends = self._cluster.ends(places) if is_lost else dict.fromkeys(places, 0)
            begun = Begun(ids[topic], ids[feeds[0]], [ends[place] for place in places])
            known = {(one.name, one.prefix) for one in last}
            missing = [
                one
                for one in self.last({feeds[0]: ids[topic]})[feeds[0]].publications
                if (one.name, one.prefix) not in known
            ]
            self._write(feeds[1], [*map(encode, missing), begun.record()])
        return Followed(ids[topic], begun.since, feeds)

    def _write(self, feed: str, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        producer = self._producer({"enable.idempotence": True, "acks": "all"})
        try:
            for key, value in pairs:
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
