"""A transaction on Kafka, and what to do when it fails.

A record is given to librdkafka as it comes, so most of a transaction is at the brokers before it is committed. A commit then

1. waits until all records are at the brokers, which gives their offsets;
2. appends the published watermarks, which name these offsets;
3. adds the offsets of the group;
4. commits, which decides everything at once.

Errors before step 4 leave the transaction open, to be aborted. In step 4 a time-out decides nothing: the coordinator may have taken
the request or not. So the commit is sent again until it is answered, and never aborted; ``CommitUnknownError`` is raised only if
there is no answer for ``patience_s``, or if the client has failed for good.

Kafka keeps no timestamp 0: librdkafka takes it for "now". It is written as -1, Kafka's "no timestamp", and read as 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from tailrace.core.errors import (
    CommitUnknownError,
    EventValueError,
    FencedError,
    LogUnavailableError,
    TailraceError,
)
from tailrace.core.records import CHANNEL, Output
from tailrace.log.interface import TopicPartition
from tailrace.log.kafka.cluster import WATERMARKS, Cluster
from tailrace.log.kafka.failures import Kind, as_log_error, kafka_error, kind_of
from tailrace.log.kafka.library import KafkaError, Message, Producer
from tailrace.log.kafka.watermarks import Published, encode
from tailrace.log.routing import Router

NO_TIMESTAMP: Final = -1
_REQUEST_S: Final = 10.0
_FLUSH_S: Final = 2.0
_PAUSE_S: Final = 0.05


class KafkaWriter:
    """A writer of a ``KafkaLog``; see ``tailrace.log.Writer``. It holds a producer.

    ``membership`` gives the metadata of the group that offsets are committed for; ``published`` prepares the topic of a topic's
    watermarks; ``committed`` is called after each commit.
    """

    def __init__(
        self,
        producer: Producer,
        transactional_id: str,
        cluster: Cluster,
        router: Router,
        *,
        patience_s: float,
        membership: Callable[[str], Any],
        follow: Callable[[str], str],
        committed: Callable[[], None],
    ) -> None:
        self.transactional_id = transactional_id
        self._producer = producer
        self._cluster = cluster
        self._router = router
        self._patience_s = patience_s
        self._membership = membership
        self._follow = follow
        self._committed = committed
        self._is_open = False
        self._ended: TailraceError | None = None
        """Why this writer is of no more use."""
        self._written: dict[TopicPartition, int] = {}
        """The last offset of the open transaction in each partition."""
        self._failed: Any = None
        """Why a record of the open transaction was not delivered."""
        self._topics: set[str] = set()
        """Topics with records in the open transaction."""
        self._ends: dict[str, list[int]] = {}
        """By topic with published watermarks, where this writer's records end."""
        self._last_ms: dict[str, int | None] = {}
        """By name, the last watermark that is not None."""

    def take_over(self) -> None:
        """Become the holder of the id: earlier holders are fenced, and what they left open is aborted."""
        self._try(lambda: self._producer.init_transactions(_REQUEST_S), "taking a transactional id over")

    def append(self, outputs: Iterable[Output], /, partition: int | None = None) -> None:
        """See ``Writer.append``."""
        self._enter()
        staged = self._router.split(outputs, partition)
        if staged:
            self._begin()
        for place, some in staged.items():
            self._produce(place, some)
        self._serve(self._producer.poll, 0)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        """See ``Writer.commit``."""
        self._enter()
        for name in watermarks or ():
            self._know(name.partition(CHANNEL)[0])
        if not (self._is_open or offsets or watermarks):
            return {}
        self._begin()
        self._flush()
        ends = {place: offset + 1 for place, offset in self._written.items()}
        if watermarks:
            self._publish(watermarks, ends)
        if offsets:
            positions = [self._cluster.at(place, offset) for place, offset in offsets.items()]
            self._try(
                lambda: self._producer.send_offsets_to_transaction(
                    positions, self._membership(group), _REQUEST_S
                ),
                "committing offsets",
            )
        self._decide()
        for place, end in ends.items():
            if place.topic in self._ends:
                self._ends[place.topic][place.partition] = end
        for name, mark in (watermarks or {}).items():
            if mark is not None:
                self._last_ms[name] = mark
        self._closed()
        self._committed()
        return ends

    def abort(self) -> None:
        """See ``Writer.abort``."""
        self._enter()
        if not self._is_open:
            return
        # Records that were never sent are dropped by librdkafka, and a coordinator that has heard of none of a transaction's records
        # refuses to end it (confluentinc/librdkafka#4849).
        try:
            self._serve(self._producer.flush, _FLUSH_S)
        except TailraceError:
            self._enter()
        self._try(lambda: self._producer.abort_transaction(_REQUEST_S), "aborting a transaction")
        self._closed()

    def close(self) -> None:
        """See ``Writer.close``."""
        if self._is_open and self._ended is None:
            with suppress(
                TailraceError
            ):  # the next holder aborts it, or the cluster after transaction.timeout.ms
                self.abort()
        if self._ended is None:
            self._ended = FencedError(
                f"the writer of {self.transactional_id!r} was closed", hint="Ask for another."
            )
        with suppress(SystemError):  # see _serve
            self._producer.purge()
            self._producer.close()

    # --- internal

    def _enter(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _begin(self) -> None:
        if not self._is_open:
            self._try(self._producer.begin_transaction, "beginning a transaction")
            self._is_open = True

    def _closed(self) -> None:
        """The transaction has ended."""
        self._is_open = False
        self._written = {}
        self._topics = set()
        self._failed = None

    def _produce(self, place: TopicPartition, outputs: list[Output]) -> None:
        produce, (topic, partition) = self._producer.produce, place
        name = self._cluster.prefix + topic
        last = len(outputs) - 1
        self._topics.add(topic)
        for number, (_, key, value, timestamp_ms, headers) in enumerate(outputs):
            at_ms = (
                timestamp_ms if timestamp_ms not in (0, NO_TIMESTAMP) else _written_zero(timestamp_ms, topic)
            )
            given = {"on_delivery": self._delivered} if number == last else {}
            while True:
                try:
                    produce(
                        name,
                        value,
                        key,
                        partition,
                        timestamp=at_ms,
                        headers=list(headers) if headers else None,
                        **given,
                    )
                except BufferError:
                    self._make_room()
                except Exception as error:  # noqa: BLE001  # another is raised again
                    self._fail(error, "appending", topic)
                else:
                    break

    def _make_room(self) -> None:
        """Wait until librdkafka has sent some of what it holds."""
        deadline = time.monotonic() + self._patience_s
        before = len(self._producer)
        while len(self._producer) >= before:
            self._serve(self._producer.poll, _PAUSE_S)
            if time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"Kafka takes no records: {before:,} wait to be sent", hint="Look at the brokers."
                )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self._failed is None and error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
                self._failed = (error, message.topic().removeprefix(self._cluster.prefix))
            return
        place = TopicPartition(message.topic().removeprefix(self._cluster.prefix), message.partition())
        self._written[place] = message.offset()

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Let the library call back, and raise the first failure."""
        try:
            waiting = call(timeout_s)
        except SystemError:
            # After a fatal error the library calls back while its own exception is set, and that is lost. A transaction is open,
            # so beginning one fails, with the fatal error if there is one.
            try:
                self._producer.begin_transaction()
            except Exception as cause:  # noqa: BLE001  # another is raised again
                self._fail(cause, "appending")
            raise
        except Exception as error:  # noqa: BLE001  # another is raised again
            self._fail(error, "appending")
        if self._failed is not None:
            failed, topic = self._failed
            self._raise(failed, "appending", topic)
        return waiting

    def _flush(self) -> None:
        """Wait until all records are at the brokers."""
        deadline = time.monotonic() + self._patience_s
        while self._serve(self._producer.flush, _REQUEST_S):
            if time.monotonic() > deadline:
                raise LogUnavailableError(
                    "Kafka does not take the records of a transaction", hint="Look at the brokers."
                )

    def _know(self, topic: str) -> list[int]:
        """Where this writer's records in a topic end."""
        if topic not in self._ends:
            count = self._cluster.known(topic).partitions
            places = [TopicPartition(topic, number) for number in range(count)]
            found = self._cluster.ends(places)
            self._ends[topic] = [found[place] for place in places]
        return self._ends[topic]

    def _publish(self, watermarks: Mapping[str, int | None], written: Mapping[TopicPartition, int]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for name, mark in watermarks.items():
            topic, sign, channel = name.partition(CHANNEL)
            ends = [
                written.get(TopicPartition(topic, number), end)
                for number, end in enumerate(self._know(topic))
            ]
            before = self._last_ms.get(name) if mark is None else None
            key, value = encode(Published(f"{self.transactional_id}{sign}{channel}", mark, before, ends))
            self._produce(
                TopicPartition(self._follow(topic), 0), [Output(f"{topic}{WATERMARKS}", key, value, now_ms)]
            )
        self._flush()

    def _decide(self) -> None:
        """Commit, and ask again until there is an answer."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                self._producer.commit_transaction(_REQUEST_S)
            except Exception as error:  # another is raised again
                found = kafka_error(error)
                kind = kind_of(found)
                if kind is Kind.RETRY and time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)
                    continue
                if kind in (Kind.RETRY, Kind.FATAL) or (
                    kind is Kind.ABORT and not found.txn_requires_abort()
                ):
                    self._ended = CommitUnknownError(
                        f"the commit of {self.transactional_id!r} was not answered: {found.str()} ({found.name()})",
                        hint="Take the transactional id over again and read what is there.",
                    )
                    raise self._ended from error
                self._fail(error, "committing")
            else:
                return

    def _try(self, do: Callable[[], object], doing: str) -> None:
        """Do something again until it succeeds, if that can help."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                do()
            except Exception as error:  # noqa: BLE001  # another is raised again
                if kind_of(kafka_error(error)) is Kind.RETRY and time.monotonic() < deadline:
                    time.sleep(_PAUSE_S)
                    continue
                self._fail(error, doing)
            else:
                return

    def _fail(self, error: Exception, doing: str, topic: str | None = None) -> NoReturn:
        self._raise(kafka_error(error), doing, topic, error)

    def _raise(
        self, found: KafkaError, doing: str, topic: str | None = None, cause: Exception | None = None
    ) -> NoReturn:
        made = as_log_error(found, doing, topic)
        if kind_of(found) in (Kind.FENCED, Kind.FATAL):
            self._ended = made
        raise made from cause


def _written_zero(timestamp_ms: int, topic: str) -> int:
    if timestamp_ms == 0:
        return NO_TIMESTAMP
    raise EventValueError(
        "the time of the event is 1 ms before 1970, which stands for 'no time' in Kafka",
        topic=topic,
        hint="Give the event another time, or emit it with at=.",
    )
