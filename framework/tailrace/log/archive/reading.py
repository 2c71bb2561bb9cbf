"""An archive, and the log it is of, read as one history: a ``Log`` whose oldest records come from Parquet files.

::

    archive   |-------------------|
    log                 |-----------------------|
    read      |~~~~~~~~~~~~~~~~~~~|~~~~~~~~~~~~~|
              start               join          end

The two are joined, partition by partition, at the offset where the archive ends: all records below it are read from the
archive, even those that the log still has. If the log begins after that offset there is a gap, and an error names the offsets
of the records that cannot be read. Without a log the archive alone is the history. Nothing is written through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from tailrace.core.errors import LogUnavailableError, OffsetGoneError, UnknownTopicError, UsageError
from tailrace.core.records import InputRecord
from tailrace.core.suggestions import did_you_mean
from tailrace.log.admin import Admin
from tailrace.log.archive.files import EVERYTHING, ChunkRecords, Wanted
from tailrace.log.archive.layout import Archive, Chunk, Published
from tailrace.log.archive.same_log import check_same_log
from tailrace.log.interface import (
    Ends,
    Fetch,
    OneCommitLog,
    Publication,
    Reader,
    TopicPartition,
    TopicSettings,
    Writer,
)
from tailrace.log.publications import Heard
from tailrace.log.topic_rules import PlainAdmin


class ArchivedLog:
    """See the head of this file; implements ``OneCommitLog``.

    ``log`` is closed with it. ``wanted`` says what readers need; anything else may then be missing in what they give.
    Raises LogUnavailableError: there is no archive.
    """

    def __init__(
        self, archive: Archive, log: OneCommitLog | None = None, *, wanted: Wanted = EVERYTHING
    ) -> None:
        self.archive = archive
        self.log = log
        self.wanted = wanted
        self._chunks: dict[TopicPartition, list[Chunk]] = {}
        self._archived = archive.topics()
        if not archive.exists:
            raise LogUnavailableError(
                f"there is no archive in {archive.folder.shown!r}",
                hint="Correct the location. The command tailrace archive makes an archive.",
            )

    # --- topics and positions

    @property
    def identity(self) -> bytes:
        """See ``OneCommitLog.identity``; of the log, or of the one that was archived."""
        return bytes.fromhex(self.archive.log_identity) if self.log is None else self.log.identity

    @property
    def admin(self) -> Admin:
        """See ``Log.admin``; of the log, if there is one."""
        return PlainAdmin(self, lambda _topic: self._refuse()) if self.log is None else self.log.admin

    def topic_ids(self, topics: Iterable[str], /) -> Mapping[str, str]:
        """See ``Log.topic_ids``; of the log, for the topics that it has."""
        return {} if self.log is None else self.log.topic_ids(filter(self._log_of, topics))

    def watch(self, topics: Iterable[str], /) -> Mapping[str, str]:
        """See ``Log.watch``; of the log, for the topics that it has."""
        return {} if self.log is None else self.log.watch(filter(self._log_of, topics))

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        """See ``Log.publications``; of the log: an archive has them with its records only."""
        return {} if self.log is None else self.log.publications()

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        """Refused, unless it is there as it is asked for."""
        if self.topics().get(topic) != settings:
            self._refuse()

    def topics(self) -> Mapping[str, TopicSettings]:
        """Those of the archive and of the log."""
        return {**self._archived, **(self.log.topics() if self.log is not None else {})}

    def partitions(self, topic: str, /) -> int:
        known = self.topics()
        if topic not in known:
            raise UnknownTopicError(
                "neither the archive nor the log has the topic",
                topic=topic,
                hint=did_you_mean(topic, known, "See tailrace log list."),
            )
        return known[topic].partitions

    def chunks(self, place: TopicPartition) -> list[Chunk]:
        """The chunks that are read for a partition: those that reach up to the log.
        Raises ArchiveError: the archive is that of another log, or of an end that the log has lost.
        """
        found = self._chunks.get(place)
        if found is None:
            if place.partition >= self.partitions(place.topic):
                raise UnknownTopicError(
                    "there is no such partition", topic=place.topic, partition=place.partition
                )
            found = self.archive.chunks(place)
            log = self._log_of(place.topic)
            if log is not None:
                check_same_log(self.archive, log, place)
                if found and log.start_offset(*place) > found[-1].stop:
                    found = []  # a hole: what is before it is no part of this history
            self._chunks[place] = found
        return found

    def start_offset(self, topic: str, partition: int, /) -> int:
        """The oldest offset that is read."""
        chunks, log = self.chunks(TopicPartition(topic, partition)), self._log_of(topic)
        if chunks:
            return chunks[0].start
        return 0 if log is None else log.start_offset(topic, partition)

    def check_no_gap(self, place: TopicPartition) -> None:
        """Raises OffsetGoneError: the log has deleted records behind the end of the archive."""
        archived, start = self.archive.chunks(place), self.start_offset(*place)
        if archived and start > archived[-1].stop:
            stop = archived[-1].stop
            raise OffsetGoneError(
                f"offsets {stop} to {start - 1} are neither in the archive nor in the log",
                topic=place.topic,
                partition=place.partition,
                offset=stop,
                hint="Without the archive, what the log has can be read.",
            )

    def end_offset(self, topic: str, partition: int, /) -> int:
        """See ``Log.end_offset``; the archive's, where there is no log."""
        chunks, log = self.chunks(TopicPartition(topic, partition)), self._log_of(topic)
        if log is not None:
            return log.end_offset(topic, partition)
        return chunks[-1].stop if chunks else 0

    def join(self, place: TopicPartition) -> int:
        """The offset from which on the log is read."""
        chunks = self.chunks(place)
        return chunks[-1].stop if chunks else self.start_offset(*place)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        place = TopicPartition(topic, partition)
        for chunk in self.chunks(place):
            if chunk.last_ms < timestamp_ms:
                continue
            times_only = Wanted(first_ms=timestamp_ms, columns=frozenset())
            content = self.archive.content(place, chunk)
            found = ChunkRecords(self.archive.folder, content, chunk, times_only)
            for record in found.records(chunk.start, chunk.stop - chunk.start):
                if record.timestamp_ms >= timestamp_ms:
                    return record.offset
        log = self._log_of(topic)
        if log is None:
            return self.end_offset(topic, partition)
        return max(log.offset_at(topic, partition, timestamp_ms), self.join(place))

    def stretches(self, place: TopicPartition, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of some offsets that can have wanted records; what comes from the log is one part."""
        found = [
            (max(start, chunk.start), min(stop, chunk.stop))
            for chunk in self.chunks(place)
            if self.wanted.takes(chunk.first_ms, chunk.last_ms)
        ]
        found.append((max(start, self.join(place)), stop))
        return [(begin, end) for begin, end in found if begin < end]

    def ends(self, topics: Iterable[str], /) -> Ends:
        """The ends of topics as of one commit: the log's last, or the last that is archived as a whole.
        Raises UnknownTopicError: one of them is not there.
        """
        names = [*topics]
        if self.log is not None and all(map(self._log_of, names)):
            return self.log.ends(names)
        found = self.archive.ends(names)
        if found is None:
            raise UnknownTopicError(
                f"{', '.join(names)} were never archived together",
                hint="Archive all topics in one run, or read the archive together with its log.",
            )
        return found

    def compaction_paused(self, topics: Iterable[str] = (), /) -> AbstractContextManager[None]:
        """While it is held, no compaction takes records away; nothing ever does from the archive."""
        return nullcontext() if self.log is None else self.log.compaction_paused(topics)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """Those of the log."""
        return {} if self.log is None else self.log.committed_offsets(group, partitions)

    def offsets_before_open_transactions(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """Those of the log."""
        return {} if self.log is None else self.log.offsets_before_open_transactions(group, partitions)

    def _log_of(self, topic: str) -> OneCommitLog | None:
        """The log, if it has the topic."""
        return self.log if self.log is not None and topic in self.log.topics() else None

    # --- readers and writers

    def reader(self, positions: Mapping[TopicPartition, int], /) -> ArchivedReader:
        reader = ArchivedReader(self)
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def writer(self, transactional_id: str, /) -> Writer:  # noqa: ARG002 (none is given)
        """Refused."""
        self._refuse()

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            "a log that is read together with its archive is only read", hint="Write to the log itself."
        )


class _Cursor:
    """Where a reader stands in a partition, with the chunk that it reads."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.chunk: ChunkRecords | None = None
        self.in_log = False
        self.published: list[Published] = []
        self.seen: dict[str, int | None] = {}


class ArchivedReader:
    """A reader of an ``ArchivedLog``. Holds a chunk of each partition in memory."""

    def __init__(self, joined: ArchivedLog) -> None:
        self._joined = joined
        self._cursors: dict[TopicPartition, _Cursor] = {}
        self._log: Reader | None = None if joined.log is None else joined.log.reader({})

    def seek(self, topic: str, partition: int, offset: int, /) -> None:
        place = TopicPartition(topic, partition)
        cursor = self._cursors[place] = _Cursor(offset)
        self._enter_log(place, cursor)

    def _enter_log(self, place: TopicPartition, cursor: _Cursor) -> None:
        joined = self._joined
        if self._log is not None and cursor.position >= joined.join(place) and joined._log_of(place.topic):
            self._log.seek(*place, cursor.position)
            cursor.in_log, cursor.chunk = True, None

    def fetch(self, topic: str, partition: int, max_records: int, /) -> Fetch:
        place = TopicPartition(topic, partition)
        cursor, joined = self._cursors[place], self._joined
        if cursor.in_log and self._log is not None:
            found = self._log.fetch(topic, partition, max_records)
            cursor.position = found.next_offset
            return found
        chunks = joined.chunks(place)
        start, end = joined.start_offset(*place), joined.join(place)
        if not start <= cursor.position <= end:
            raise OffsetGoneError(
                f"archive and log hold offsets from {start} on, the reader stands at {cursor.position}",
                topic=topic,
                partition=partition,
                offset=cursor.position,
                hint="Earlier records were neither archived nor kept in the log, or are before a gap between the two.",
            )
        if cursor.position == end:
            return Fetch([], end, unread=False, idle=True)
        records = self._from_archive(place, cursor, chunks, max_records)
        more = joined.end_offset(*place)
        self._enter_log(place, cursor)
        return Fetch(records, cursor.position, cursor.position < more, idle=cursor.position == more)

    def _from_archive(
        self, place: TopicPartition, cursor: _Cursor, chunks: list[Chunk], most: int
    ) -> list[InputRecord]:
        held = cursor.chunk
        if held is None or not held.chunk.start <= cursor.position < held.chunk.stop:
            chunk = next(one for one in chunks if cursor.position < one.stop)
            content = self._joined.archive.content(place, chunk)
            held = ChunkRecords(self._joined.archive.folder, content, chunk, self._joined.wanted)
            cursor.chunk = held
            cursor.published += content.published
        records = held.records(cursor.position, most)
        cursor.position = records[-1].offset + 1 if len(records) == most else held.chunk.stop
        return records

    def published(self, topic: str, partition: int, /) -> list[Publication]:
        """See ``Reader.published``. Of the archive, as finely as it was archived: some thousand records."""
        place = TopicPartition(topic, partition)
        cursor = self._cursors[place]
        found = Heard()
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
        if any(not one.in_log for one in self._cursors.values()) or self._log is None:
            return any(
                cursor.position < self._joined.end_offset(*place) for place, cursor in self._cursors.items()
            )
        return self._log.wait(timeout_s)

    def close(self) -> None:
        self._cursors.clear()
        if self._log is not None:
            self._log.close()
