"""Whether an archive is one of this log: records of two logs must never be joined into one history.

Theory. Another log, or one that has lost its end and has grown past it again, has the same offsets. So before
a partition is joined, or archived further, archive and log are compared::

    the log's identity     if both are known they must be equal. A copy of a log has the same
    the topic              must not have been deleted and created again since (``log.same_topics``)
    its end                the log must reach as far as the archive
    a record               the last archived one or, if the log has compacted it away, the oldest one that both hold

If the log has deleted exactly what is archived, there is no such record. Then the two are joined with a
warning; a replay also checks the chain of commits on the tape (``history.provenance``). If the
log has also deleted records behind those archived, the two are not joined, and nothing is compared.
"""

from __future__ import annotations

import logging
from contextlib import closing

from tailrace.core.errors import ArchiveError, OtherHistoryError
from tailrace.core.records import InputRecord, RecordMark
from tailrace.log.archive.files import ChunkRecords
from tailrace.log.archive.layout import Archive, Chunk
from tailrace.log.interface import OneCommitLog, TopicPartition
from tailrace.log.same_topics import check_same

_HINT = (
    "It is the archive of another log, or the log has lost its end since. Archive into another folder, and read the two apart: "
    "only what was archived from a log is one history with it."
)
_log = logging.getLogger("tailrace.log")


def check_same_log(archive: Archive, log: OneCommitLog, place: TopicPartition) -> None:
    """Compare a partition of the archive with the log.
    Raises ArchiveError: the archive is that of another log, or of an end that the log has lost.
    """
    chunks = archive.chunks(place)
    if not chunks:
        return
    identity = log.identity.hex()
    if archive.log_identity and identity and archive.log_identity != identity:
        raise _other(
            archive, f"the archive is of the log {archive.log_identity}, and this is the log {identity}"
        )
    try:
        check_same(log, {place.topic: archive.topic_note(place.topic).decode()})
    except OtherHistoryError as error:
        said = f"the topic {place.topic!r} was deleted and created again since it was archived"
        raise _other(archive, said) from error
    last, end = chunks[-1], log.end_offset(*place)
    where = f"{place.topic!r} partition {place.partition}"
    if last.stop > end:
        raise _other(archive, f"the archive holds {where} up to offset {last.stop}, the log ends at {end}")
    start = log.start_offset(*place)
    if start > last.stop:
        return
    compared = _compared(archive, log, place, last, start)
    if compared is None:
        _log.warning(
            "whether the archive %s is one of this log cannot be checked: the log has deleted the records of %s that the archive ends with",
            archive.folder.shown,
            where,
        )
        return
    offset, same = compared
    if not same:
        raise _other(archive, f"offset {offset} of {where} is another record in the archive than in the log")


def _compared(
    archive: Archive, log: OneCommitLog, place: TopicPartition, chunk: Chunk, start: int
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
