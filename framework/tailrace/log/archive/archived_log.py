"""An archive is a log that wraps another: ``ArchivedLog`` is one history of both, which is only read.

Theory. In each partition, the *join* is the offset at which the archive ends::

    archive   |-------------------|
    log                 |-----------------------|
    read      |~~~~~~~~~~~~~~~~~~~|~~~~~~~~~~~~~|
              start              join          end

    asked                          answered by
    records, watermarks, times     the archive below the join, even where the log still has them; else the log
    start                          the archive, if it has the partition; else the log
    end, ends                      the log; for topics that it does not have, and without a log, the archive
    topics                         both; the log's settings, where both have one
    ids, groups, compaction,       the log
    publications, admin, identity

Records of two logs must never become one history. Another log, or one that has lost its end and has grown past it again, has
the same offsets. So before a partition is joined, or archived further, these are compared, and a difference is an ArchiveError::

    the log's identity     if both are known they must be equal. A copy of a log has the same
    the topic              must not have been deleted and created again since (``log.same_topics``)
    its end                the log must reach as far as the archive
    a record               the last archived one or, if the log has compacted it away, the oldest one that both hold

If the log has deleted exactly what is archived, there is no such record: the two are joined with a warning, and a replay also
checks the chain of commits on the tape (``history.provenance``). If the log has also deleted records behind the
join, there is a gap: any question about the partition is refused with the offsets that neither has (OffsetGoneError).
Nothing is written through it (UsageError). Without a log, the archive alone is the history.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from typing import NoReturn

from tailrace.core.errors import (
    ArchiveError,
    LogUnavailableError,
    OffsetGoneError,
    OtherHistoryError,
    UnknownTopicError,
    UsageError,
)
from tailrace.core.records import InputRecord, RecordMark
from tailrace.core.suggestions import did_you_mean
from tailrace.log.admin import Admin
from tailrace.log.archive.files import ChunkRecords
from tailrace.log.archive.layout import Archive, Chunk, Published
from tailrace.log.interface import (
    EVERYTHING,
    Ends,
    Fetch,
    OneCommitLog,
    Publication,
    PublishedIn,
    Reader,
    RecordFilter,
    TopicPartition,
    TopicSettings,
    Writer,
)
from tailrace.log.publications import Heard
from tailrace.log.same_topics import check_same
from tailrace.log.topic_rules import PlainAdmin

_HINT = (
    "It is the archive of another log, or the log has lost its end since. Archive into another folder, and read the two apart: "
    "only what was archived from a log is one history with it."
)
_logger = logging.getLogger("tailrace.log")


class ArchivedLog:
    """See the head of this file; implements ``OneCommitLog``. ``log`` is closed with it.
    Raises LogUnavailableError: there is no archive.
    """

    def __init__(self, log: OneCommitLog | None, archive: Archive, wanted: RecordFilter = EVERYTHING) -> None:
        self._log, self._archive, self.wanted = log, archive, wanted
        self._chunks: dict[TopicPartition, list[Chunk]] = {}
        self._archived = archive.topics()
        if not archive.exists:
            raise LogUnavailableError(
                f"there is no archive in {archive.folder.shown!r}",
                hint="Correct the location. The command tailrace archive makes an archive.",
            )

    def chunks(self, place: TopicPartition) -> list[Chunk]:
        """The chunks of a partition, which end at the join. Raises what ``joined_chunks`` raises."""
        if place not in self._chunks:
            if place.partition >= self.partitions(place.topic):
                raise UnknownTopicError(
                    "there is no such partition", topic=place.topic, partition=place.partition
                )
            self._chunks[place] = joined_chunks(self.log_of(place.topic), self._archive, place)
        return self._chunks[place]

    def join(self, place: TopicPartition) -> int:
        """The offset from which on the log is read."""
        chunks = self.chunks(place)
        return chunks[-1].stop if chunks else self.start_offset(*place)

    def log_of(self, topic: str) -> OneCommitLog | None:
        """The log, if it has the topic."""
        return self._log if self._log is not None and topic in self._log.topics() else None

    def load(self, place: TopicPartition, chunk: Chunk, wanted: RecordFilter) -> ChunkRecords:
        """What is wanted of the records of a chunk."""
        return ChunkRecords(self._archive.folder, self._archive.content(place, chunk), chunk, wanted)

    # --- topics and positions

    def topics(self) -> Mapping[str, TopicSettings]:
        return {**self._archived, **({} if self._log is None else self._log.topics())}

    def partitions(self, topic: str, /) -> int:
        known = self.topics()
        if topic not in known:
            raise UnknownTopicError(
                "neither the archive nor the log has the topic",
                topic=topic,
                hint=did_you_mean(topic, known, "See tailrace log list."),
            )
        return known[topic].partitions

    def start_offset(self, topic: str, partition: int, /) -> int:
        chunks, log = self.chunks(TopicPartition(topic, partition)), self.log_of(topic)
        if chunks:
            return chunks[0].start
        return 0 if log is None else log.start_offset(topic, partition)

    def end_offset(self, topic: str, partition: int, /) -> int:
        chunks, log = self.chunks(TopicPartition(topic, partition)), self.log_of(topic)
        if log is not None:
            return log.end_offset(topic, partition)
        return chunks[-1].stop if chunks else 0

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        place, log = TopicPartition(topic, partition), self.log_of(topic)
        for chunk in self.chunks(place):
            if chunk.last_ms >= timestamp_ms:
                times = self.load(place, chunk, RecordFilter(timestamp_ms, columns=frozenset()))
                for record in times.records(chunk.start, chunk.stop - chunk.start):
                    if record.timestamp_ms >= timestamp_ms:
                        return record.offset
        if log is None:
            return self.end_offset(topic, partition)
        return log.offset_at(topic, partition, timestamp_ms)

    def ends(self, topics: Iterable[str], /) -> Ends:
        """See ``OneCommitLog.ends``: the log's last commit, or the last that is archived as a whole.
        Raises UnknownTopicError: the topics were never archived together.
        """
        names = [*topics]
        if self._log is not None and all(map(self.log_of, names)):
            return self._log.ends(names)
        found = self._archive.ends(names)
        if found is None:
            raise UnknownTopicError(
                f"{', '.join(names)} were never archived together",
                hint="Archive all topics in one run, or read the archive together with its log.",
            )
        return found

    # --- answered by the log

    @property
    def identity(self) -> bytes:
        return bytes.fromhex(self._archive.log_identity) if self._log is None else self._log.identity

    @property
    def admin(self) -> Admin:
        return PlainAdmin(self, lambda _topic: _refuse()) if self._log is None else self._log.admin

    def topic_ids(self, topics: Iterable[str], /) -> Mapping[str, str]:
        """See ``Log.topic_ids``; of the log, for the topics that it has."""
        return {} if self._log is None else self._log.topic_ids(filter(self.log_of, topics))

    def watch(self, topics: Iterable[str], /) -> Mapping[str, str]:
        """See ``Log.watch``; of the log, for the topics that it has."""
        return {} if self._log is None else self._log.watch(filter(self.log_of, topics))

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        return {} if self._log is None else self._log.publications()

    def published_in(self, topic: str, partition: int, /) -> list[PublishedIn]:
        place = TopicPartition(topic, partition)
        contents = (self._archive.content(place, chunk) for chunk in self.chunks(place))
        found = [
            PublishedIn(one.position, one.publisher, one.watermark_ms)
            for of in contents
            for one in of.published
        ]
        log = self.log_of(topic)
        after = self.join(place) if self.chunks(place) else 0
        return found + (
            [one for one in log.published_in(topic, partition) if one.position >= after] if log else []
        )

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        return {} if self._log is None else self._log.committed_offsets(group, partitions)

    def offsets_before_open_transactions(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        return {} if self._log is None else self._log.offsets_before_open_transactions(group, partitions)

    def compaction_paused(self, topics: Iterable[str] = (), /) -> AbstractContextManager[None]:
        return nullcontext() if self._log is None else self._log.compaction_paused(topics)

    # --- readers and writers

    def reader(self, positions: Mapping[TopicPartition, int], /) -> ArchivedReader:
        reader = ArchivedReader(self, None if self._log is None else self._log.reader({}))
        for place, offset in positions.items():
            reader.seek(*place, offset)
        return reader

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        """Refused, unless it is there as it is asked for."""
        if self.topics().get(topic) != settings:
            _refuse()

    def writer(self, transactional_id: str, /) -> Writer:  # noqa: ARG002 (none is given)
        """Refused."""
        _refuse()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _refuse() -> NoReturn:
    raise UsageError(
        "a log that is read together with its archive is only read", hint="Write to the log itself."
    )


@dataclass(slots=True)
class _Cursor:
    """Where a reader stands in a partition, with the chunk that it reads."""

    position: int
    in_log: bool = False
    chunk: ChunkRecords | None = None
    published: list[Published] = field(default_factory=list)
    seen: dict[str, int | None] = field(default_factory=dict)


class ArchivedReader:
    """A reader of an ``ArchivedLog``. Holds a chunk of each partition in memory."""

    def __init__(self, joined: ArchivedLog, log: Reader | None) -> None:
        self._joined, self._log = joined, log
        self._cursors: dict[TopicPartition, _Cursor] = {}

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        place = TopicPartition(topic, partition)
        self._cursors[place] = _Cursor(offset)
        self._enter_log(place)

    def _enter_log(self, place: TopicPartition) -> None:
        cursor, joined = self._cursors[place], self._joined
        if self._log is not None and cursor.position >= joined.join(place) and joined.log_of(place.topic):
            self._log.seek(*place, cursor.position)
            cursor.in_log, cursor.chunk = True, None

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        place = TopicPartition(topic, partition)
        cursor, joined = self._cursors[place], self._joined
        if cursor.in_log and self._log is not None:
            found = self._log.fetch(topic, partition, max_records)
            cursor.position = found.next_offset
            return found
        start, join = joined.start_offset(*place), joined.join(place)
        if not start <= cursor.position <= join:
            raise OffsetGoneError(
                f"archive and log hold offsets from {start} on, the reader stands at {cursor.position}",
                topic=topic,
                partition=partition,
                offset=cursor.position,
                hint="Earlier records were neither archived nor kept in the log.",
            )
        records = self._archived(place, cursor, max_records) if cursor.position < join else []
        end = joined.end_offset(*place)
        self._enter_log(place)
        return Fetch(records, cursor.position, unread=cursor.position < end, idle=cursor.position == end)

    def _archived(self, place: TopicPartition, cursor: _Cursor, most: int) -> list[InputRecord]:
        """The next records of one chunk; none of a chunk of which nothing is wanted."""
        held, joined = cursor.chunk, self._joined
        if held is None or not held.chunk.start <= cursor.position < held.chunk.stop:
            chunk = next(one for one in joined.chunks(place) if cursor.position < one.stop)
            if not joined.wanted.takes(chunk.first_ms, chunk.last_ms):
                cursor.position = chunk.stop
                return []
            cursor.chunk = held = joined.load(place, chunk, joined.wanted)
            cursor.published += held.published
        records = held.records(cursor.position, most)
        cursor.position = records[-1].offset + 1 if len(records) == most else held.chunk.stop
        return records

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        """See ``Reader.published``. Of the archive, as finely as it was archived: some thousand records."""
        cursor, found = self._cursors[TopicPartition(topic, partition)], Heard()
        while cursor.published and cursor.published[0].position <= cursor.position:
            archived = cursor.published.pop(0)
            found.add(archived.publisher, archived.watermark_ms)
        if cursor.in_log and self._log is not None:
            for one in self._log.published(topic, partition):
                found.add(one.name, one.watermark_ms)
        return found.news(cursor.seen)

    def forget(self, topic: str, partition: int, /) -> None:
        self._cursors.pop(TopicPartition(topic, partition), None)
        if self._log is not None:
            self._log.forget(topic, partition)

    def wait(self, timeout_s: float, /) -> bool:
        if self._log is not None and all(one.in_log for one in self._cursors.values()):
            return self._log.wait(timeout_s)
        return any(one.position < self._joined.end_offset(*place) for place, one in self._cursors.items())

    def close(self) -> None:
        self._cursors.clear()
        if self._log is not None:
            self._log.close()


# --- the border


def joined_chunks(log: OneCommitLog | None, archive: Archive, place: TopicPartition) -> list[Chunk]:
    """The chunks of a partition, compared with the log where they meet: see the head of this file.

    Raises:
        ArchiveError: The archive is that of another log, or of an end that the log has lost.
        OffsetGoneError: There is a gap.
    """
    chunks = archive.chunks(place)
    if log is None or not chunks:
        return chunks
    where, identity = f"{place.topic!r} partition {place.partition}", log.identity.hex()
    if archive.log_identity and identity and archive.log_identity != identity:
        raise _other(
            archive, f"the archive is of the log {archive.log_identity}, and this is the log {identity}"
        )
    try:
        check_same(log, {place.topic: archive.topic_note(place.topic).decode()})
    except OtherHistoryError as error:
        said = f"the topic {place.topic!r} was deleted and created again since it was archived"
        raise _other(archive, said) from error
    last, start, end = chunks[-1], log.start_offset(*place), log.end_offset(*place)
    if last.stop > end:
        raise _other(archive, f"the archive holds {where} up to offset {last.stop}, the log ends at {end}")
    if last.stop < start:
        raise OffsetGoneError(
            f"offsets {last.stop} to {start - 1} are neither in the archive nor in the log, which begins at {start}",
            topic=place.topic,
            partition=place.partition,
            offset=last.stop,
            hint="Without the archive, what the log has can be read. Begin another archive in another folder, and archive more "
            "often than the log deletes.",
        )
    compared = _compared(log, archive, place, last, start)
    if compared is None:
        _logger.warning(
            "whether the archive %s is one of this log cannot be checked: the log has deleted the records of %s that the archive ends with",
            archive.folder.shown,
            where,
        )
    elif not compared[1]:
        raise _other(
            archive, f"offset {compared[0]} of {where} is another record in the archive than in the log"
        )
    return chunks


def _compared(
    log: OneCommitLog, archive: Archive, place: TopicPartition, chunk: Chunk, start: int
) -> tuple[int, bool] | None:
    """The offset of a record that both have, and whether it is the same; None if there is none."""
    content = archive.content(place, chunk)
    last = content.last
    if last is not None and last.offset >= start:
        found = _at(log, place, last.offset)
        if found is not None and found.offset == last.offset:
            return last.offset, RecordMark.of(found) == last
    oldest = _at(log, place, max(start, chunk.start)) if start < chunk.stop else None
    if oldest is None or oldest.offset >= chunk.stop or not content.files:
        return None
    archived = ChunkRecords(archive.folder, content, chunk).records(oldest.offset, 1)
    return oldest.offset, archived == [oldest]


def _at(log: OneCommitLog, place: TopicPartition, offset: int) -> InputRecord | None:
    """The first record of the log at or after an offset; None if there is none."""
    with closing(log.reader({place: offset})) as reader:
        return next(iter(reader.fetch(*place, 1).records), None)


def _other(archive: Archive, what: str) -> ArchiveError:
    return ArchiveError(what, path=archive.folder.shown, hint=_HINT)
