"""The interface of an event log: in memory, in files on one machine, or Kafka.

Theory. A topic has partitions; a partition is a sequence of records with ascending offsets. Three positions matter::

    start                       last stable offset              end
      |  committed records, maybe with gaps  |  not yet readable  |

``start`` is the oldest record kept. Up to the *last stable offset* every transaction has ended; a reader sees the
committed records below it and nothing else. ``end`` (Kafka's high watermark) counts what open transactions have
appended too. Offsets have gaps, for three reasons: aborted records, the markers that end transactions, compaction.
So "have I read everything?" is a question about positions, never about records, and a fetch that gives no record may
still move its position.

Writers are transactional, and fenced: a transactional id has one holder, the last who asked for it. What a writer
appends becomes visible with its commit, together with the input offsets that the commit carries, over all partitions
or not at all. A commit has three outcomes: done, not done (the call raised something else), and *unknown*
(``CommitUnknownError``). The unknown one is resolved by looking: ask for the transactional id again, which ends
whatever was open, and read what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.core.counting import counted
from tailrace.core.durations import spelled
from tailrace.core.records import CHANNEL, InputRecord, Output, RawOutput
from tailrace.log.options import LogOptions
from tailrace.log.tasks import TaskLog

if TYPE_CHECKING:
    from tailrace.log.admin import Admin


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class TopicSettings(NamedTuple):
    """How a topic is kept.

    A ``compacted`` topic keeps the last record of every key, and a deletion (a record without a value) at least for
    a time that the log defines. ``retention_ms`` deletes records by their timestamps, which are event times here; None keeps
    them without a limit. ``retention_bytes`` deletes the oldest records of a partition that is larger than about this size.
    """

    partitions: int
    compacted: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None

    def __str__(self) -> str:
        """For a person: ``4 partitions, all kept``."""
        limits = ["the last of each key kept"] if self.compacted else []
        if self.retention_ms is not None:
            limits.append(f"{spelled(self.retention_ms)} kept")
        if self.retention_bytes is not None:
            limits.append(f"{self.retention_bytes:,} bytes kept")
        return ", ".join([counted(self.partitions, "partition"), *(limits or ["all kept"])])


class Publication(NamedTuple):
    """A writer's promise about a topic: it will write no further records of an event time up to ``watermark_ms``.

    None: it holds no reader back, because it is idle or will not run again.
    """

    publisher: str
    """Its transactional id."""
    watermark_ms: int | None
    channel: str = ""
    """The part of the topic that it is of, if it is not of the whole: see ``Writer.commit``."""

    @property
    def name(self) -> str:
        """Publisher and channel in one, as they are stored."""
        return f"{self.publisher}{CHANNEL}{self.channel}" if self.channel else self.publisher

    @classmethod
    def named(cls, name: str, watermark_ms: int | None) -> Publication:
        """The publication of a stored name."""
        publisher, _, channel = name.partition(CHANNEL)
        return cls(publisher, watermark_ms, channel)


class Fetch(NamedTuple):
    """The result of one fetch.

    ``next_offset`` is the reader's position after it, past gaps as far as they are known. ``unread``: more committed
    records are known to be after that position. ``idle``: there is no record after it, neither readable nor
    hidden by an open transaction (position = last stable offset = end). If neither is set, there are records that cannot be
    read yet, or it is not known.
    """

    records: list[InputRecord]
    next_offset: int
    unread: bool
    idle: bool


class PublishedAt(NamedTuple):
    """A publication, and where it holds: for readers that have read partition p of its topic up to ``ends[p]``."""

    name: str
    """See ``Publication.name``."""
    watermark_ms: int | None
    ends: Sequence[int]


class PublishedIn(NamedTuple):
    """A publication, as the readers of one partition see it: it holds from this position on."""

    position: int
    name: str
    """See ``Publication.name``."""
    watermark_ms: int | None


class Stretch(NamedTuple):
    """Committed records of a partition, up to an end. Offsets without a record may be before, between and after them."""

    place: TopicPartition
    records: Sequence[InputRecord]
    end: int


class RecordFilter(NamedTuple):
    """The times (from, and up to but without) and columns that a reader of the past needs. A log may leave out all else."""

    first_ms: int = -(1 << 63)
    stop_ms: int = (1 << 63) - 1
    columns: frozenset[str] = frozenset(("key", "value", "headers"))

    def takes(self, first_ms: int, last_ms: int) -> bool:
        """Whether records between these times, both included, can be wanted."""
        return first_ms < self.stop_ms and last_ms >= self.first_ms


EVERYTHING = RecordFilter()


class Ends(NamedTuple):
    """Where topics end, so that the ends fit together: at a consistent cut of all tasks (see ``log.consistent_ends``).

    Each changelog ends at a commit of its task. Whatever such a commit has read or written is below the other ends. On a log whose
    commits are one step for all topics, it is one moment of the log: no commit is in one of the topics and not in another.
    """

    position: int
    """Which moment: a number that grows with every commit."""
    offsets: dict[str, list[int]]
    """By topic, the end of each partition."""


class Reader(Protocol):
    """Reads the committed records of the partitions it was given a position in. For one thread."""

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        """The next records of one partition, at most ``max_records``, and the position moved past them.

        Never blocks: records that have not arrived yet are not waited for.

        Raises:
            OffsetGoneError: The position is below the partition's start or past its end. It is never moved by itself.
            LogUnavailableError: The log does not answer; the position is where it was.
        """
        ...

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        """Read a partition from ``offset`` on; one that was not read yet is taken in."""
        ...

    def forget(self, topic: str, partition: int, /) -> None:
        """Read a partition no longer. One that was not read is no error."""
        ...

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        """The watermarks published for a topic that hold at this reader's position and were not given yet.

        One holds from the position on at which everything is read that was in the partition when it was committed.
        The last of each publisher, and only if it differs from the one given before; after ``seek`` all are new. Where
        the last is None, the watermark that was published before it comes first: readers are let go there.
        """
        ...

    def wait(self, timeout_s: float, /) -> bool:
        """Wait until a fetch may find something in any of the partitions, or the time is over; whether it may."""
        ...

    def close(self) -> None:
        """Release the reader's resources. A closed reader may be closed again."""
        ...


