"""From a log into an archive: what is not in it yet, chunk after chunk, up to one commit of the log.

It may be killed at any moment and run again: see ``layout``. One at a time writes to an archive; on a disk a lock sees to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from tailrace.core.errors import ArchiveError
from tailrace.core.records import InputRecord, RecordMark
from tailrace.log.archive.archived_log import joined_chunks
from tailrace.log.archive.files import write_chunk
from tailrace.log.archive.layout import FORMAT, Archive, Chunk, ChunkContent, Published, folder_of
from tailrace.log.interface import OneCommitLog, TopicPartition, TopicSettings
from tailrace.log.publications import Heard
from tailrace.log.same_topics import check_same
from tailrace.log.topic_rules import unknown_topic

_AT_ONCE = 2_000
_LOCK = "_lock"


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
    *,
    topics: Collection[str] | None = None,
    records_per_chunk: int = 100_000,
    on_progress: Callable[[ArchiveStatus], None] | None = None,
) -> ArchiveReport:
    """Archive what a log holds and the archive does not. ``topics`` (default: all): only of all can an app be replayed from the
    archive alone. ``records_per_chunk``: at most; a chunk is held in memory when it is written and when it is read.

    Raises:
        UnknownTopicError: A topic that is named is not in the log.
        OffsetGoneError: The log has deleted records before they were archived. Nothing was added.
        ArchiveError: Another process is at it, or the archive is of another log.
    """
    names = sorted(log.topics() if topics is None else {*topics})
    archiving = _Archiving(log, archive, records_per_chunk, on_progress)
    archiving.run(names)
    return archiving.report


@dataclass(slots=True)
class _Archiving:
    log: OneCommitLog
    archive: Archive
    most: int
    tell: Callable[[ArchiveStatus], None] | None
    report: ArchiveReport = field(default_factory=ArchiveReport)

    def run(self, names: Sequence[str]) -> None:
        log, archive, known = self.log, self.archive, self.log.topics()
        for name in names:
            if name not in known:
                raise unknown_topic(name, known)
        archive.create(log.identity.hex())
        # What is the last of its key at these ends is archived: compaction would take it where there is a later one by now.
        with _held(archive), log.compaction_paused():
            ends, archived = log.ends(names), archive.topics()
            for name in (one for one in names if one in archived):
                self._check(name, archived[name], known[name])
            ids = log.watch(names)
            for name in names:
                note = archive.topic_note(name) or ids.get(name, "").encode()
                if archived.get(name) != known[name] or note != archive.topic_note(name):
                    archive.note_topic(name, known[name], note)
                for number, end in enumerate(ends.offsets[name]):
                    self._partition(TopicPartition(name, number), end)
                self.report.topics += 1
            check_same(log, ids)
            archive.note_ends(ends)

    def _check(self, name: str, archived: TopicSettings, now: TopicSettings) -> None:
        """Raises ArchiveError or OffsetGoneError: what is archived of a topic cannot be continued."""
        if archived.partitions != now.partitions:
            raise ArchiveError(
                f"the archive has the topic {name!r} with {archived.partitions} partitions, the log with {now.partitions}",
                path=self.archive.folder.shown,
                hint="It is the archive of another log: archive into another folder.",
            )
        for number in range(now.partitions):
            joined_chunks(self.log, self.archive, TopicPartition(name, number))

    def _partition(self, place: TopicPartition, end: int) -> None:
        chunks = self.archive.chunks(place)
        self._sweep(place, chunks[-1].stop if chunks else 0)
        start = position = chunks[-1].stop if chunks else self.log.start_offset(*place)
        records = list[InputRecord]()
        waiting, before = deque(self.log.published_in(*place)), Heard()
        while waiting and waiting[0].position <= position:
            before.add(*waiting.popleft()[1:])
        published = [Published(position, one.name, one.watermark_ms) for one in before.news({})]
        with closing(self.log.reader({place: position})) as reader:
            while position < end:
                most = min(_AT_ONCE, self.most - len(records))
                fetch = reader.fetch(*place, most)
                records += (record for record in fetch.records if record.offset < end)
                is_stuck = fetch.next_offset == position
                position = min(fetch.next_offset, end)
                while waiting and waiting[0].position <= position:
                    published.append(Published(*waiting.popleft()))
                if is_stuck:
                    break  # the rest is hidden by a transaction that is open
                if len(records) >= self.most:
                    self._add(place, start, position, records, published)
                    start, records, published = position, [], []
                if self.tell is not None:
                    pending = self.report.records + len(records)
                    self.tell(ArchiveStatus(*place, position, end, pending))
        if position > start:
            self._add(place, start, position, records, published)

    def _sweep(self, place: TopicPartition, position: int) -> None:
        """Take away what a run that was killed has left behind the archive's end."""
        folder = self.archive.folder / folder_of(place)
        for day in folder.entries():
            for one in (folder / day.name).entries() if day.is_folder else ():
                start = one.name.partition("-")[0]
                if start.isdecimal() and int(start) >= position:
                    (folder / day.name / one.name).remove()

    def _add(
        self,
        place: TopicPartition,
        start: int,
        stop: int,
        records: list[InputRecord],
        published: list[Published],
    ) -> None:
        files = write_chunk(self.archive.folder, place, start, stop, records)
        first_ms = min((one.first_ms for one in files), default=0)
        last_ms = max((one.last_ms for one in files), default=-1)
        last = RecordMark.of(records[-1]) if records else None
        content = ChunkContent(FORMAT, files, tuple(published), last)
        self.archive.add(place, Chunk(start, stop, first_ms, last_ms), content)
        self.report.chunks += 1
        self.report.records += len(records)


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
