"""The public class of the embedded log: a folder that many processes open at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tailrace.core.errors import TopicMismatchError
from tailrace.core.records import CHANNEL, Headers, Output
from tailrace.log.embedded.appending import Appender, FsyncPolicy, check_whole
from tailrace.log.embedded.appending import now_ms as present_ms
from tailrace.log.embedded.cleaning import Cleaned, clean, held_off, is_due
from tailrace.log.embedded.files import SegmentFiles
from tailrace.log.embedded.folder import prepare
from tailrace.log.embedded.frames import Meta
from tailrace.log.embedded.lock import AppendLock
from tailrace.log.embedded.reader import EmbeddedReader
from tailrace.log.embedded.routing import Router
from tailrace.log.embedded.view import View
from tailrace.log.embedded.writer import Batch, EmbeddedWriter, commit_batch
from tailrace.log.interface import Ends, TopicPartition, TopicSettings


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a process uses a log. Processes on one log may use different options.

    ``fsync`` decides what survives a power loss. A kill never loses a commit. "commit": all commits survive. "interval": all
    but those of the last ``fsync_interval_s``. "never": those that the operating system has written by then. In each case the
    log ends with a complete commit.
    """

    fsync: FsyncPolicy = "never"
    fsync_interval_s: float = 1.0
    segment_bytes: int = 256 << 20
    """The first commit that finds the segment at this size seals it."""
    max_record_bytes: int = 1 << 20
    """Size limit of an event, key and value together. Records of state and tape have no limit."""
    lease_s: float = 10.0
    """How long to wait for a stopped holder of the append lock before killing it."""
    patience_s: float = 60.0
    """How long to wait for a running holder of the append lock."""