class LiveReader(Reader, Protocol):
    """A reader that never waits for records that are on their way."""

    def behind(self, topic: str, partition: int, /) -> int | None:
        """The number of offsets from the position to the last stable offset known; None if it is not known yet."""
        ...


class Part(NamedTuple):
    """What a writer adds to a commit of several, besides the records that it has appended. See ``Writer.commit``."""

    writer: Writer
    offsets: Mapping[TopicPartition, int]
    watermarks: Mapping[str, int | None]


class Transaction(Protocol):
    """What several writers commit at once; see ``log.shared_transaction``."""

    def commit(self, parts: Sequence[Part], group: str = "", /) -> Mapping[TopicPartition, int]:
        """Commit all writers that have appended, each with its part; see ``Writer.commit``."""
        ...


class Writer(Protocol):
    """The holder of a transactional id, under which it publishes watermarks. For one thread.

    Every method raises ``FencedError`` once another has asked for the same id: nothing of the open transaction will
    ever be visible, and nothing more can be done with this writer. A transaction is opened by the first append.
    """

    @property
    def transactional_id(self) -> str:
        """Its id."""
        ...

    @property
    def shared(self) -> Transaction | None:
        """The transaction that it shares with others, if it does: they are committed together."""
        ...

    @property
    def lost(self) -> bool:
        """Whether what it has appended since the last commit is gone with a shared transaction, by the failure of another writer.

        It takes no records until ``abort`` was called; if that raises, it is of no more use.
        """
        ...

    def append(self, outputs: Iterable[RawOutput], /, partition: int | None = None) -> None:
        """Append to the open transaction, in order; sent now or buffered until the commit.

        Without ``partition`` each goes where murmur2 of its key says; no key counts as the empty key. They may be plain tuples.

        Raises:
            UnknownTopicError: A topic does not exist.
            RecordTooLargeError: The log does not take a record of this size.
            LogUnavailableError: The log cannot take it. The transaction must be aborted.
        """
        ...

    def commit(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        group: str = "",
        watermarks: Mapping[str, int | None] | None = None,
        /,
    ) -> Mapping[TopicPartition, int]:
        """Make everything appended, and ``offsets`` as the positions of ``group``, visible and durable at once.

        With it go ``watermarks``, by topic, to be found by ``Reader.published``. ``topic#channel`` stands for a part of
        a topic's records that has a watermark of its own; which records these are is for reader and writer to know.

        Returns, for each partition written, the offset after the last record of this transaction there (its marker,
        if it has one, not counted): the position from which on nothing of it is missing.

        Raises:
            CommitUnknownError: It did or did not take effect. The writer is of no more use: ask for its id again.
            LogUnavailableError: It certainly did not take effect. The transaction must be aborted.
        """
        ...

    def abort(self) -> None:
        """Drop the open transaction, if there is one. What was appended leaves a gap in the offsets, or nothing."""
        ...

    def close(self) -> None:
        """Abort what it has appended, and release the writer's resources. It stays the holder of the id. May be closed again."""
        ...


