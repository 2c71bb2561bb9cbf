"""The public class of the embedded log: a folder that many processes open at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tailrace.core.errors import CorruptLogError, TopicMismatchError
from tailrace.core.records import CHANNEL, Output
from tailrace.log.embedded.appending import Appender
from tailrace.log.embedded.cleaning import clean, held_off, is_due
from tailrace.log.embedded.copying import check_machine, copy_log
from tailrace.log.embedded.database import PARTITIONS, TOPICS, WAL, WRITERS, prepare
from tailrace.log.embedded.failures import DAMAGED
from tailrace.log.embedded.lock import NoteFile
from tailrace.log.embedded.placing import EmbeddedPlacer
from tailrace.log.embedded.reader import EmbeddedReader
from tailrace.log.embedded.rows import Bounds, Rows, Topic
from tailrace.log.embedded.tasks import EmbeddedTasks, owner_of
from tailrace.log.embedded.view import View
from tailrace.log.embedded.writer import Batch, EmbeddedWriter, commit_batch
from tailrace.log.interface import Cleaned, Ends, PublishedAt, PublishedIn, TopicPartition, TopicSettings
from tailrace.log.options import LogOptions
from tailrace.log.plain_log import PlainLog
from tailrace.log.publications import in_partition
from tailrace.log.routing import Router
from tailrace.log.tasks import AppTasks, OnAssigned, OnRevoked, Owner, nothing
from tailrace.log.topic_rules import PlainAdmin, check_existing

_MOST_FINDINGS = 10
"""After which SQLite looks no further."""


class EmbeddedLog(PlainLog):
    """A log in a folder; implements ``tailrace.log.Log``. Any number of processes can open it.

    If the folder is absent or empty, the log is created, unless ``create`` is false. Reading needs no permission to write.

    Raises:
        ForeignLogError: The folder holds something else; it is not changed.
        FormatError: Another version wrote the log, in another format.
        CorruptLogError: The log is damaged; the message names file and position.
        LogUnavailableError: The log does not exist, and ``create`` is false, or cannot be created or read.
    """

    def __init__(self, path: Path | str, options: LogOptions | None = None, *, create: bool = True) -> None:
        self.path = Path(path).absolute()
        self.options = options = options or LogOptions()
        self._note = note = NoteFile(self.path, patience_s=options.patience_s)
        self._view = View(self.path)
        try:
            prepare(self.path, note, create=create)
            if (self.path / WAL).exists():
                check_machine(self.path)
            self._view.version()
        except BaseException:
            note.close()
            raise
        self.admin = PlainAdmin(self, self._keep_all)
        self._appender = Appender(
            self._view, note, fsync=options.fsync, fsync_interval_s=options.fsync_interval_s
        )

    @property
    def place(self) -> str:
        """See ``StoredLog.place``: the folder."""
        return str(self.path)

    # --- topics and positions

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        with self._view.moment() as rows:
            if _known(rows, topic, settings):
                return
        with self._appender.turn("creating a topic") as changes:
            if _known(changes, topic, settings):
                return
            before = list(changes.topics().values())
            place = before[-1].first_place + before[-1].partitions if before else 0
            compacted = int(settings.compacted)
            limits = settings.retention_ms, settings.retention_bytes
            changes.put(TOPICS, (topic,), (place, settings.partitions, compacted, *limits))
            for partition in range(settings.partitions):
                changes.put(PARTITIONS, (place + partition,), Bounds())

    def topics(self) -> Mapping[str, TopicSettings]:
        with self._view.moment() as rows:
            return {name: one.settings for name, one in rows.topics().items()}

    def partitions(self, topic: str, /) -> int:
        with self._view.moment() as rows:
            return rows.topic(topic).partitions

    def start_offset(self, topic: str, partition: int, /) -> int:
        return self._bounds(topic, partition).start

    def end_offset(self, topic: str, partition: int, /) -> int:
        """See ``Log.end_offset``. It is also the last stable offset."""
        return self._bounds(topic, partition).end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        with self._view.moment() as rows:
            place = rows.place(topic, partition)
            start, end = rows.bounds(place)[:2]
            offset = rows.first_at(place, timestamp_ms)
            while (block := rows.block_at(place, offset)) is not None:
                if block.max_ms >= timestamp_ms:
                    for record in rows.records(block):
                        if record.timestamp_ms >= timestamp_ms and record.offset >= start:
                            return record.offset
                offset = block.end
        return end

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """See ``Log.committed_offsets``; they do not expire."""
        with self._view.moment() as rows:
            found = {place: rows.committed(group, place) for place in partitions}
        return {place: offset for place, offset in found.items() if offset is not None}

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        found: dict[tuple[str, str], int | None] = {}
        with self._view.moment() as rows:
            for topic, one in rows.topics().items():
                for last in rows.last_published(one.first_place):
                    publisher, mark, channel = last.publisher.partition(CHANNEL)
                    found[f"{topic}{mark}{channel}", publisher] = last.watermark_ms
        return found

    def ends(self, topics: Iterable[str], /) -> Ends:
        """The end offsets of topics, all as of one commit: the last one that this process can see.
        Raises UnknownTopicError: one of the topics does not exist.
        """
        with self._view.moment() as rows:
            return Ends(rows.state().commits, {topic: rows.ends(topic) for topic in topics})

    def compaction_paused(self, _topics: Iterable[str] = (), /) -> AbstractContextManager[None]:
        """Prevent cleaning inside the block, so that a compacted topic can be read as of a past offset.

        Waits for a running cleaning. A ``clean`` meanwhile returns ``busy``.
        """
        return held_off(self.path)

    # --- writers and readers

    def writer(self, transactional_id: str, /) -> EmbeddedWriter:
        with self._appender.turn("taking a transactional id over") as changes:
            before = changes.get(WRITERS, transactional_id)
            epoch = before[0] + 1 if before else 1
            changes.put(WRITERS, (transactional_id,), (epoch,))
        return EmbeddedWriter(self._appender, self._router(), transactional_id, epoch)

    def reader(self, positions: Mapping[TopicPartition, int], /) -> EmbeddedReader:
        reader = EmbeddedReader(self._view)
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append records in one commit, without a transactional id. Returns the new end of each partition."""
        batch = Batch()
        batch.add(self._router().split(outputs, partition))
        batch.encoded()
        with self._appender.turn() as changes:
            return commit_batch(changes, batch, offsets={}, group="", watermarks={}, publisher="")

    def published(self, topic: str, /) -> list[PublishedAt]:
        with self._view.moment() as rows:
            return [PublishedAt(*one[1:]) for one in rows.published(rows.topic(topic).first_place, 0)]

    def published_in(self, topic: str, partition: int, /) -> list[PublishedIn]:
        return in_partition(self.published(topic), partition)

    def placer(self, _scratch: str, /) -> EmbeddedPlacer:
        return EmbeddedPlacer(self._appender)

    # --- tasks

    def join(
        self, tasks: AppTasks, on_assigned: OnAssigned = nothing, _on_revoked: OnRevoked = nothing, /
    ) -> EmbeddedTasks:
        """See ``TaskLog.join``. The tasks are assigned at the first ``look``, and none is revoked."""
        return EmbeddedTasks(self.path, tasks, on_assigned)

    def owner(self, app: str, number: int, /) -> Owner | None:
        return owner_of(self.path, app, number)

    def live_reader(self) -> EmbeddedReader:
        """See ``ServiceLog.live_reader``: no reader waits."""
        return self.reader({})

    # --- retention and cleaning

    def delete_before(self, topic: str, partition: int, offset: int, /) -> None:
        """Hide the records below ``offset`` from readers. ``clean`` frees their disk space."""
        with self._appender.turn("deleting records") as changes:
            place = changes.place(topic, partition)
            bounds = changes.bounds(place)
            start = max(bounds.start, min(offset, bounds.end))
            changes.put(PARTITIONS, (place,), bounds._replace(start=start))

    def clean(self, *, now_ms: int | None = None, deletions_kept_ms: int = 86_400_000) -> Cleaned:
        """Apply retention and compaction now, one process at a time. Others may commit meanwhile.

        ``now_ms`` (default: the clock) is compared with the timestamps of records. A deletion in a compacted topic is
        kept for ``deletions_kept_ms``, from the cleaning on that removed the record that it deletes.
        """
        return clean(self._appender, _clock_ms() if now_ms is None else now_ms, deletions_kept_ms)

    def cleaning_is_due(self, *, now_ms: int | None = None) -> bool:
        """Whether compacted topics have grown enough, or retention frees at least a tenth. Reads no records."""
        with self._view.moment() as rows:
            at_ms = _clock_ms() if now_ms is None else now_ms
            return is_due(rows, at_ms, self.options.compaction_bytes)

    def set_retention(self, topic: str, /, *, retention_ms: int | None, retention_bytes: int | None) -> None:
        """Change for how long, or up to which size, a topic's records are kept. None: no limit.

        The next ``clean`` deletes the records past the limit.
        Raises UnknownTopicError: the topic does not exist; TopicMismatchError: the topic is compacted.
        """
        with self._appender.turn("changing a topic") as changes:
            before = changes.topic(topic)
            if before.compacted:
                raise TopicMismatchError(
                    "the topic is compacted: it keeps the last record of each key, however old",
                    topic=topic,
                    hint="Delete what is to go, key by key.",
                )
            after = before._replace(retention_ms=retention_ms, retention_bytes=retention_bytes)
            changes.put(TOPICS, (topic,), after)

    def _keep_all(self, topic: str) -> None:
        self.set_retention(topic, retention_ms=None, retention_bytes=None)

    @property
    def identity(self) -> bytes:
        """See ``OneCommitLog.identity``: 16 random bytes."""
        with self._view.moment() as rows:
            return rows.state().identity

    def verify(self) -> None:
        """Read the whole log and check it. The WAL grows meanwhile with what is committed.
        Raises CorruptLogError: a row is missing or does not match its checksum, or the file is damaged.
        """
        with self.compaction_paused(), self._view.moment("verifying the log") as rows:
            _verify(rows)

    def copy_to(self, folder: Path | str) -> int:
        """Copy the log, as of one moment, to a folder that does not exist or is empty. Others may commit meanwhile.

        A copy is one file. It can be read on any file system; the first process that writes to it makes it a log of its machine.
        Returns the number of its last commit.

        Raises:
            LogUnavailableError: The copy cannot be written. What was written of it is removed.
            ForeignLogError: The folder holds something, or is in the log's own folder.
        """
        return copy_log(self.path, Path(folder))

    def sync(self) -> None:
        """Wait until all commits of this process are on the disk, whatever the policy."""
        self._appender.sync()

    def close(self) -> None:
        self._appender.close()
        self._view.close()
        self._note.close()

    def _bounds(self, topic: str, partition: int) -> Bounds:
        with self._view.moment() as rows:
            return rows.bounds(rows.place(topic, partition))

    def _router(self) -> Router:
        return Router(self.partitions, self.options.max_record_bytes)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _known(rows: Rows, topic: str, settings: TopicSettings) -> bool:
    values = rows.get(TOPICS, topic)
    if values is not None:
        check_existing(topic, Topic(*values).settings, settings)
    return values is not None


def _verify(rows: Rows) -> None:
    """SQLite checks the structure of the file, and each block of records its checksum and its place."""
    said = [str(row[0]) for row in rows.connection.execute(f"PRAGMA integrity_check({_MOST_FINDINGS})")]
    if said != ["ok"]:
        first, *others = [line for one in said for line in one.splitlines() if not line.startswith("***")]
        least = "at least " if len(others) + 1 >= _MOST_FINDINGS else ""
        more = f", and {least}{len(others)} more findings" if others else ""
        raise CorruptLogError(f"the file is damaged: {first}{more}", path=str(rows.path), hint=DAMAGED)
    for topic in rows.topics().values():
        for place in topic.places:
            start, end, _, size = rows.bounds(place)
            at = None
            for block in rows.blocks(place):
                rows.records(block)
                if block.first != at and (at is not None or block.first > start):
                    raise rows.damage("a block", place, at or start)
                at, size = block.end, size - block.length
            if (start if at is None else at) != end or size:
                raise rows.damage("a block", place, at or start)
