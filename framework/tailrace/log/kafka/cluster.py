"""What a cluster is asked outside of reading and writing: its topics with their settings, and positions.

Every question waits for its answer, and is asked again while no broker answers, for as long as ``patience_s``.

Topics that are created here keep all that the settings say: Kafka deletes by the records' timestamps, which are event times here,
so a topic without a limit has ``retention.ms=-1``. Brokers refuse timestamps of more than an hour in the future by default; event
times may be. Records of state and of the tape can be large.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from tailrace.core.errors import TailraceError, TopicMismatchError, UnknownTopicError, UsageError
from tailrace.core.suggestions import did_you_mean
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.failures import RETRIED, as_log_error, kafka_error
from tailrace.log.kafka.library import AdminClient, At, Consumer, admin_library, library

_R = TypeVar("_R")

WATERMARKS: Final = ".watermarks"
"""Ends the name of the topic with the watermarks that are published for another topic."""
_REQUEST_S: Final = 10.0
_PAUSE_S: Final = 0.1
_FOREVER: Final = "-1"
_LARGEST: Final = str(2**63 - 1)
_RECORD_BYTES: Final = 32 << 20
"""Size limit of a batch in topics that are created here."""
_POLICY, _RETENTION_MS, _RETENTION_BYTES = "cleanup.policy", "retention.ms", "retention.bytes"
_MAX_BYTES, _TIME_TYPE = "max.message.bytes", "message.timestamp.type"


class Cluster:
    """Asks one cluster; may be used from several threads."""

    def __init__(self, connection: Connection, patience_s: float) -> None:
        self._connection = connection
        self.prefix = connection.prefix
        self._patience_s = patience_s
        self._mutex = threading.Lock()
        self._client: AdminClient | None = None
        self._described: dict[str, TopicSettings] = {}

    # --- topics

    def create(self, topic: str, settings: TopicSettings, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, or check that one has these settings. Returns once all of its partitions have a leader.

        Raises:
            TopicMismatchError: It exists with other settings.
        """
        name = self.prefix + topic
        new = admin_library().NewTopic(
            name,
            num_partitions=settings.partitions,
            replication_factor=-1,
            config={**_config_of(settings), **(config or {})},
        )
        doing = f"creating the topic {topic!r}"

        def create() -> None:
            try:
                self._client_().create_topics([new], request_timeout=_REQUEST_S)[name].result()
            except Exception as error:
                if kafka_error(error).name() != "TOPIC_ALREADY_EXISTS":
                    raise

        if topic not in self.names():
            self._asked(create, doing, topic)
            self._await(topic, settings.partitions)
        known = self.describe([topic])[topic]
        if known != settings:
            raise TopicMismatchError(
                f"the topic exists with {known}; asked for was {settings}",
                topic=topic,
                hint="Use the settings it has, or another name.",
            )

    def names(self) -> dict[str, int]:
        """All topics with the prefix, but Kafka's own, and their numbers of partitions."""
        found = self._asked(lambda: self._client_().list_topics(timeout=_REQUEST_S), "listing topics")
        return {
            name.removeprefix(self.prefix): len(one.partitions)
            for name, one in found.topics.items()
            if name.startswith(self.prefix) and not name.startswith("__") and one.error is None
        }

    def describe(self, topics: Iterable[str]) -> dict[str, TopicSettings]:
        """The settings of topics, asked now.

        Raises:
            UnknownTopicError: One of them does not exist.
        """
        wanted, counts = list(topics), self.names()
        for topic in wanted:
            if topic not in counts:
                raise UnknownTopicError(
                    "there is no such topic in the log", topic=topic, hint=did_you_mean(topic, counts)
                )
        if not wanted:
            return {}
        resources = [
            admin_library().ConfigResource(admin_library().ResourceType.TOPIC, self.prefix + topic)
            for topic in wanted
        ]

        def ask() -> dict[str, dict[str, str]]:
            answers = self._client_().describe_configs(resources, request_timeout=_REQUEST_S)
            return {
                resource.name.removeprefix(self.prefix): {
                    name: entry.value for name, entry in answer.result().items()
                }
                for resource, answer in answers.items()
            }

        found = {
            topic: _described(counts[topic], config)
            for topic, config in self._asked(ask, "reading settings of topics").items()
        }
        self._described.update(found)
        return found

    def known(self, topic: str) -> TopicSettings:
        """The settings of a topic, asked once."""
        found = self._described.get(topic)
        return self.describe([topic])[topic] if found is None else found

    def _await(self, topic: str, partitions: int) -> None:
        """Wait until the brokers that answer know a new topic and its leaders."""
        deadline = time.monotonic() + self._patience_s
        places = [TopicPartition(topic, number) for number in range(partitions)]
        while True:
            if self.names().get(topic) == partitions:
                try:
                    self.ends(places)
                except TailraceError:
                    if time.monotonic() > deadline:
                        raise
                else:
                    return
            time.sleep(_PAUSE_S)

    # --- positions

    def starts(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The oldest offset kept in each partition."""
        return self._offsets(dict.fromkeys(places, admin_library().OffsetSpec.earliest()))

    def ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition, records of open transactions included."""
        return self._offsets(dict.fromkeys(places, admin_library().OffsetSpec.latest()))

    def stable_ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each partition before the first open transaction."""
        return self._offsets(dict.fromkeys(places, admin_library().OffsetSpec.latest()), committed=True)

    def at_time(self, place: TopicPartition, timestamp_ms: int) -> int:
        """The least offset whose record has this timestamp or a later one; the end if there is none."""
        if timestamp_ms <= 0:
            return self.starts([place])[place]
        found = self._offsets({place: admin_library().OffsetSpec.for_timestamp(timestamp_ms)})[place]
        return self.ends([place])[place] if found < 0 else found

    def ask_ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        """Ask for the ends of partitions, and return the futures of the answers, for who does not wait."""
        return self._ask(dict.fromkeys(places, admin_library().OffsetSpec.latest()))

    def _offsets(
        self, specs: Mapping[TopicPartition, Any], *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        if not specs:
            return {}

        def ask() -> dict[TopicPartition, int]:
            return {
                place: answer.result().offset
                for place, answer in self._ask(specs, committed=committed).items()
            }

        first = next(iter(specs))
        return self._asked(ask, "reading offsets", first.topic)

    def _ask(
        self, specs: Mapping[TopicPartition, Any], *, committed: bool = False
    ) -> dict[TopicPartition, Any]:
        level = library().IsolationLevel
        answers = self._client_().list_offsets(
            {self.at(place): spec for place, spec in specs.items()},
            isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
            request_timeout=_REQUEST_S,
        )
        return {self.place(at): answer for at, answer in answers.items()}

    def committed(
        self, consumer: Consumer, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The offsets of a group, once no transaction that changes them is open.

        A consumer of the group asks: the library crashes if a coordinator that restarts answers the same question of a client for
        administration (librdkafka 2.16).
        """
        wanted = [self.at(place) for place in places]
        if not wanted:
            return {}

        def ask() -> dict[TopicPartition, int]:
            found: dict[TopicPartition, int] = {}
            for one in consumer.committed(wanted, timeout=_REQUEST_S):
                if one.error is not None:
                    raise _Failed(one.error)
                if one.offset >= 0:
                    found[self.place(one)] = one.offset
            return found

        return self._asked(ask, f"reading the offsets of {group!r}")

    def at(self, place: TopicPartition, offset: int | None = None) -> At:
        """A partition, and an offset in it, for the library."""
        topic, partition = place
        if offset is None:
            return library().TopicPartition(self.prefix + topic, partition)
        return library().TopicPartition(self.prefix + topic, partition, offset)

    def place(self, at: At) -> TopicPartition:
        """The partition that the library names."""
        return TopicPartition(at.topic.removeprefix(self.prefix), at.partition)

    def identity(self) -> bytes:
        """The cluster's id."""
        found = self._asked(
            lambda: self._client_().describe_cluster(request_timeout=_REQUEST_S).result(),
            "asking for the cluster",
        )
        return str(found.cluster_id).encode()

    def close(self) -> None:
        """Release the client. It is opened again on demand."""
        with self._mutex:
            self._client = None

    # --- internal

    def _client_(self) -> AdminClient:
        with self._mutex:
            if self._client is None:
                self._client = self._connection.admin()
            return self._client

    def _asked(self, ask: Callable[[], _R], doing: str, topic: str | None = None) -> _R:
        """Ask until there is an answer, or until the patience is over."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return ask()
            except Exception as error:  # another is raised again
                found = kafka_error(error)
                if time.monotonic() > deadline or not (found.retriable() or found.name() in RETRIED):
                    raise as_log_error(found, doing, topic) from error
                if found.name() in _OLD_METADATA:
                    self.close()  # a new client asks for the leaders again; this one does not
            time.sleep(_PAUSE_S)


_OLD_METADATA: Final = frozenset({"FENCED_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH"})


class _Failed(Exception):
    """An error of one partition in an answer."""


def _config_of(settings: TopicSettings) -> dict[str, str]:
    if settings.compacted and (settings.retention_ms is not None or settings.retention_bytes is not None):
        raise UsageError(
            "a compacted topic keeps the last record of each key, however old",
            hint="Give a retention or compaction, not both.",
        )
    return {
        _POLICY: "compact" if settings.compacted else "delete",
        _RETENTION_MS: _FOREVER if settings.retention_ms is None else str(settings.retention_ms),
        _RETENTION_BYTES: _FOREVER if settings.retention_bytes is None else str(settings.retention_bytes),
        _TIME_TYPE: "CreateTime",
        "message.timestamp.before.max.ms": _LARGEST,
        "message.timestamp.after.max.ms": _LARGEST,
        _MAX_BYTES: str(_RECORD_BYTES),
    }


def _described(partitions: int, config: Mapping[str, str]) -> TopicSettings:
    policies = config[_POLICY].split(",")
    deletes = "delete" in policies
    limit_ms, limit_bytes = int(config[_RETENTION_MS]), int(config[_RETENTION_BYTES])
    return TopicSettings(
        partitions,
        compacted="compact" in policies,
        retention_ms=limit_ms if deletes and limit_ms >= 0 else None,
        retention_bytes=limit_bytes if deletes and limit_bytes >= 0 else None,
    )
