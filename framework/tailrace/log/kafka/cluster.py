"""What a cluster is asked outside of reading and writing: its topics with their settings, and positions.

Every question waits for its answer, and is asked again while no broker answers, for as long as ``patience_s``. While a question waits
for a broker that is away, librdkafka keeps a processor busy (2.16; a request for metadata does not). So a question is short, and is
asked again only once a broker has answered such a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from tailrace.core.errors import LogUnavailableError, TailraceError, UnknownTopicError
from tailrace.log.interface import TopicPartition, TopicSettings
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.failures import CREDENTIALS, as_log_error, kafka_error, passes
from tailrace.log.kafka.library import AdminClient, At, Consumer, KafkaError, admin_library, library
from tailrace.log.kafka.topic_config import creation_config, described
from tailrace.log.options import NewTopics
from tailrace.log.threads import in_thread
from tailrace.log.topic_rules import check_existing, unknown_topic

_R = TypeVar("_R")

FAILED: Final = object()
"""The result of a question that has failed with an error which the caller expects."""
MOST_REQUEST_S: Final = 5.0
"""For how long one request is waited for, unless the patience is shorter."""
_PAUSE_S: Final = 0.1
_MOMENT_S: Final = 1.0
_NEEDS: Final[Mapping[str, tuple[str, str]]] = {
    "taking a transactional id over": ("__transaction_state", "transaction.state.log.replication.factor"),
    "reading the offsets": ("__consumer_offsets", "offsets.topic.replication.factor"),
}
"""By what is done: the topic of the brokers that it needs, which they make when it is first needed, and the setting of its replicas."""
_STUCK_S: Final = 6.0
"""How long after its own time-out a question counts as one that is never answered. See ``_RENEW_S`` for why it is no 10 s: both together
would be a heartbeat of some brokers, so that each question would meet the same moment.
"""
_RENEW_S: Final = 8.0
"""After so long without an answer another client asks: this one may have lost the addresses of all brokers, see ``reader``. It is no
multiple of the times after which brokers appear and disappear: a client made at a wrong moment must not be followed by another.
"""
_NO_OFFSET: Final = -1
"""What brokers answer if no record has the time that is asked for."""
_OLD_METADATA: Final = frozenset({"FENCED_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "UNKNOWN_LEADER_EPOCH"})
"""The client has asked a broker that is not the leader any more."""
_NOT_REACHED: Final = frozenset({"_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_TRANSPORT"})
"""No broker has answered."""


class Listed(NamedTuple):
    """What a broker says of its cluster."""

    brokers: int
    """Number of brokers that are up."""
    topics: dict[str, list[int]]
    """All topics with the prefix, but Kafka's own, with the number of replicas of each partition."""


