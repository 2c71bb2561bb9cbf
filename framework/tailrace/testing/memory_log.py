"""An event log in memory, with Kafka's semantics where they can hurt, and a hook at every operation.

Theory. A partition keeps two things: ``records``, the committed ones below its last stable offset, which is all that a
reader ever sees; and ``undecided``, chunks in offset order that begin with the first open transaction. When a
transaction ends, chunks move over from the left until the next open one; those of aborted transactions leave a gap::

    records                      undecided
    0 1 2 . 4 5 . . . 9 10   |   [11 12 open] [13 committed] [14 15 open]
                             ^ last stable offset                        ^ end

The end of a transaction is itself an entry in every partition it wrote, and takes an offset there, as on Kafka; the
embedded log has no such markers, and ``markers=False`` behaves like it.

Faults. Every operation calls ``on_operation(name)`` first, and a commit calls it again once it has taken effect. What
the hook raises comes out of the operation, so a test can kill a worker at any point, and a ``CommitUnknownError`` raised
at ``commit`` or at ``committed`` is an unknown outcome that did not, or did, take effect. A worker that is killed just
stops calling: as on Kafka, its open transaction hides what comes after it until its id is taken over or it expires.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Literal

from tailrace.core.errors import CommitUnknownError, FencedError, UnknownTopicError
from tailrace.core.records import CHANNEL, MAX_RECORD_BYTES, InputRecord, Output, RawOutput, record_of
from tailrace.log.admin import Admin
from tailrace.log.interface import Ends, Publication, PublishedAt, PublishedIn, TopicPartition, TopicSettings
from tailrace.log.publications import in_partition
from tailrace.log.routing import Router
from tailrace.log.topic_rules import PlainAdmin, check_existing, unknown_topic
from tailrace.testing.memory_partition import MemoryOwners, MemoryReader, Partition, Transaction

Operation = Literal[
    "create-topic", "take-over", "append", "commit", "committed", "abort", "fetch", "query", "close-writer"
]
"""Where a fault can strike. ``committed`` is after a commit has taken effect, all others before their effect."""

_offset = attrgetter("offset")


class MemoryLog(MemoryOwners):
    """A transactional, fenced log in memory; implements ``tailrace.log.Log``. For one thread.

    ``max_record_bytes`` limits key and value together; ``unknown topics`` are errors: nothing creates itself.
    """

    def __init__(
        self,
        *,
        markers: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
        on_operation: Callable[[Operation], None] | None = None,
    ) -> None:
        super().__init__()
        self.on_operation: Callable[[Operation], None] = on_operation or _nothing
        self.markers = markers
        self.max_record_bytes = max_record_bytes
        self._settings: dict[str, TopicSettings] = {}
        self._partitions: dict[str, list[Partition]] = {}
        self._holders: dict[str, MemoryWriter] = {}
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._published: dict[str, list[tuple[Publication, Sequence[int]]]] = {}
        self._last_published: dict[tuple[str, str], int | None] = {}
        self._router = Router(self.partitions, max_record_bytes)
        self._commits = 0

    @property
    def admin(self) -> Admin:
        """What an operator asks of the log: its topics and their settings."""
        return PlainAdmin(self, self._keep_all)

    def _keep_all(self, topic: str) -> None:
        self._settings[topic] = self._settings[topic]._replace(retention_ms=None, retention_bytes=None)

    identity = b""  # see ``OneCommitLog``: it has none

    # --- topics and positions

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        """Create a topic. Raises TopicMismatchError if it exists with other settings."""
        self.on_operation("create-topic")
        check_existing(topic, self._settings.setdefault(topic, settings), settings)
        if topic not in self._partitions:
            self._partitions[topic] = [
                Partition(TopicPartition(topic, number)) for number in range(settings.partitions)
            ]

    def topics(self) -> Mapping[str, TopicSettings]:
        """The settings of every topic, by its name."""
        return dict(self._settings)

    def partitions(self, topic: str, /) -> int:
        """A topic's number of partitions. Raises UnknownTopicError for a topic that does not exist."""
        return len(self._of(topic))

    def start_offset(self, topic: str, partition: int, /) -> int:
        """The offset of the oldest record that a partition keeps."""
        self.on_operation("query")
        return self.at(topic, partition).start

    def end_offset(self, topic: str, partition: int, /) -> int:
        """The offset after the last record of a partition, those of open transactions included."""
        self.on_operation("query")
        return self.at(topic, partition).end

    def ends(self, topics: Iterable[str], /) -> Ends:
        """The commits so far, and the end of each partition of these topics, up to which everything is committed."""
        found = {topic: [one.last_stable for one in self._of(topic)] for topic in topics}
        return Ends(self._commits, found)

    def compaction_paused(self, _topics: Iterable[str] = (), /) -> AbstractContextManager[None]:
        """A context in which nothing is compacted or deleted. Here it does nothing: only ``compact`` compacts."""
        return nullcontext()

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        """The lowest offset of a committed record with this timestamp or a later one; the end if there is none."""
        self.on_operation("query")
        found = self.at(topic, partition)
        return next((r.offset for r in found.records if r.timestamp_ms >= timestamp_ms), found.last_stable)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """The offsets that a group has committed, without partitions for which it has none."""
        self.on_operation("query")
        offsets = self._offsets
        return {place: offsets[group, place] for place in partitions if (group, place) in offsets}

    # --- writers and readers

    def writer(self, transactional_id: str, /) -> MemoryWriter:
        """A transactional writer. The previous holder of the same id is fenced, and its open transaction aborted."""
        self.on_operation("take-over")
        before = self._holders.get(transactional_id)
        if before is not None:
            before.end(keep=False)
        writer = self._holders[transactional_id] = MemoryWriter(self, transactional_id)
        return writer

    def reader(self, positions: Mapping[TopicPartition, int], /) -> MemoryReader:
        """A reader of committed records that starts at these offsets."""
        reader = MemoryReader(self)
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append many records as a producer outside, without a transaction. Returns the new end of each partition."""
        self.on_operation("append")
        return self.add(outputs, partition, None)

    def close(self) -> None:
        """Does nothing: the records stay."""

    # --- what tests do to a log

    def read(self, topic: str, partition: int | None = None) -> list[InputRecord]:
        """All committed records of a partition, or of all partitions one after the other."""
        chosen = self._of(topic) if partition is None else [self.at(topic, partition)]
        return [record for one in chosen for record in one.records]

    def crash(self) -> None:
        """The machine goes down: what was not committed is lost, every writer of that time is fenced, and no task has an owner."""
        self.owners.clear()
        for writer in self._holders.values():
            writer.end(keep=False)
        self._holders.clear()

    def expire(self, transactional_id: str) -> None:
        """A transaction was open for too long: abort it and fence its writer."""
        writer = self._holders.pop(transactional_id, None)
        if writer is not None:
            writer.end(keep=False)

    def expire_offsets(self, group: str) -> None:
        """Forget the committed offsets of a group that was away for too long."""
        for key in [key for key in self._offsets if key[0] == group]:
            del self._offsets[key]

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Retention: delete the committed records below ``offset``."""
        found = self.at(topic, partition)
        found.start = max(found.start, min(offset, found.last_stable))
        del found.records[: bisect_left(found.records, found.start, key=_offset)]

    def compact(self, topic: str, *, below: int | None = None, drop_deletions: bool = True) -> None:
        """Keep only the last committed record of every key among those below offset ``below`` (None: all).

        With ``drop_deletions`` a last record without a value goes as well, as it does after Kafka's
        ``delete.retention.ms``: who had read only what it deletes will never learn of it.
        """
        for partition in self._of(topic):
            records = partition.records
            cleaned = len(records) if below is None else bisect_left(records, below, key=_offset)
            last = {record.key: record.offset for record in records}
            partition.records = [
                record
                for number, record in enumerate(records)
                if number >= cleaned
                or (last[record.key] == record.offset and not (drop_deletions and record.value is None))
            ]

    # --- for its writers and readers

    def is_holder(self, writer: MemoryWriter) -> bool:
        """Whether nobody has taken this writer's id over."""
        return self._holders.get(writer.transactional_id) is writer

    def add(
        self, outputs: Iterable[RawOutput], partition: int | None, transaction: Transaction | None
    ) -> dict[TopicPartition, int]:
        """Append to the partitions, all or nothing; returns the end offset of each that was written."""
        ends: dict[TopicPartition, int] = {}
        for place, some in self._router.split(outputs, partition).items():
            found = self._partitions[place.topic][place.partition]
            _, keys, values, times_ms, headers = zip(*some, strict=True)
            offsets = range(found.end, found.end + len(some))
            # Half the time of InputRecord(...), and this is the log's innermost loop.
            columns = zip(offsets, times_ms, keys, values, headers, strict=True)
            found.append(list(map(record_of, columns)), transaction)
            ends[place] = found.end
        return ends

    def end_transaction(
        self,
        transaction: Transaction,
        *,
        keep: bool,
        offsets: Mapping[tuple[str, TopicPartition], int],
        watermarks: Mapping[str, Publication],
    ) -> None:
        """Commit or abort: decide the transaction's records, write its markers, publish its watermarks."""
        transaction.ended, transaction.kept = True, keep
        for partition in transaction.written:
            partition.settle()
            partition.end += self.markers
        if keep:
            self._commits += 1
            self._offsets.update(offsets)
            for name, one in watermarks.items():
                topic = name.partition(CHANNEL)[0]
                self.publish(topic, one, [place.end for place in self._of(topic)])

    def publish(self, topic: str, one: Publication, positions: Sequence[int]) -> None:
        """Note what is published for a topic; per partition it holds from this position on."""
        self._published.setdefault(topic, []).append((one, positions))
        name = f"{topic}{CHANNEL}{one.channel}" if one.channel else topic
        self._last_published[name, one.publisher] = one.watermark_ms

    def published(self, topic: str) -> Sequence[tuple[Publication, Sequence[int]]]:
        """What was published for a topic, in order, and per partition the position from which on it holds."""
        return self._published.get(topic, ())

    def published_in(self, topic: str, partition: int) -> list[PublishedIn]:
        """What was published for a topic, by the position from which on it holds in one partition."""
        found = (PublishedAt(one.name, one.watermark_ms, ends) for one, ends in self.published(topic))
        return in_partition(found, partition)

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        """The last published watermark, by (topic, or ``topic#channel``) and transactional id."""
        return dict(self._last_published)

    def _of(self, topic: str) -> list[Partition]:
        try:
            return self._partitions[topic]
        except KeyError:
            raise unknown_topic(topic, self._partitions) from None

    def at(self, topic: str, partition: int) -> Partition:
        """One partition of a topic. Raises UnknownTopicError if there is none."""
        partitions = self._of(topic)
        if not 0 <= partition < len(partitions):
            raise UnknownTopicError(
                f"the topic has {len(partitions)} partitions", topic=topic, partition=partition
            )
        return partitions[partition]


