"""A transaction on Kafka, and what to do when it fails.

A record is given to librdkafka as it comes, so most of a transaction is at the brokers before it is committed. A commit then

1. waits until all records are at the brokers, which gives their offsets;
2. appends the published watermarks, which name these offsets;
3. adds the offsets of the group;
4. checks that no topic was deleted and created again meanwhile (``topic_ids``);
5. commits, which decides everything at once.

Errors before step 5 leave the transaction open, to be aborted. In step 5 a time-out decides nothing: the coordinator may have taken
the request or not. So the commit is sent again until it is answered, and never aborted; ``CommitUnknownError`` is raised only if
there is no answer for ``patience_s``, or if the client has failed for good.

Kafka keeps no timestamp 0: librdkafka takes it for "now". It is written as -1, Kafka's "no timestamp", and read as 0.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from math import inf
from operator import length_hint
from typing import Any, Final, NoReturn

from tailrace.core.durations import spelled
from tailrace.core.errors import CommitUnknownError, FencedError, LogUnavailableError, TailraceError
from tailrace.core.records import CHANNEL, RawOutput
from tailrace.log.interface import TopicPartition
from tailrace.log.kafka.buffer import NO_TIMESTAMP, stored_times
from tailrace.log.kafka.cluster import MOST_REQUEST_S, Cluster
from tailrace.log.kafka.diagnosis import is_cut_off
from tailrace.log.kafka.failures import Kind, kafka_error, kind_of, standing_error
from tailrace.log.kafka.followed import Followed
from tailrace.log.kafka.library import At, KafkaError, Message, Producer, never_freed
from tailrace.log.kafka.topic_ids import WatchedTopics
from tailrace.log.kafka.watermarks import Published, encode
from tailrace.log.routing import Router
from tailrace.log.threads import in_thread

_log = logging.getLogger("tailrace.kafka")

_NO_TIMES: Final = frozenset((0, NO_TIMESTAMP))
_FLUSH_S: Final = 2.0
_LOOK_S: Final = 1.0
"""Time between two looks whether a transaction has failed, while its records are on their way."""
_STUCK_S: Final = 20.0
"""How long after its own time-out a call of the library counts as one that never returns."""
_WAITS_S: Final = 4.0
"""After this time the brokers are asked why they do not take the records of a transaction."""
_PAUSE_S: Final = 0.05
_LARGE: Final = 65_536
"""The delivery of each larger record is reported, so that one that a topic does not take is named by its key."""


class KafkaProducer:
    """The holder of a transactional id, for the writers of a ``SharedTransaction``; see ``tailrace.log.Writer``.

    ``membership`` gives the metadata of the group that offsets are committed for; ``follow`` the two topics of a topic's
    publications, which it creates; ``committed`` is called after each commit. ``timeout_ms`` is ``transaction.timeout.ms``.
    """

    def __init__(
        self,
        producer: Producer,
        transactional_id: str,
        cluster: Cluster,
        router: Router,
        topics: WatchedTopics,
        *,
        membership: Callable[[str], Any],
        follow: Callable[[str], Followed],
        committed: Callable[[Iterable[TopicPartition]], None],
        timeout_ms: int,
    ) -> None:
        self.transactional_id = transactional_id
        self._producer: Producer = producer
        self._cluster = cluster
        self._router = router
        self._topics = topics
        self._most_patience_s = inf
        self._membership = membership
        self._follow = follow
        self._committed = committed
        self._timeout_ms = timeout_ms
        self.cut_off = False
        """Whether it has lost the addresses of the brokers, although they answer: another one is needed."""
        self._is_open = False
        self._begun_s = 0.0
        self._ended: TailraceError | None = None
        """Why it is of no more use."""
        self._written: dict[TopicPartition, int] = {}
        """The last offset of the open transaction in each partition."""
        self._topics_written: set[str] = set()
        self._failed: Any = None
        """Why a record of the open transaction was not delivered."""
        self._ends: dict[str, list[int]] = {}
        """By topic with published watermarks, positions behind all records of the tasks that publish for it, but for those in the open
        transaction."""
        self._last_ms: dict[tuple[str, str], int | None] = {}
        """By publisher and name, the last watermark that is not None."""

    @property
    def ended(self) -> bool:
        """Whether it is of no more use."""
        return self._ended is not None

    def _patience_s(self) -> float:
        return min(self._most_patience_s, self._cluster.patience_s)

    def _request_s(self) -> float:
        return min(MOST_REQUEST_S, self._patience_s())

    def take_over(self) -> None:
        """Become the holder of the id: earlier holders are fenced, and what they left open is aborted."""
        with suppress(Exception):
            # One that is not connected yet asks for the coordinator again only after half a second.
            self._producer.list_topics(timeout=min(_LOOK_S, self._request_s()))
        self._try(
            lambda: self._producer.init_transactions(self._request_s()), "taking a transactional id over"
        )

    def take_in(self) -> None:
        """A task comes from another owner, whose records may be behind the ends that are known here."""
        self._ends.clear()

    def append(self, outputs: Iterable[RawOutput], partition: int | None, /) -> bool:
        """See ``Writer.append``. Returns whether there was anything to append."""
        self._enter()
        routed = self._router.route(outputs, partition)
        if routed:
            self._begin()
        for topic, _, (_, *columns), numbers in routed:
            self._produce(topic, columns, numbers)
        self._serve(self._producer.poll, 0)
        return bool(routed)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        group: str,
        watermarks: Mapping[str, Mapping[str, int | None]],
        /,
    ) -> Mapping[TopicPartition, int]:
        """See ``Writer.commit``. ``watermarks`` are given by the name of the publisher."""
        self._enter()
        for marks in watermarks.values():
            for name in marks:
                self._know(name.partition(CHANNEL)[0])
        if not (self._is_open or offsets or watermarks):
            return {}
        self._begin()
        asked = self._topics.ask()
        self._flush()
        ends = {place: offset + 1 for place, offset in self._written.items()}
        if watermarks:
            self._publish(watermarks, ends)
        if offsets:
            positions = [self._cluster.at(place, offset) for place, offset in offsets.items()]
            self._try(
                lambda: self._send_offsets(positions, self._membership(group)),
                "committing offsets",
                group=group,
                topics={place.topic for place in offsets},
            )
        self._topics.check(asked)
        self._decide()
        for place, end in ends.items():
            if place.topic in self._ends:
                self._ends[place.topic][place.partition] = max(end, self._ends[place.topic][place.partition])
        for publisher, marks in watermarks.items():
            self._last_ms |= {(publisher, name): mark for name, mark in marks.items() if mark is not None}
        written = set(self._written)
        self._closed()
        self._committed(written)
        return ends

    def abort(self) -> None:
        self._enter()
        if not self._is_open:
            return
        # Records that were never sent are dropped by librdkafka, and a coordinator that has heard of none of a transaction's records
        # refuses to end it (confluentinc/librdkafka#4849).
        try:
            self._serve(self._producer.flush, _FLUSH_S)
        except TailraceError:
            self._enter()
        self._try(lambda: self._producer.abort_transaction(self._request_s()), "aborting a transaction")
        self._closed()

    def close(self) -> None:
        if self._producer is None:
            return
        if self._is_open and self._ended is None:
            self._most_patience_s = _FLUSH_S
            # If it fails, the next holder of the id aborts it, or the cluster does after transaction.timeout.ms.
            with suppress(TailraceError):
                self.abort()
        if self._ended is None:
            self._ended = FencedError(
                f"the writer of {self.transactional_id!r} was closed", hint="Ask for another."
            )
        # Not by its ``close``, which waits for brokers without an end, and raises what has fenced it. Without that, the library
        # releases a producer when nothing refers to it any more.
        producer, self._producer = self._producer, None
        with suppress(Exception):
            producer.purge()
            producer.flush(_FLUSH_S)  # calls back for what was purged

    def _send_offsets(self, positions: Sequence[At], metadata: Any) -> None:
        """Add offsets to the transaction. librdkafka may never return from this when the coordinator of the group was lost, whatever
        its time-out (confluentinc/librdkafka#5456, seen with two of three brokers away). So another thread calls it. A producer that
        does not come back is left, with that thread; the process then takes another, which fences it.
        """
        producer, timeout_s = self._producer, self._request_s()
        sent = in_thread(
            "tailrace-offsets", lambda: producer.send_offsets_to_transaction(positions, metadata, timeout_s)
        )
        try:
            sent.result(timeout_s + _STUCK_S)
        except TimeoutError:
            self._ended = LogUnavailableError(
                "the Kafka client does not come back from adding offsets to a transaction",
                hint="Nothing is lost. The tasks continue with another producer.",
            )
            never_freed(producer)
            raise self._ended from None

    def _enter(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _begin(self) -> None:
        if not self._is_open:
            self._try(self._producer.begin_transaction, "beginning a transaction")
            self._is_open, self._begun_s = True, time.monotonic()

    def _closed(self) -> None:
        self._is_open = False
        self._written = {}
        self._topics_written = set()
        self._failed = None

    def _produce(self, topic: str, fields: Sequence[Sequence[Any]], numbers: Sequence[int]) -> None:
        """Give records of one topic to librdkafka. The last one of each partition reports its offset, and so does each large one. The
        arguments are given by position and in columns, which takes a third of the time of a call by names. ``produce_batch`` is slower
        than this, and cannot write timestamps and headers.
        """
        keys, values, times_ms, headers = fields
        self._topics_written.add(topic)
        columns: list[Sequence[Any]] = [values, keys, numbers, self._callbacks(values, numbers)]
        columns.append([None] * len(values))
        columns.append(times_ms if _NO_TIMES.isdisjoint(times_ms) else stored_times(times_ms, topic))
        if any(headers):
            columns.append(list(map(list, headers)))
        while True:
            first, *others = columns
            rest = iter(first)
            try:
                calls: Iterable[Any] = map(
                    self._producer.produce, repeat(self._cluster.prefix + topic), rest, *others
                )
                deque(calls, maxlen=0)
            except BufferError:
                at = len(first) - length_hint(rest) - 1  # the one that was refused is given again
                columns = [one[at:] for one in columns]
                self._make_room()
            except Exception as error:  # noqa: BLE001  # another is raised again
                self._fail(error, "appending", topic)
            else:
                return

    def _callbacks(
        self, values: Sequence[bytes | None], numbers: Sequence[int]
    ) -> Sequence[Callable[[Any, Message], None] | None]:
        """By value, what librdkafka is to call when the record was delivered. ``numbers``: their partitions."""
        reporting = [len(numbers) - 1 - numbers[::-1].index(one) for one in set(numbers)]
        if max(map(len, filter(None, values)), default=0) > _LARGE:
            reporting += [at for at, value in enumerate(values) if len(value or b"") > _LARGE]
        found: list[Callable[[Any, Message], None] | None] = [None] * len(values)
        for at in reporting:
            found[at] = self._delivered
        return found

    def _make_room(self) -> None:
        """Wait until librdkafka has sent some of what it holds."""
        deadline = time.monotonic() + self._patience_s()
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
                self._failed = (error, message.topic().removeprefix(self._cluster.prefix), message.key())
            return
        place = TopicPartition(message.topic().removeprefix(self._cluster.prefix), message.partition())
        self._written[place] = message.offset()

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Let the library call back, and raise the first failure."""
        try:
            waiting = call(timeout_s)
        except SystemError:
            # After a fatal error the library calls back while its own exception is set, and that is lost.
            if (cause := standing_error(self._producer)) is not None:
                self._fail(cause, "appending")
            raise
        except Exception as error:  # noqa: BLE001  # another is raised again
            self._fail(error, "appending")
        if self._failed is not None:
            failed, topic, key = self._failed
            self._raise(failed, "appending", topic, key=key)
        return waiting

    def _flush(self) -> None:
        begun, before = time.monotonic(), inf
        while left := self._serve(self._producer.flush, min(_LOOK_S, self._request_s())):
            if (cause := standing_error(self._producer)) is not None:
                found = kafka_error(cause)
                if found.fatal() or found.txn_requires_abort():
                    self._fail(cause, "appending")  # what is not sent by now, never is
            now = time.monotonic()
            if left < before:  # it gets on, however slowly: quotas of the brokers may allow no more
                begun, before = now, left
            if now > begun + _WAITS_S:
                self._check_connected()
            if now > begun + self._patience_s():
                raise LogUnavailableError(
                    "Kafka does not take the records of a transaction", hint="Look at the brokers."
                )

    def _know(self, topic: str) -> list[int]:
        if topic not in self._ends:
            self._topics.ids([topic])  # if it is replaced from here on, the commit is refused
            count = self._cluster.known(topic).partitions
            places = [TopicPartition(topic, number) for number in range(count)]
            found = self._cluster.ends(places)
            self._ends[topic] = [found[place] for place in places]
        return self._ends[topic]

    def _publish(
        self, watermarks: Mapping[str, Mapping[str, int | None]], written: Mapping[TopicPartition, int]
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        published = [(by, name, mark) for by, marks in watermarks.items() for name, mark in marks.items()]
        for publisher, name, mark in published:
            topic, sign, channel = name.partition(CHANNEL)
            ends = [
                max(end, written.get(TopicPartition(topic, number), 0))
                for number, end in enumerate(self._know(topic))
            ]
            before = self._last_ms.get((publisher, name)) if mark is None else None
            followed, named = self._follow(topic), f"{publisher}{sign}{channel}"
            key, value = encode(Published(named, mark, before, ends, followed.topic_id, self._cluster.prefix))
            for feed in followed.feeds:
                self._produce(feed, ((key,), (value,), (now_ms,), ((),)), [0])
        self._flush()

    def _decide(self) -> None:
        """Commit, and ask again until there is an answer."""
        error = self._persist(lambda: self._producer.commit_transaction(self._request_s()))
        if error is None:
            return
        found = kafka_error(error)
        kind = kind_of(found)
        if kind in (Kind.RETRY, Kind.FATAL) or (kind is Kind.ABORT and not found.txn_requires_abort()):
            self._ended = CommitUnknownError(
                f"the commit of {self.transactional_id!r} was not answered: {found.str()} ({found.name()})",
                hint="Take the transactional id over again and read what is there.",
            )
            raise self._ended from error
        self._fail(error, "committing")

    def _try(
        self, do: Callable[[], object], doing: str, *, group: str = "", topics: Iterable[str] = ()
    ) -> None:
        """Do something, again if that can help. It concerns a group and topics."""
        if (error := self._persist(do)) is not None:
            self._fail(error, doing, group=group, topics=topics)

    def _persist(self, do: Callable[[], object]) -> Exception | None:
        """Do something, repeatedly while that can help and the patience lasts. Returns the last error, if it failed."""
        begun = time.monotonic()
        while True:
            try:
                do()
            except Exception as error:  # noqa: BLE001  # another is raised again
                is_over = time.monotonic() >= begun + self._patience_s()
                if kind_of(kafka_error(error)) is not Kind.RETRY or is_over:
                    return error
                if time.monotonic() > begun + _WAITS_S and self._is_cut_off():
                    return error
            else:
                return None
            time.sleep(_PAUSE_S)

    def _is_cut_off(self) -> bool:
        self.cut_off = is_cut_off(self._producer, self._cluster)
        return self.cut_off

    def _check_connected(self) -> None:
        if self._is_cut_off():
            self._ended = LogUnavailableError(
                "the Kafka client has lost the addresses of all brokers",
                hint="Nothing is lost. The tasks continue with another producer.",
            )
            raise self._ended

    def _fail(
        self,
        error: Exception,
        doing: str,
        topic: str | None = None,
        *,
        group: str = "",
        topics: Iterable[str] = (),
    ) -> NoReturn:
        found = kafka_error(error)
        if found.name() in ("_FATAL", "_STATE") and (cause := standing_error(self._producer)) is not None:
            # The first one says that something has failed before, and not what.
            found, topic = kafka_error(cause), None
        self._raise(found, doing, topic, error, group=group, topics=topics)

    def _raise(
        self,
        found: KafkaError,
        doing: str,
        topic: str | None = None,
        cause: Exception | None = None,
        *,
        key: bytes | None = None,
        group: str = "",
        topics: Iterable[str] = (),
    ) -> NoReturn:
        resource = None
        if found.name() == "TOPIC_AUTHORIZATION_FAILED" and topic is None:
            resource = " or ".join(
                f"{self._cluster.prefix}{one}" for one in sorted(topics or self._topics_written)
            )
        elif found.name() == "GROUP_AUTHORIZATION_FAILED":
            resource = self._cluster.prefix + group
        elif found.name() == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            resource = self._cluster.prefix + self.transactional_id
        made = self._cluster.error(found, doing, topic, key=key, resource=resource)
        if kind_of(found) in (Kind.FENCED, Kind.FATAL):
            open_ms = int(1_000 * (time.monotonic() - self._begun_s))
            if self._is_open and kind_of(found) is Kind.FENCED and open_ms > self._timeout_ms:
                made = _overdue(open_ms, self._timeout_ms)
            self._ended = made
        raise made from cause


def _overdue(open_ms: int, timeout_ms: int) -> FencedError:
    """The error for a transaction that the brokers have aborted. It passes if the process was suspended, and comes again if a
    handler takes so long.
    """
    said = (
        f"a transaction was open for {spelled(open_ms)}, longer than transaction.timeout.ms ({spelled(timeout_ms)}), so the brokers "
        "have aborted it and fenced its producer"
    )
    _log.warning(
        "%s. Another producer does the work again. If this comes again, make the handlers faster, or set "
        "TAILRACE_KAFKA_PRODUCER_TRANSACTION_TIMEOUT_MS to more than they take, within the brokers' transaction.max.timeout.ms "
        "(15 minutes by default).",
        said,
    )
    return FencedError(said, hint="Nothing committed is lost. Another producer does the work again.")