class EmbeddedLog:
    """A log in a folder; implements ``tailrace.log.Log``. Any number of processes can open it at the same time.

    If the folder is absent or empty, the log is created, unless ``create`` is false. Reading needs no write permission.

    Raises:
        ForeignLogError: The folder holds something else; it is not changed.
        NewerFormatError: A newer version wrote the log.
        CorruptLogError: The log is damaged; the message names file and position.
        LogUnavailableError: The log does not exist, or cannot be created or read.
    """

    def __init__(self, path: Path | str, options: LogOptions | None = None, *, create: bool = True) -> None:
        self.path = Path(path)
        self.options = options = options or LogOptions()
        self._files = SegmentFiles(self.path)
        lock = AppendLock(self.path, lease_s=options.lease_s, patience_s=options.patience_s)
        try:
            prepare(self._files, lock, create=create, now_ms=present_ms())
            self._view = View(self._files, lock.power_was_lost)
        except BaseException:
            self._files.close()
            lock.close()
            raise
        self._lock = lock
        self.check_owned: Callable[[], None] = lambda: None
        """Called by ``writer`` under the append lock, right before it takes an id over; may raise. If every process checks here
        that it owns the id, a replaced owner can never fence its replacement."""
        self._appender = Appender(
            self._files,
            lock,
            self._view,
            fsync=options.fsync,
            fsync_interval_s=options.fsync_interval_s,
            segment_bytes=options.segment_bytes,
        )

    @property
    def identity(self) -> bytes:
        """See ``OneCommitLog.identity``. This log has none yet."""
        return b""

    # --- topics and positions

    def create_topic(self, topic: str, settings: TopicSettings, /) -> None:
        """See ``Log.create_topic``."""
        if self._known(topic, settings):
            return
        with self._appender.turn():
            if not self._known(topic, settings):
                self._appender.write(Meta(present_ms(), topics={topic: settings}))

    def topics(self) -> Mapping[str, TopicSettings]:
        """See ``Log.topics``."""
        return dict(self._fresh().catalog.topics)

    def partitions(self, topic: str, /) -> int:
        """See ``Log.partitions``."""
        return self._fresh().catalog.settings(topic).partitions

    def start_offset(self, topic: str, partition: int, /) -> int:
        """See ``Log.start_offset``."""
        view = self._fresh()
        view.catalog.check(topic, partition)
        return view.catalog.starts[topic][partition]

    def end_offset(self, topic: str, partition: int, /) -> int:
        """See ``Log.end_offset``. Open transactions are not in the log, so it is also the last stable offset."""
        view = self._fresh()
        view.catalog.check(topic, partition)
        return view.catalog.ends[topic][partition]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int, /) -> int:
        """See ``Log.offset_at``."""
        start, end = self.start_offset(topic, partition), self.end_offset(topic, partition)
        place = TopicPartition(topic, partition)
        for offset in self._view.offsets_of_blocks_at(place, timestamp_ms):
            for record in self._view.records_at(place, offset):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start:
                    return record.offset
        return end

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition], /
    ) -> Mapping[TopicPartition, int]:
        """See ``Log.committed_offsets``; they do not expire."""
        offsets = self._fresh().catalog.offsets.get(group, {})
        return {place: offsets[place] for place in partitions if place in offsets}

    def publications(self) -> Mapping[tuple[str, str], int | None]:
        """See ``Log.publications``."""
        found: dict[tuple[str, str], int | None] = {}
        for (topic, name), one in self._fresh().catalog.published.items():
            publisher, mark, channel = name.partition(CHANNEL)
            found[f"{topic}{mark}{channel}", publisher] = one.watermark_ms
        return found

    def ends(self, topics: Iterable[str], /) -> Ends:
        """The end offsets of topics, all as of one commit: the last one that this process can see.

        Raises:
            UnknownTopicError: One of the topics does not exist.
        """
        view = self._fresh()
        with view.mutex:
            for topic in (names := [*topics]):
                view.catalog.settings(topic)
            return Ends(view.sequence, {topic: list(view.catalog.ends[topic]) for topic in names})

    def commit_order(self, topic: str, /) -> Iterator[tuple[TopicPartition, int]]:
        """For each commit to a topic, in order: the partition, and the end offset there after the commit.

        Cleaning may merge several commits of a partition. Then only the last of them is returned.
        """
        view = self._fresh()
        with view.mutex:
            found = [
                (blocks.segment.number, at, place, end)
                for place, some in view.places.items()
                if place.topic == topic
                for blocks in some
                for at, end in zip(blocks.positions, blocks.ends, strict=True)
            ]
        found.sort()
        return iter([(place, end) for _, _, place, end in found])

    def uncleaned(self) -> AbstractContextManager[None]:
        """Prevent cleaning inside the block, so that a compacted topic can be read as of a past offset.

        Waits for a running cleaning. Any number of processes may hold this. A ``clean`` meanwhile returns ``busy``.
        """
        return held_off(self.path)

    # --- writers and readers

    def writer(self, transactional_id: str, /) -> EmbeddedWriter:
        """See ``Log.writer``."""
        with self._appender.turn() as view:
            self.check_owned()
            epoch = view.catalog.epochs.get(transactional_id, 0) + 1
            self._appender.write(Meta(present_ms(), epochs={transactional_id: epoch}))
        return EmbeddedWriter(self._appender, self._router(), transactional_id, epoch)

    def reader(self, positions: Mapping[TopicPartition, int], /) -> EmbeddedReader:
        """See ``Log.reader``."""
        reader = EmbeddedReader(self._view)
        for (topic, partition), offset in positions.items():
            reader.seek(topic, partition, offset)
        return reader

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers = (),
        partition: int | None = None,
    ) -> int:
        """Append one record as an external producer, without a transactional id. Returns its offset."""
        ((_, end),) = self.append_all((Output(topic, key, value, timestamp_ms, headers),), partition).items()
        return end - 1

    def append_all(
        self, outputs: Iterable[Output], /, partition: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Append many records in one commit, without a transactional id. Returns the new end of each partition written."""
        batch = Batch()
        batch.add(self._router().split(outputs, partition))
        batch.encoded()
        with self._appender.turn() as view:
            return commit_batch(
                self._appender, batch, view.catalog, offsets={}, group="", watermarks={}, publisher=""
            )

    # --- retention and cleaning

    def delete_before(self, topic: str, partition: int, offset: int, /) -> None:
        """Delete the records below ``offset``. Readers no longer see them, and ``clean`` frees their disk space."""
        with self._appender.turn() as view:
            view.catalog.check(topic, partition)
            start = min(offset, view.catalog.ends[topic][partition])
            if start > view.catalog.starts[topic][partition]:
                self._appender.write(Meta(present_ms(), starts=[(topic, partition, start)]))

    def forget_offsets(self, group: str, /) -> None:
        """Forget all offsets committed for a group."""
        with self._appender.turn():
            self._appender.write(Meta(present_ms(), forgotten=[group]))

    def clean(
        self, *, now_ms: int | None = None, deletions_kept_ms: int = 86_400_000, least_gain: float = 0.1
    ) -> Cleaned:
        """Apply retention and compaction to the sealed segments now. Only one process can do this at a time.

        The timestamps of records are compared with ``now_ms`` (default: the clock). A deletion in a compacted topic is kept for
        ``deletions_kept_ms``, from the cleaning on that removed the record that it deletes. Segments are rewritten if that
        frees at least the share ``least_gain`` of their bytes.
        """
        return clean(self._appender, now_ms, deletions_kept_ms, least_gain)

    def cleaning_is_due(self, *, now_ms: int | None = None, least_gain: float = 0.1) -> bool:
        """Whether ``clean`` is worth the work: compacted topics have grown enough, or retention frees at least ``least_gain``.

        Reads no records, so it can be called often.
        """
        return is_due(self._fresh(), present_ms() if now_ms is None else now_ms, least_gain)

    def set_retention(self, topic: str, /, *, retention_ms: int | None, retention_bytes: int | None) -> None:
        """Change for how long, or up to which size, a topic's records are kept. None: no limit.

        The next ``clean`` deletes the records past the limit.

        Raises:
            UnknownTopicError: The topic does not exist.
            TopicMismatchError: The topic is compacted.
        """
        with self._appender.turn() as view:
            before = view.catalog.settings(topic)
            if before.compacted:
                raise TopicMismatchError(
                    "the topic is compacted: it keeps the last record of each key, however old",
                    topic=topic,
                    hint="Delete what is to go, key by key.",
                )
            after = before._replace(retention_ms=retention_ms, retention_bytes=retention_bytes)
            if after != before:
                self._appender.write(Meta(present_ms(), topics={topic: after}))

    def roll(self) -> None:
        """Seal the active segment, so that it can be cleaned."""
        with self._appender.turn():
            self._appender.roll()

    def verify(self) -> None:
        """Read the whole log and check it.

        Raises:
            CorruptLogError: A checksum does not match.
        """
        with self.uncleaned():
            view = self._fresh()
            for index in list(view.indexes.values()):
                check_whole(view, index.name)

    @property
    def bytes_cut_off(self) -> int:
        """Number of bytes of incomplete commits that this process has cut off at the log's end."""
        return self._appender.bytes_cut_off

    def sync(self) -> None:
        """Wait until all commits of this process are on the disk, whatever the policy."""
        self._appender.sync()

    def close(self) -> None:
        """See ``Log.close``."""
        self._appender.close()
        self._files.close()
        self._lock.close()

    # --- internal

    def _fresh(self) -> View:
        self._view.refresh()
        return self._view

    def _router(self) -> Router:
        return Router(self.partitions, self.options.max_record_bytes)

    def _known(self, topic: str, settings: TopicSettings) -> bool:
        known = self._fresh().catalog.topics.get(topic)
        if known is not None and known != settings:
            raise TopicMismatchError(
                f"the topic exists with {known}; asked for was {settings}",
                topic=topic,
                hint="Use the settings it has, or another name. `tailrace log retain` changes for how long it is kept.",
            )
        return known is not None
