"""Whether an archive is one of this log: records of two logs must never be joined into one history.

Theory. Positions do not tell: another log, or one that has lost its end and has grown past it again, has the same offsets. So
before a partition is joined, or archived further, archive and log are compared::

    the log's identity     of the log, and of the one that was archived; if both are known they must be equal. A copy of a log
                           has the same, so this does not tell whether the log has lost its end
    its end                the log must reach as far as the archive
    a record               the last archived one or, if the log has compacted it away, the oldest one that both hold; it must be
                           the same in the archive and in the log

If the log has deleted everything that is archived, there is no record to compare. A replay then checks the chain of commits on
the tape (see ``history.commit_identity``).
"""

from __future__ import annotations

from tailrace.core.errors import ArchiveError
from tailrace.core.records import InputRecord, RecordMark
from tailrace.log.archive.files import ChunkRecords
from tailrace.log.archive.layout import Archive, Chunk
from tailrace.log.interface import OneCommitLog, TopicPartition

_HINT = (
    "It is the archive of another log, or the log has lost its end since. Archive into another folder, and read the two apart: "
    "only what was archived from a log is one history with it."
)


def check_same_log(archive: Archive, log: OneCommitLog, place: TopicPartition) -> None:
    """Compare a partition of the archive with the log.

    Raises:
        ArchiveError: The archive is that of another log, or of an end that the log has lost.
    """
    chunks = archive.chunks(place)
    if not chunks:
        return
    identity = log.identity.hex()
    if archive.log_identity and identity and archive.log_identity != identity:
        raise _other(
            archive, f"the archive is of the log {archive.log_identity}, and this is the log {identity}"
        )
    last, end = chunks[-1], log.end_offset(*place)
    where = f"{place.topic!r} partition {place.partition}"
    if last.stop > end:
        raise _other(archive, f"the archive holds {where} up to offset {last.stop}, the log ends at {end}")
    if (offset := _offset_apart(archive, log, place, last)) is not None:
        raise _other(
            archive,
            f"offset {offset} of {where} is another record in the archive than in the log",
        )


def _offset_apart(archive: Archive, log: OneCommitLog, place: TopicPartition, chunk: Chunk) -> int | None:
    """The offset of a record that differs; None if it is the same, or there is none to compare."""
    start = log.start_offset(*place)
    content = archive.content(place, chunk)
    if content.last is not None and start <= content.last.offset:
        found = _at(log, place, content.last.offset)
        if found is not None and found.offset == content.last.offset:
            return None if RecordMark.of(found) == content.last else found.offset
    oldest = _at(log, place, max(start, chunk.start)) if start < chunk.stop else None
    if oldest is None or oldest.offset >= chunk.stop or not content.files:
        return None
    archived = ChunkRecords(archive.folder, content, chunk).records(oldest.offset, 1)
    return None if archived == [oldest] else oldest.offset


def _at(log: OneCommitLog, place: TopicPartition, offset: int) -> InputRecord | None:
    """The first record of the log at or after an offset."""
    reader = log.reader({place: offset})
    try:
        return next(iter(reader.fetch(*place, 1).records), None)
    finally:
        reader.close()


def _other(archive: Archive, what: str) -> ArchiveError:
    return ArchiveError(what, path=archive.folder.shown, hint=_HINT)