class Cluster:
    """Asks one cluster; may be used from several threads."""

    def __init__(
        self, connection: Connection, patience_s: float, new_topics: NewTopics | None = None
    ) -> None:
        self._connection = connection
        self._new_topics = new_topics or NewTopics()
        self.prefix = connection.prefix
        self.outages = connection.outages
        self.patience_s = patience_s
        self._mutex = threading.Lock()
        self._client: AdminClient | None = None
        self._described: dict[str, TopicSettings] = {}
        self._answered = False
        """Whether a broker has ever answered."""

    @property
    def request_s(self) -> float:
        """For how long one request is waited for."""
        return min(MOST_REQUEST_S, self.patience_s)

    # --- topics

    def create(self, topic: str, settings: TopicSettings, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, or check that one has these settings. Returns once all of its partitions have a leader.
        Raises TopicMismatchError: it exists with other settings.
        """
        new = admin_library().NewTopic(
            self.prefix + topic,
            num_partitions=settings.partitions,
            replication_factor=self._new_topics.replication or -1,
            config={**creation_config(settings, self._new_topics), **(config or {})},
        )

        def create() -> None:
            self.results(self.client().create_topics, [new], unless="TOPIC_ALREADY_EXISTS")

        if topic not in self.names():
            self._check_not_hidden(topic)
            self.ask(create, f"creating the topic {topic!r}", topic)
            self._await(topic, settings.partitions)
        check_existing(topic, self._existing(topic), settings)

    def listed(self) -> Listed:
        """The brokers and topics that a broker knows now."""
        found = self.ask(lambda: self.client().list_topics(timeout=self.request_s), "listing topics")
        topics = {
            name.removeprefix(self.prefix): [len(part.replicas) for part in one.partitions.values()]
            for name, one in found.topics.items()
            if name.startswith(self.prefix) and not name.startswith("__") and one.error is None
        }
        return Listed(len(found.brokers), topics)

    def names(self) -> dict[str, int]:
        """The listed topics, and their numbers of partitions."""
        return {name: len(replicas) for name, replicas in self.listed().topics.items()}

    def describe(self, topics: Iterable[str]) -> dict[str, TopicSettings]:
        """The settings of topics, asked now. Raises UnknownTopicError: one of them does not exist."""
        wanted, counts = list(topics), self.names()
        for topic in wanted:
            if topic not in counts:
                self._check_not_hidden(topic)
                raise unknown_topic(topic, counts)
        found = {topic: described(counts[topic], config) for topic, config in self.config_of(wanted).items()}
        self._described.update(found)
        return found

    def config_of(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        kind, doing = admin_library().ResourceType.TOPIC, "reading settings of topics"
        resources = [admin_library().ConfigResource(kind, self.prefix + topic) for topic in topics]
        if not resources:
            return {}

        def ask() -> dict[str, dict[str, str]]:
            answers = self.client().describe_configs(resources, request_timeout=self.request_s)
            found = {resource.name.removeprefix(self.prefix): answer for resource, answer in answers.items()}
            return {
                name: {key: entry.value for key, entry in self._of_topic(answer, doing, name).items()}
                for name, answer in found.items()
            }

        return self.ask(ask, doing)

    def forget(self, topic: str) -> None:
        """Ask for the settings of a topic again: they were changed."""
        self._described.pop(topic, None)

    def forget_unless(self, counts: Mapping[str, int]) -> None:
        """Ask for the settings of topics again that have these numbers of partitions, and had others before."""
        for topic, count in counts.items():
            if (before := self._described.get(topic)) is not None and before.partitions != count:
                self.forget(topic)

    def known(self, topic: str) -> TopicSettings:
        """The settings of a topic, asked once."""
        found = self._described.get(topic)
        return self.describe([topic])[topic] if found is None else found

    def _existing(self, topic: str) -> TopicSettings:
        """The settings of a topic that exists, although a broker that has not heard of it yet may answer first."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return self.describe([topic])[topic]
            except UnknownTopicError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _check_not_hidden(self, topic: str) -> None:
        """Refuse a topic that the user may not see: it may exist."""
        with suppress(UnknownTopicError):
            self.ids([topic])

    def _await(self, topic: str, partitions: int) -> None:
        """Wait until the brokers that answer know a new topic and its leaders; not if another process has created it otherwise."""
        deadline = time.monotonic() + self.patience_s
        places = [TopicPartition(topic, number) for number in range(partitions)]
        while self.names().get(topic, partitions) == partitions:
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

    def delete_before(self, place: TopicPartition, offset: int) -> None:
        """Delete the records of a partition below an offset. The topic must not be compacted."""
        places = [self.at(place, offset)]
        self.ask(lambda: self.results(self.client().delete_records, places), "deleting records", place.topic)

    def ask_ends(
        self, places: Iterable[TopicPartition], *, stable: bool = False
    ) -> Future[dict[TopicPartition, int]]:
        """Ask for the ends, or stable ends, of partitions in another thread, so that the caller need not wait."""
        wanted, ask = list(places), self.stable_ends if stable else self.ends
        return in_thread("tailrace-ends", lambda: ask(wanted))

    def _offsets(
        self, specs: Mapping[TopicPartition, Any], *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        if not specs:
            return {}

        doing = "reading offsets"

        def ask() -> dict[TopicPartition, int]:
            answers = self._ask(specs, committed=committed)
            found = {
                place: int(self._of_topic(answer, doing, place.topic).offset)
                for place, answer in answers.items()
            }
            if min(found.values()) < _NO_OFFSET:
                # From a broker that has just started the library takes an answer without an offset, and without an error.
                raise library().KafkaException(
                    library().KafkaError(library().KafkaError.LEADER_NOT_AVAILABLE)
                )
            return found

        return self.ask(ask, doing, next(iter(specs)).topic)

    def _ask(
        self, specs: Mapping[TopicPartition, Any], *, committed: bool = False
    ) -> dict[TopicPartition, Any]:
        level = library().IsolationLevel
        answers = self.client().list_offsets(
            {self.at(place): spec for place, spec in specs.items()},
            isolation_level=level.READ_COMMITTED if committed else level.READ_UNCOMMITTED,
            request_timeout=self.request_s,
        )
        return {self.place(at): answer for at, answer in answers.items()}

    def _of_topic(self, answer: Any, doing: str, topic: str) -> Any:
        """The result about one topic of several. If it is denied, the error names the topic."""
        try:
            return self.answered(answer)
        except Exception as error:
            if (found := kafka_error(error)).name() != "TOPIC_AUTHORIZATION_FAILED":
                raise
            raise self.error(found, doing, topic) from error

    def committed(
        self, consumer: Consumer, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The offsets of a group, once no transaction that changes them is open."""
        found = self._committed(consumer, group, places)
        return {self.place(one): one.offset for one in found if one.offset >= 0}

    def notes(
        self, consumer: Consumer, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, str]:
        """The texts that a group keeps with its offsets, where there is one."""
        return {
            self.place(one): one.metadata for one in self._committed(consumer, group, places) if one.metadata
        }

    def _committed(self, consumer: Consumer, group: str, places: Iterable[TopicPartition]) -> list[At]:
        """What a group has committed.

        A consumer of the group asks: the library crashes if a coordinator that restarts answers the same question of a client for
        administration (librdkafka 2.16).
        """
        wanted = [self.at(place) for place in places]
        if not wanted:
            return []

        def ask() -> list[At]:
            try:
                answers: list[At] = consumer.committed(wanted, timeout=self.request_s)
            except Exception:
                # The group's coordinator denies it in a message, while the question waits.
                while (message := consumer.poll(0)) is not None:
                    if message.error().name() == "GROUP_AUTHORIZATION_FAILED":
                        raise library().KafkaException(message.error()) from None
                raise
            for one in answers:
                if one.error is not None:
                    raise library().KafkaException(one.error)
            return answers

        return self.ask(ask, f"reading the offsets of {group!r}", resource=self.prefix + group)

    def at(self, place: TopicPartition, offset: int | None = None, note: str = "") -> At:
        """A partition, an offset in it, and a text to store with a committed offset, for the library."""
        topic, partition = place
        given = () if offset is None else (offset, note)
        return library().TopicPartition(self.prefix + topic, partition, *given)

    def place(self, at: At) -> TopicPartition:
        """The partition that the library names."""
        return TopicPartition(at.topic.removeprefix(self.prefix), at.partition)

    def ids(
        self, topics: Iterable[str], asked: Mapping[str, Any] | None = None
    ) -> dict[str, tuple[str, int]]:
        """The ids of topics, and their numbers of partitions; ``asked`` are answers that may be here already.
        Raises UnknownTopicError: one of them does not exist.
        """
        found: dict[str, tuple[str, int]] = {}
        answers = asked
        for topic in (wanted := list(topics)):

            def ask(topic: str = topic) -> tuple[str, int]:
                nonlocal answers
                if answers is None:
                    answers = self.ask_ids(wanted)
                try:
                    one = self.answered(answers[topic])
                    return str(one.topic_id), len(one.partitions)
                except Exception:
                    answers = None
                    raise

            found[topic] = self.ask(ask, "asking for the id of a topic", topic)
        return found

    def ask_ids(self, topics: Iterable[str]) -> dict[str, Any]:
        """Futures of the descriptions of topics, which have their ids."""
        named = library().TopicCollection([self.prefix + topic for topic in topics])
        answers = self.client().describe_topics(named, request_timeout=self.request_s)
        return {name.removeprefix(self.prefix): answer for name, answer in answers.items()}

    def identity(self) -> bytes:
        """The cluster's id."""
        found = self.ask(
            lambda: self.answered(self.client().describe_cluster(request_timeout=self.request_s)),
            "asking for the cluster",
        )
        return str(found.cluster_id).encode()

    def close(self) -> None:
        """Release the client. It is opened again on demand."""
        with self._mutex:
            self._client = None

    # --- questions of others

    def client(self) -> AdminClient:
        """The client, for one question."""
        with self._mutex:
            if self._client is None:
                self._client = self._connection.admin()
            return self._client

    def answered(self, answer: Any, *, unless: str = "") -> Any:
        """The result of a question; ``FAILED`` if the error is the named one. librdkafka may never answer when brokers were lost (2.16,
        two of three), whatever the time-out of the question: then another client is to ask again.
        """
        try:
            return answer.result(self.request_s + _STUCK_S)
        except TimeoutError:
            self.close()
            raise library().KafkaException(library().KafkaError(library().KafkaError._TIMED_OUT)) from None
        except Exception as error:
            if kafka_error(error).name() != unless:
                raise
            return FAILED

    def results(
        self, ask: Callable[..., Mapping[Any, Any]], about: Sequence[Any], *, unless: str = ""
    ) -> list[Any]:
        """The results of a question about several things; see ``answered``."""
        answers = ask(about, request_timeout=self.request_s).values()
        return [self.answered(one, unless=unless) for one in answers]

    def ask(
        self, ask: Callable[[], _R], doing: str, topic: str | None = None, *, resource: str | None = None
    ) -> _R:
        """Ask until there is an answer, or until the patience is over; at most once, if the first connection is denied."""
        begun = renewed = time.monotonic()
        while True:
            asked_at = time.monotonic()
            try:
                answer = ask()
            except Exception as error:  # another is raised again
                found = kafka_error(error)
                is_late = time.monotonic() > begun + self.patience_s
                self.client().poll(0)  # errors of the connection arrive in a callback
                denial = self.outages.denial if passes(found) else None
                if denial is not None and not self._answered:
                    raise as_log_error(denial, f"connecting to {self._connection.addresses}") from error
                if is_late and denial is None and found.name() in _NOT_REACHED and not self._answered:
                    raise self._never_reached() from error
                if is_late or not passes(found):
                    raise self.error(found, doing, topic, resource=resource) from error
                if found.name() in _NOT_REACHED:
                    self.outages.waits(self._connection.addresses, begun + self.patience_s - time.monotonic())
                if found.name() in _OLD_METADATA or time.monotonic() > renewed + _RENEW_S:
                    self.close()  # a new client asks for brokers and leaders again; this one may not
                    renewed = time.monotonic()
            else:
                self._answered = True
                self.outages.answered(asked_at)
                return answer
            time.sleep(_PAUSE_S)
            self._wait_for_a_broker(begun + self.patience_s)

    def error(
        self,
        found: KafkaError,
        doing: str,
        topic: str | None = None,
        *,
        key: bytes | None = None,
        resource: str | None = None,
    ) -> TailraceError:
        """Our error for an error of Kafka, see ``failures.as_log_error``. ``resource`` is the topic by default."""
        if resource is None and topic is not None:
            resource = self.prefix + topic
        made, denial = as_log_error(found, doing, topic, key, resource=resource), self.outages.denial
        if isinstance(made, LogUnavailableError) and found.name() == "_TIMED_OUT":
            made.hint = self._unmade(doing) or made.hint
        if denial is None or not isinstance(made, LogUnavailableError):
            return made
        return LogUnavailableError(
            f"Kafka denies the connection: {denial.str()}, while {doing}", hint=CREDENTIALS
        )

    def _never_reached(self) -> LogUnavailableError:
        """No broker has ever answered: it may be the wrong address."""
        return LogUnavailableError(
            f"Kafka does not answer: no broker was reached at {self._connection.addresses} within {self.patience_s:g} s",
            hint="Check the address (--log), and that the brokers run. Each broker must also be reachable from here at the address that "
            "it advertises (advertised.listeners).",
        )

    def _unmade(self, doing: str) -> str:
        """A hint, if what has timed out needs a topic of the brokers that they do not show; else an empty one."""
        topic, setting = next((one for what, one in _NEEDS.items() if doing.startswith(what)), ("", ""))
        with suppress(library().KafkaException):
            found = self.client().list_topics(timeout=_MOMENT_S)
            if topic and topic not in found.topics:
                return (
                    f"The brokers have not made their topic {topic}, or do not show it to this user. They cannot make it if {setting} "
                    f"is larger than the number of brokers, of which {len(found.brokers)} {'is' if len(found.brokers) == 1 else 'are'} "
                    "up: lower it, or start more. Nothing committed is lost."
                )
        return ""

    def answers(self, timeout_s: float = _MOMENT_S) -> bool:
        """Whether a broker answers within this time."""
        try:
            self.client().list_topics(timeout=timeout_s)
        except Exception as error:  # noqa: BLE001  # another is raised again
            return not passes(kafka_error(error))
        return True

    def _wait_for_a_broker(self, deadline: float) -> None:
        while (left_s := deadline - time.monotonic()) > 0:
            if self.answers(min(left_s, MOST_REQUEST_S)):
                return
            time.sleep(_PAUSE_S)