class Log(Protocol):
    """An event log. Its writers and readers may be used from different threads, each from one."""

    @property
    def admin(self) -> Admin:
        """What an operator asks of it."""
        ...

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        """Create a topic; one that exists with the same settings is left as it is.

        Raises:
            TopicMismatchError: It exists with other settings.
        """
        ...

    def topics(self) -> Mapping[str, TopicSettings]:
        """All topics by name. A log may look the settings up when one is first needed, for all topics at once.

        Raises:
            UnknownTopicError: When settings are read: the topic was deleted after the call.
        """
        ...

    def partitions(self, topic: str, /) -> int:
        """How many partitions a topic has.

        Raises:
            UnknownTopicError: It does not exist.
        """
        ...

    def writer(self, transactional_id: str, /) -> Writer:
        """Take a transactional id over: earlier holders are fenced and what they left open is aborted.

        When it returns, the outcome of every earlier transaction of that id is settled and readable.
        """
        ...

    def reader(self, positions: Mapping[TopicPartition, int], /) -> Reader:
        """A reader that stands at the given positions."""
        ...

    def start_offset(self, topic: str, partition: int, /) -> int:
        """The oldest offset kept."""
        ...

    def end_offset(self, topic: str, partition: int, /) -> int:
        """The offset after the last record there is, those of open transactions included: the uncommitted end."""
        ...

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        """The least offset whose record's timestamp is ``timestamp_ms`` or later; the end if there is none."""
        ...

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """The offsets last committed for a group. A partition without one (never committed, expired) is left out."""
        ...

    def topic_ids(self, topics: Iterable[str], /) -> Mapping[str, str]:
        """The present ids of topics: one that was deleted and created again has another. ``LOG/ID``, as ids of two logs do not compare.
        Topics that do not exist are left out, and all if the log deletes none. See ``log.same_topics``.
        """
        ...

    def watch(self, topics: Iterable[str], /) -> Mapping[str, str]:
        """The ids of topics when this process looked first. From then on, its writers refuse to commit if one of them is deleted and
        created again. Raises UnknownTopicError.
        """
        ...

    def offsets_before_open_transactions(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """``committed_offsets`` without waiting for open transactions: those of dead processes end when their tasks have new owners."""
        ...

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        """The last watermark of each publisher, by topic (or ``topic#channel``) and transactional id."""
        ...

    def close(self) -> None:
        """Release all resources. A closed log may be closed again."""
        ...


class OneCommitLog(Log, Protocol):
    """A log whose history can be read up to a consistent cut of all tasks."""

    def published_in(self, topic: str, partition: int, /) -> list[PublishedIn]:
        """All publications of a topic that the log still has, by position, and those of one position in their order."""
        ...

    @property
    def identity(self) -> bytes:
        """Drawn when the log was created: no other log has it, but a copy has the same. Empty if the log has none."""
        ...

    def ends(self, topics: Iterable[str], /) -> Ends:
        """The ends of topics at a consistent cut, which is not before what exists now. All that an app reads and writes must be named."""
        ...

    def compaction_paused(self, topics: Iterable[str] = (), /) -> AbstractContextManager[None]:
        """While it is held, no compaction takes records away; else LogUnavailableError at the end, if it may have, from ``topics``."""
        ...


class Placer(Protocol):
    """Gives a log the records of another log, at the offsets that they have there. For one thread.

    Nobody else may write to these partitions meanwhile. A process that is killed leaves partitions that end at some offset of the
    other log: another placer continues there.
    """

    def begin_at(self, place: TopicPartition, offset: int, /) -> None:
        """Let a partition without records begin at an offset, as if the log had deleted the records before it."""
        ...

    def append(self, stretches: Sequence[Stretch], /) -> None:
        """Append records, each at its own offset. Each partition must end where its stretch begins, and ends at its ``end`` then.

        Raises:
            LogUnavailableError: A part of it may be in the log.
        """
        ...

    def publish(self, topic: str, publications: Sequence[PublishedAt], /) -> None:
        """Add publications of a topic, in their order. All of them or none are in the log."""
        ...

    def close(self) -> None:
        """Release the placer's resources."""
        ...


class MovableLog(OneCommitLog, Protocol):
    """A log that an app can be moved from and to."""

    def published(self, topic: str, /) -> list[PublishedAt]:
        """All publications of a topic that the log still has, in their order."""
        ...

    def placer(self, scratch: str, /) -> Placer:
        """A placer. ``scratch`` is a topic in whose first partition it may leave gaps."""
        ...


class Cleaned(NamedTuple):
    """The result of a cleaning: length of all blocks. ``busy``: nothing was done, as another process holds the lock."""

    bytes_before: int = 0
    bytes_after: int = 0
    blocks_rewritten: int = 0
    blocks_deleted: int = 0
    busy: bool = False


class ServiceLog(OneCommitLog, TaskLog, Protocol):
    """A log that apps run on."""

    def live_reader(self) -> LiveReader:
        """A reader for a service, without positions."""
        ...

    def cleaning_is_due(self) -> bool:
        """Whether ``clean`` is worth the work. Reads no records, so it can be called often."""
        ...

    def clean(self) -> Cleaned:
        """Apply retention and compaction now, unless the log does it by itself."""
        ...


class StoredLog(MovableLog, ServiceLog, Protocol):
    """What ``log.opening`` opens: a log that another process can open, too."""

    @property
    def place(self) -> str:
        """What opens this log again: its folder, or its URL."""
        ...

    @property
    def options(self) -> LogOptions:
        """The options that it was opened with."""
        ...

    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append many records as an external producer, in one commit. Returns the new end of each partition written."""
        ...