class MemoryWriter:
    """A writer of a ``MemoryLog``; see ``tailrace.log.Writer``."""

    shared, lost = None, False

    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._log = log
        self._open: Transaction | None = None
        self._in_doubt = False

    def append(self, outputs: Iterable[RawOutput], /, partition: int | None = None) -> None:
        self._enter("append")
        if self._open is None:
            self._open = Transaction()
        self._log.add(outputs, partition, self._open)

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        try:
            self._enter("commit")
            for name in watermarks or ():
                self._log.partitions(name.partition(CHANNEL)[0])
            written = {} if self._open is None else self._open.written
            ends = {partition.place: end for partition, end in written.items()}
            published = {
                name: Publication(self.transactional_id, at, name.partition(CHANNEL)[2])
                for name, at in (watermarks or {}).items()
            }
            self.end(
                keep=True,
                offsets={(group, place): offset for place, offset in (offsets or {}).items()},
                watermarks=published,
            )
            self._log.on_operation("committed")
        except CommitUnknownError:
            self._in_doubt = True
            raise
        return ends

    def abort(self) -> None:
        self._enter("abort")
        self.end(keep=False)

    def close(self) -> None:
        self._log.on_operation("close-writer")
        if self._log.is_holder(self):
            self.end(keep=False)

    def end(
        self,
        *,
        keep: bool,
        offsets: Mapping[tuple[str, TopicPartition], int] | None = None,
        watermarks: Mapping[str, Publication] | None = None,
    ) -> None:
        """Decide the open transaction, if any; also how the log ends it for its holder."""
        transaction, self._open = self._open or Transaction(), None
        self._log.end_transaction(transaction, keep=keep, offsets=offsets or {}, watermarks=watermarks or {})

    def _enter(self, operation: Operation) -> None:
        self._log.on_operation(operation)
        if not self._log.is_holder(self):
            raise FencedError(
                f"the transactional id {self.transactional_id!r} was taken over by another",
                hint="Stop this task. Its new owner continues from the last commit.",
            )
        if self._in_doubt:
            raise CommitUnknownError(
                f"the last commit of {self.transactional_id!r} has an unknown outcome",
                hint="Take the transactional id over again and read what is there.",
            )


def _nothing(_operation: Operation, /) -> None:
    """The hook of a log whose operations all succeed."""
