"""The public class of the log on Kafka."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from hashlib import sha256
from typing import Any
from uuid import uuid4

from tailrace.core.counting import counted as counted_in_words
from tailrace.core.errors import LogUnavailableError, OptionError, TaskOwnedError
from tailrace.core.names import tape_of, task_of
from tailrace.core.records import CHANNEL, InputRecord, Output
from tailrace.log.consistent_ends import consistent_ends
from tailrace.log.interface import Cleaned, Ends, PublishedAt, PublishedIn, TopicPartition, TopicSettings
from tailrace.log.kafka.administration import KafkaAdmin
from tailrace.log.kafka.cluster import Cluster
from tailrace.log.kafka.connection import Connection
from tailrace.log.kafka.feeds import Feed
from tailrace.log.kafka.followed import FollowedTopics
from tailrace.log.kafka.library import Consumer
from tailrace.log.kafka.placing import KafkaPlacer
from tailrace.log.kafka.process_transaction import ProcessTransaction
from tailrace.log.kafka.reader import KafkaReader
from tailrace.log.kafka.tasks import KafkaTasks, producer_in
from tailrace.log.kafka.topic_config import LAG_MS
from tailrace.log.kafka.topic_ids import WatchedTopics
from tailrace.log.kafka.watermarks import PUBLISHERS, WATERMARKS, Published, counted, decode
from tailrace.log.kafka.writer import KafkaProducer
from tailrace.log.options import LogOptions
from tailrace.log.publications import in_partition
from tailrace.log.routing import Router
from tailrace.log.shared_transaction import SharedTransaction, SharedWriter
from tailrace.log.tasks import AppTasks, OnAssigned, OnRevoked, Owner, nothing

_MARKERS_S = 1.0
"""For how long the markers of a commit may be on their way before what it has published counts as not committed."""
_HANGS_S = 90.0
"""For how long a transaction that hides records is waited for: longer than the coordinator leaves one open (``transaction.timeout.ms``)."""

_HIDDEN = (WATERMARKS, PUBLISHERS)


class ListedTopics(Mapping[str, TopicSettings]):
    """What ``Log.topics`` returns. The settings of all topics are asked for when one is first needed.

    Most callers only look for a name, which any broker tells at once. The settings of all topics are a much longer answer, and need the
    right to read them (DescribeConfigs).
    """

    def __init__(self, cluster: Cluster, names: Iterable[str]) -> None:
        self._cluster = cluster
        self._settings: dict[str, TopicSettings | None] = dict.fromkeys(names)
        """None: they were not asked for yet, or the topic was deleted before they were."""

    def __getitem__(self, topic: str) -> TopicSettings:
        found = self._settings[topic]
        if found is None:
            left = self._settings.keys() & self._cluster.names()
            self._settings.update(described := self._cluster.describe({topic, *left}))
            found = described[topic]
        return found

    def __contains__(self, topic: object) -> bool:
        return topic in self._settings

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


class KafkaLog:
    """The topics of a Kafka cluster as a log; implements ``tailrace.log.Log``. ``url`` is ``kafka://host:port,…``.

    Nothing is asked of the brokers before the first call.
    Raises OptionError: the URL or a setting is wrong; MissingExtraError: confluent-kafka is not installed.
    """

    def __init__(self, url: str, options: LogOptions | None = None) -> None:
        self.options = options = options or LogOptions()
        self._connection = Connection(url, options.settings)
        self._cluster = Cluster(self._connection, options.patience_s, options.new_topics)
        self._topics = WatchedTopics(self._cluster)
        self._mutex = threading.Lock()
        self._outsiders: dict[str, Consumer] = {}
        """By group, a consumer that is no member, for its offsets and metadata."""
        self._processes: dict[str, ProcessTransaction] = {}
        """By app that was joined."""
        self._followed = FollowedTopics(
            self._cluster, self._topics, self._connection.plain_producer, self._records
        )
        self.admin = KafkaAdmin(self._cluster, options.new_topics, self._followed.follow)
        self._commits = Counter[TopicPartition]()
        """The number of commits of this process to each partition."""

    @property
    def place(self) -> str:
        return str(self._connection)

    def __str__(self) -> str:
        return self.place

    # --- topics and positions

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        if topic.endswith(_HIDDEN):
            raise OptionError(
                f"names that end with {' or '.join(map(repr, _HIDDEN))} are those of published watermarks",
                hint="Choose another.",
            )
        self._cluster.create(topic, settings)

    def topics(self) -> Mapping[str, TopicSettings]:
        counts = self._cluster.names()
        self._cluster.forget_unless(counts)
        return ListedTopics(self._cluster, (name for name in counts if not name.endswith(_HIDDEN)))

    def partitions(self, topic: str, /) -> int:
        return self._cluster.known(topic).partitions

    def topic_ids(self, topics: Iterable[str], /) -> Mapping[str, str]:
        wanted = list(topics)
        return self._named_ids(self._topics.now(wanted)) if wanted else {}

    def watch(self, topics: Iterable[str], /) -> Mapping[str, str]:
        return self._named_ids(self._topics.ids(topics))

    def _named_ids(self, ids: Mapping[str, str]) -> Mapping[str, str]:
        log = self.identity.hex()[:16]
        return {topic: f"{log}/{id_}" for topic, id_ in ids.items()}

    def start_offset(self, topic: str, partition: int, /) -> int:
        place = TopicPartition(topic, partition)
        return self._cluster.starts([place])[place]

    def end_offset(self, topic: str, partition: int, /) -> int:
        place = TopicPartition(topic, partition)
        return self._cluster.ends([place])[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        return self._cluster.at_time(TopicPartition(topic, partition), timestamp_ms)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """See ``Log.committed_offsets``. Waits while a transaction that changes them is open."""
        try:
            return self._cluster.committed(self._outsider(group), group, partitions)
        except LogUnavailableError:
            with self._mutex:
                self._outsiders.pop(group, None)  # it may be cut off: see ``reader``
            raise

    def offsets_before_open_transactions(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        with closing(self._connection.consumer(group, **{"isolation.level": "read_uncommitted"})) as consumer:
            return self._cluster.committed(consumer, group, partitions)

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        found: dict[tuple[str, str], int | None] = {}
        names = self._cluster.names()
        followed = [name.removesuffix(PUBLISHERS) for name in names if name.endswith(PUBLISHERS)]
        followed = [name for name in followed if f"{name}{WATERMARKS}" in names]
        ids = self._cluster.ids([name for name in followed if name in names])
        feeds = {f"{topic}{PUBLISHERS}": ids[topic][0] if topic in ids else None for topic in followed}
        for feed, last in self._followed.last(feeds, _MARKERS_S).items():
            topic = feed.removesuffix(PUBLISHERS)
            for one in last.publications:
                if one.prefix == self._cluster.prefix:
                    publisher, mark, channel = one.name.partition(CHANNEL)
                    found[f"{topic}{mark}{channel}", publisher] = one.watermark_ms
        return found

    def published(self, topic: str, /) -> list[PublishedAt]:
        feed = f"{topic}{WATERMARKS}"
        names = self._cluster.names()
        id_ = self._cluster.ids([topic])[topic][0] if topic in names else ""
        found: list[PublishedAt] = []
        last: dict[str, int] = {}
        for _, record in self._followed.all([feed] if feed in names else []):
            one = counted(decode(feed, record.offset, record.key, record.value), id_)
            if one is None:
                continue
            name, watermark_ms, before_ms, ends, *_ = one
            if watermark_ms is not None:
                last[name] = watermark_ms
            elif before_ms is not None and last.get(name) != before_ms:  # compaction took it
                found.append(PublishedAt(name, before_ms, ends))
                last[name] = before_ms
            found.append(PublishedAt(name, watermark_ms, ends))
        return found

    def published_in(self, topic: str, partition: int, /) -> list[PublishedIn]:
        return in_partition(self.published(topic), partition)

    def ends(self, topics: Iterable[str], /) -> Ends:
        """See ``OneCommitLog.ends``, and ``consistent_ends``. LogUnavailableError: a transaction stays open."""
        counts = {topic: self.partitions(topic) for topic in topics}
        with closing(self.reader({})) as reader:
            found = consistent_ends(self._cluster, reader, counts, patience_s=_HANGS_S)
        offsets = {
            topic: [found[TopicPartition(topic, number)] for number in range(count)]
            for topic, count in counts.items()
        }
        return Ends(sum(found.values()), offsets)

    @property
    def identity(self) -> bytes:
        """See ``OneCommitLog.identity``: the cluster and the prefix."""
        return self._identity

    @cached_property
    def _identity(self) -> bytes:
        return sha256(self._cluster.identity() + self._cluster.prefix.encode()).digest()[:16]

    @contextmanager
    def compaction_paused(self, topics: Iterable[str] = (), /) -> Generator[None]:
        """See ``OneCommitLog.compaction_paused``. No record younger than ``min.compaction.lag.ms`` replaces an older one."""
        begun_s = time.monotonic()
        yield
        took_ms = (time.monotonic() - begun_s) * 1_000
        for topic in topics:
            lag_ms = int(self._cluster.config_of([topic])[topic][LAG_MS])
            if took_ms > lag_ms:
                raise LogUnavailableError(
                    f"reading took {took_ms / 1_000:,.0f} s, and the brokers may have compacted {topic!r} meanwhile, which they leave alone "
                    f"for {lag_ms / 1_000:,.0f} s (min.compaction.lag.ms): rows may be missing",
                    hint="Raise min.compaction.lag.ms of this topic, or rebuild the state instead (tailrace rebuild).",
                )

    @property
    def transaction_timeout_ms(self) -> int:
        return self._connection.transaction_timeout_ms

    # --- writers and readers

    def writer(self, transactional_id: str, /) -> SharedWriter:
        """See ``Log.writer``. A task of an app that this process has joined gets a writer of the transaction of the process."""
        task = task_of(transactional_id)
        if task is not None and (process := self._processes.get(task[0])) is not None:
            return process.writer(transactional_id, task[1])
        return SharedTransaction(self._producer(transactional_id)).writer(transactional_id)

    def _producer(self, transactional_id: str) -> KafkaProducer:
        """Take a transactional id over, by a producer."""
        begun = time.monotonic()
        while True:
            producer = KafkaProducer(
                self._connection.producer(transactional_id),
                transactional_id,
                self._cluster,
                Router(self.partitions, self.options.max_record_bytes),
                self._topics,
                membership=self._metadata_of,
                follow=self._followed.follow,
                committed=self._note_commit,
                timeout_ms=self.transaction_timeout_ms,
            )
            try:
                producer.take_over()
            except BaseException:
                producer.close()
                if not producer.cut_off or time.monotonic() > begun + self._cluster.patience_s:
                    raise
            else:
                return producer

    def reader(
        self,
        positions: Mapping[TopicPartition, int],
        /,
        *,
        live: bool = False,
        until: Mapping[TopicPartition, int] | None = None,
    ) -> KafkaReader:
        """See ``Log.reader``. The fetches of a ``live`` reader do not wait for records that are on their way; those of partitions that
        are in ``until``, with an offset that was stable, wait for records before it only.
        """
        settings = {} if live else self._connection.of_history()
        reader = KafkaReader(
            lambda: self._connection.consumer(self.options.group, **settings),
            self._cluster,
            self._topics,
            commits=self._commits.__getitem__,
            feed=self._feed,
            hidden_s=self.options.hidden_s,
            live=live,
            until=until,
        )
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def placer(self, scratch: str, /) -> KafkaPlacer:
        return KafkaPlacer(
            self._connection.plain_producer, self._cluster, TopicPartition(scratch, 0), self._followed.follow
        )

    def live_reader(self) -> KafkaReader:
        return self.reader({}, live=True)

    def cleaning_is_due(self) -> bool:
        """Brokers delete and compact by themselves."""
        return False

    def clean(self) -> Cleaned:
        return Cleaned()

    # --- tasks

    moves_tasks = True

    def join(
        self, tasks: AppTasks, on_assigned: OnAssigned = nothing, on_revoked: OnRevoked = nothing, /
    ) -> KafkaTasks:
        """See ``TaskLog.join``: become a member of the app's group."""
        made = KafkaTasks(self._connection, self._cluster, tasks, on_assigned, on_revoked)
        self._processes[tasks.app] = ProcessTransaction(tasks.app, made, self._producer)
        return made

    def owner(self, app: str, number: int, /) -> Owner | None:
        """See ``TaskLog.owner``. A process that was killed counts until ``session.timeout.ms`` is over."""
        place = TopicPartition(tape_of(app), number)
        members = self.admin.members(app)
        return next((member.owner for member in members if place in member.partitions), None)

    @contextmanager
    def reserve(self, app: str, numbers: Collection[int], /) -> Generator[None]:
        """See ``TaskLog.reserve``. A process that starts inside the block is not refused."""
        if found := self.admin.members(app):
            named = ", ".join(sorted({str(member.owner) for member in found}))
            raise TaskOwnedError(
                f"its group has {counted_in_words(len(found), 'member')}: {named}. A process that was killed counts until "
                "session.timeout.ms is over"
            )
        kept = self._cluster.notes(
            self._outsider(app), app, [TopicPartition(tape_of(app), number) for number in numbers]
        )
        for named in {*map(producer_in, kept.values())} - {""}:  # see ``process_transaction``, rule 4
            self._producer(named).close()
        yield

    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append many records as an external producer, in one transaction. Returns the new end of each partition written."""
        with closing(self.writer(f"append-{uuid4().hex}")) as writer:
            writer.append(outputs, partition)
            return writer.commit()

    def limit_patience(self, patience_s: float, /) -> None:
        self._cluster.patience_s = min(patience_s, self._cluster.patience_s)

    def close(self) -> None:
        with self._mutex:
            outsiders, self._outsiders = self._outsiders, {}
        for process in self._processes.values():
            process.close()
        for consumer in outsiders.values():
            consumer.close()
        self._cluster.close()

    def _metadata_of(self, group: str) -> Any:
        """The metadata of a group. If this process is no member, commits are fenced by the transactional id alone."""
        if (joined := self._processes.get(group)) is not None:
            return joined.member.metadata()
        return self._outsider(group).consumer_group_metadata()

    def _outsider(self, group: str) -> Consumer:
        with self._mutex:
            found = self._outsiders.get(group)
            if found is None:
                found = self._outsiders[group] = self._connection.consumer(group)
            return found

    def _feed(self, topic: str) -> Feed:
        """The publications of a topic, for a reader that follows it from now on."""
        id_, (name, publishers) = self._followed.follow(topic)
        place = TopicPartition(name, 0)
        start, end = self._cluster.starts([place])[place], self._cluster.stable_ends([place])[place]
        last = self._followed.last({publishers: id_})[publishers].publications

        def read(first: int, until: int) -> Iterator[tuple[int, Published]]:
            for _, record in self._records({place: (first, until)}):
                yield record.offset, decode(name, record.offset, record.key, record.value)

        return Feed(start, end, last, read, id_)

    def _records(
        self, stretches: Mapping[TopicPartition, tuple[int, int]]
    ) -> Iterator[tuple[TopicPartition, InputRecord]]:
        some = {place: stretch for place, stretch in stretches.items() if stretch[0] < stretch[1]}
        if not some:
            return
        reader = self.reader(
            {place: first for place, (first, _) in some.items()},
            until={place: end for place, (_, end) in some.items()},
        )
        with closing(reader):
            for place, (first, end) in some.items():
                while first < end:
                    fetched = reader.fetch(*place, 10_000)
                    yield from ((place, record) for record in fetched.records if record.offset < end)
                    first = fetched.next_offset

    def _note_commit(self, written: Iterable[TopicPartition]) -> None:
        with self._mutex:
            self._commits.update(written)
