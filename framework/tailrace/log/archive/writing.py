"""From a log into an archive: what is not in it yet, chunk after chunk, up to one commit of the log.

It may be killed at any moment and run again: see ``layout``. One at a time writes to an archive; on a disk a lock sees to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tailrace.core.errors import ArchiveError, OffsetGoneError, UnknownTopicError
from tailrace.core.records import InputRecord, RecordMark
from tailrace.core.suggestions import did_you_mean
from tailrace.log.archive.files import write_chunk
from tailrace.log.archive.layout import FORMAT, Archive, Chunk, ChunkContent, Published, folder_of
from tailrace.log.archive.same_log import check_same_log
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.log.same_topics import check_same

_AT_ONCE = 2_000
_LOCK = "_lock"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What is archived."""

    topics: Collection[str] | None = None
    """All if None: only then can an app be replayed from the archive alone."""
    records_per_chunk: int = 100_000
    """At most; a chunk is held in memory when it is written and when it is read."""


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """How far it has come."""

    topic: str
    partition: int
    offset: int
    end: int
    records: int
    """Archived so far by this run."""


@dataclass(slots=True)
class ArchiveReport:
    """What was archived."""

    topics: int = 0
    records: int = 0
    chunks: int = 0


def archive_log(
    log: OneCommitLog,
    archive: Archive,
    options: ArchiveOptions | None = None,
    *,
    on_progress: Callable[[ArchiveStatus], None] | None = None,
) -> ArchiveReport:
    """Archive what a log holds and the archive does not.

    Raises:
        UnknownTopicError: A topic that is named is not in the log.
        OffsetGoneError: The log has deleted records before they were archived. Nothing of that partition was added.
        ArchiveError: Another process is at it, or the archive is of another log.
    """
    return _Archiving(log, archive, options or ArchiveOptions(), on_progress).run()


class _Archiving:
    def __init__(
        self,
        log: OneCommitLog,
        archive: Archive,
        options: ArchiveOptions,
        on_progress: Callable[[ArchiveStatus], None] | None,
    ) -> None:
        self._log = log
        self._archive = archive
        self._options = options
        self._tell = on_progress
        self._report = ArchiveReport()

    def run(self) -> ArchiveReport:
        """See ``archive_log``."""
        known = self._log.topics()
        names = sorted(known) if self._options.topics is None else sorted(set(self._options.topics))
        for name in names:
            if name not in known:
                raise UnknownTopicError(
                    "the log has no such topic",
                    topic=name,
                    hint=did_you_mean(name, known, "See tailrace log list."),
                )
        archive = self._archive
        archive.create(self._log.identity.hex())
        # What is the last of its key at these ends is archived: compaction would take it where there is a later one by now.
        with _held(archive), self._log.compaction_paused():
            ends = self._log.ends(names)
            archived = archive.topics()
            for name in names:
                for number in range(known[name].partitions if name in archived else 0):
                    check_same_log(archive, self._log, TopicPartition(name, number))
            ids = self._log.watch(names)
            for name in names:
                before = archived.get(name)
                if before is not None and before.partitions != known[name].partitions:
                    raise ArchiveError(
                        f"the archive has the topic {name!r} with {before.partitions} partitions, the log with "
                        f"{known[name].partitions}",
                        path=archive.folder.shown,
                        hint="It is the archive of another log: archive into another folder.",
                    )
                note = archive.topic_note(name) or ids.get(name, "").encode()
                if before != known[name] or note != archive.topic_note(name):
                    archive.note_topic(name, known[name], note)
                for number, end in enumerate(ends.offsets[name]):
                    self._partition(TopicPartition(name, number), end)
                self._report.topics += 1
            check_same(self._log, ids)
            archive.note_ends(ends)
        return self._report

    def _partition(self, place: TopicPartition, end: int) -> None:
        position = self._position(place)
        if position >= end:
            return
        start, records, published = position, list[InputRecord](), list[Published]()
        with closing(self._log.reader({place: position})) as reader:
            while position < end:
                most = min(_AT_ONCE, self._options.records_per_chunk - len(records))
                fetch = reader.fetch(*place, most)
                records += (record for record in fetch.records if record.offset < end)
                is_stuck = fetch.next_offset == position
                position = min(fetch.next_offset, end)
                published += (
                    Published(position, one.name, one.watermark_ms) for one in reader.published(*place)
                )
                if is_stuck:
                    break  # the rest is hidden by a transaction that is open
                if len(records) >= self._options.records_per_chunk:
                    self._add(place, start, position, records, published)
                    start, records, published = position, [], []
                if self._tell is not None:
                    pending = self._report.records + len(records)
                    self._tell(ArchiveStatus(*place, position, end, pending))
        if position > start:
            self._add(place, start, position, records, published)

    def _position(self, place: TopicPartition) -> int:
        """The position to continue at: the end of the archived records."""
        chunks = self._archive.chunks(place)
        position = chunks[-1].stop if chunks else None
        self._sweep(place, position)
        start = self._log.start_offset(*place)
        if position is None:
            return start
        if start > position:
            raise OffsetGoneError(
                f"the log begins at {start}: the records before were deleted and not archived",
                topic=place.topic,
                partition=place.partition,
                offset=position,
                hint="Begin another archive in another folder, and archive more often than the log deletes.",
            )
        return position

    def _sweep(self, place: TopicPartition, position: int | None) -> None:
        """Take away what a run that was killed has left behind the archive's end."""
        folder = self._archive.folder / folder_of(place)
        for day in folder.entries():
            for one in (folder / day.name).entries() if day.is_folder else ():
                start = one.name.partition("-")[0]
                if start.isdecimal() and (position is None or int(start) >= position):
                    (folder / day.name / one.name).remove()

    def _add(
        self,
        place: TopicPartition,
        start: int,
        stop: int,
        records: list[InputRecord],
        published: list[Published],
    ) -> None:
        files = write_chunk(self._archive.folder, place, start, stop, records)
        first_ms = min((one.first_ms for one in files), default=0)
        last_ms = max((one.last_ms for one in files), default=-1)
        last = RecordMark.of(records[-1]) if records else None
        content = ChunkContent(FORMAT, files, tuple(published), last)
        self._archive.add(place, Chunk(start, stop, first_ms, last_ms), content)
        self._report.chunks += 1
        self._report.records += len(records)


@contextmanager
def _held(archive: Archive) -> Generator[None]:
    """Hold the archive, where its place knows locks."""
    path = Path(archive.folder.path) / _LOCK
    lock = FileLock(path, timeout=0, fallback_to_soft=False) if archive.folder.is_local else nullcontext()
    try:
        with lock:
            yield
    except Timeout:
        raise ArchiveError(
            "another process is archiving into this folder", path=archive.folder.shown, hint="Wait for it."
        ) from None
