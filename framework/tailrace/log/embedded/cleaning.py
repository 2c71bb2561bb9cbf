"""Frees disk space: retention moves the start of partitions, compaction keeps the last record of each key.

Theory. Both work only on sealed segments, which are not written any more. The records to keep are written to a new file, the
next generation of the segment, with the same offsets. When the file is complete, one frame names it. From that frame on every
process reads the new file. A process that has not seen the frame yet reads the old file, and refreshes when that is gone. A
crash leaves the old or the new file in use, and perhaps unreferenced files, which the next cleaning removes.

Segments with records to remove are rewritten from the oldest to the newest, and none is skipped. So wherever a cleaning ends,
a deletion is never removed while an older record that it deletes still exists: that record would come back. Cleaning needs
additional space for only one segment. It continues as long as the freed bytes justify the bytes that it writes.

A reader that has seen the older record must also see the deletion. So a deletion is kept for its time from the cleaning on
that removed the last older record, not from when it was written. This needs no timestamp for each deletion: in the segments
that a cleaning has completed, no older records are left. So only two positions are stored: the end of a cleaning that is long
enough ago, and the end of the next cleaning that will be.

Whether a cleaning is worth the work cannot be known without reading all keys. So it is due as in Kafka
(``min.cleanable.dirty.ratio``): when the bytes added to compacted topics since the last cleaning are half of the bytes that it
read. Then each byte ever written is read about twice.

While a partition is read, the set of its keys is in memory. A partition with very many records is read in several passes, each
for a part of the keys.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from array import array
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from tailrace.core.errors import LogUnavailableError
from tailrace.log.embedded import blocks as blocks_
from tailrace.log.embedded.appending import Appender, now_ms
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.files import MAKING
from tailrace.log.embedded.frames import SegmentName
from tailrace.log.embedded.index import Blocks, SegmentIndex
from tailrace.log.embedded.rewriting import rewritten
from tailrace.log.embedded.view import View
from tailrace.log.interface import TopicPartition, TopicSettings

_LOCK = "cleaning"
"""File that is locked during a cleaning. It stores the results of the last cleanings."""
_DONE = Struct("<QQQQ")
"""The fields of ``_Done``."""
_GONE = -1
_DIRTY_SHARE = 0.5
_ROOM_FOR_COMMITS = 16 << 20
_MOST_AT_ONCE = 4_000_000
"""Number of records of a partition whose keys are kept in memory in one pass."""

_FILE = re.compile(rf"(\d{{12}})-\d{{4,}}\.(segment|index)({re.escape(MAKING)})?")

Kept = dict[tuple[SegmentName, TopicPartition], "list[array[int] | None]"]
"""Per block the indexes of the records that stay; None: all of them."""


class Cleaned(NamedTuple):
    """The result of a cleaning. ``busy``: nothing was done, as another process holds the lock."""

    bytes_before: int = 0
    bytes_after: int = 0
    segments_rewritten: int = 0
    segments_deleted: int = 0
    busy: bool = False


class _Done(NamedTuple):
    """The results of earlier cleanings. Numbers are segment numbers."""

    looked: int = 0
    """The last sealed segment at the last cleaning."""
    settled: int = 0
    """Up to this segment each deletion has been the oldest record of its key for long enough."""
    through: int = 0
    """The end of the next cleaning that will be long enough ago."""
    through_ms: int = 0
    """When that cleaning ended."""

    def settled_at(self, at_ms: int, kept_ms: int) -> int:
        """``settled`` as of an instant."""
        ripe = self.through if self.through_ms <= at_ms - kept_ms else 0
        return max(self.settled, ripe)


def clean(appender: Appender, at_ms: int | None, deletions_kept_ms: int, least_gain: float) -> Cleaned:
    """See ``EmbeddedLog.clean``."""
    with _alone(appender) as alone:
        if alone is None:
            return Cleaned(busy=True)
        view = appender.view
        _remove_what_nothing_names(appender)
        _move_starts(appender, now_ms() if at_ms is None else at_ms)
        sealed = _sealed(view)
        past = _done(view.files.folder)
        settled = past.settled_at(now_ms(), deletions_kept_ms)
        if deletions_kept_ms <= 0 and sealed:
            settled = sealed[-1].name.number
        kept, dropped = _decide(view, sealed, settled, deletions_kept_ms)
        before = sum(view.files.size(index.name) for index in sealed)
        with failing(view.files.folder, "cleaning the log"):
            worth = _worth_while(sealed, kept, dropped, least_gain)
            done = _rewrite(appender, worth, kept)
            if sealed:
                through = _through(sealed, len(worth), kept)
                _remember(alone, past, sealed[-1].name.number, through, deletions_kept_ms)
        return done._replace(bytes_before=before)


def _through(sealed: list[SegmentIndex], rewritten_: int, kept: Kept) -> int:
    """The segment up to which no record is left to remove, after the first ``rewritten_`` segments were rewritten."""
    through = 0
    for number, index in enumerate(sealed):
        if number >= rewritten_ and _gives(index, kept):
            break
        through = index.name.number
    return through


def _remember(alone: int, past: _Done, looked: int, through: int, kept_ms: int) -> None:
    at_ms = now_ms()
    settled = past.settled_at(at_ms, kept_ms)
    waits = past.through > settled and past.through_ms <= at_ms
    then = (past.through, past.through_ms) if waits else (through, at_ms)
    os.pwrite(alone, _DONE.pack(looked, settled, *then), 0)


def _done(folder: Path) -> _Done:
    """The stored results of earlier cleanings; zeros if there are none."""
    try:
        data = (folder / _LOCK).read_bytes()
    except OSError:
        data = b""
    return _Done(*_DONE.unpack(data)) if len(data) == _DONE.size else _Done()


def is_due(view: View, at_ms: int, least_gain: float) -> bool:
    """See ``EmbeddedLog.cleaning_is_due``."""
    looked = _done(view.files.folder).looked
    with view.mutex:
        return _much_is_new(view, looked) or _much_is_old(view, at_ms, least_gain)


def _much_is_new(view: View, looked: int) -> bool:
    """Whether compacted topics have grown enough since a cleaning has looked through the segments up to ``looked``."""
    new_bytes = known_bytes = 0
    for index in _sealed(view):
        compacted = sum(
            sum(blocks.lengths)
            for place, blocks in index.blocks.items()
            if view.catalog.topics[place.topic].compacted
        )
        if index.name.number > looked:
            new_bytes += compacted
        else:
            known_bytes += compacted
    return new_bytes > 0 and new_bytes >= _DIRTY_SHARE * known_bytes


def _much_is_old(view: View, at_ms: int, least_gain: float) -> bool:
    """Whether retention and deleted records free enough of the segments that they affect."""
    old_bytes, last = 0, 0
    for topic, starts in view.catalog.starts.items():
        for partition, start in enumerate(starts):
            parts = view.places.get(TopicPartition(topic, partition), [])
            new = _start(parts, start, view.catalog.topics[topic], at_ms)
            for blocks in parts:
                if blocks.segment == view.active or blocks.bases[0] >= new:
                    break
                old_bytes += sum(blocks.lengths[: blocks.at_or_after(new)])
                last = max(last, blocks.segment.number)
    held = sum(_held(index) for index in _sealed(view) if index.name.number <= last)
    return old_bytes > 0 and old_bytes >= least_gain * held


def _sealed(view: View) -> list[SegmentIndex]:
    with view.mutex:
        return [view.indexes[number] for number in view.catalog.segments if number in view.indexes]


def _held(index: SegmentIndex) -> int:
    return sum(sum(blocks.lengths) for blocks in index.blocks.values())


def _worth_while(
    sealed: list[SegmentIndex], kept: Kept, dropped: Mapping[SegmentName, float], least_gain: float
) -> list[SegmentIndex]:
    """The largest number of segments, from the oldest on, that together free enough space."""
    last, gain, held = 0, 0.0, 0
    for number, index in enumerate(sealed, 1):
        if _gives(index, kept):
            gain += dropped[index.name]
            held += _held(index)
            if gain >= least_gain * held:
                last = number
    return sealed[:last]


def _gives(index: SegmentIndex, kept: Kept) -> bool:
    return any(stays is not None for place in index.blocks for stays in kept.get((index.name, place), ()))


@contextmanager
def _alone(appender: Appender) -> Generator[int | None]:
    """Lock the log for a cleaning. Yields the descriptor of the lock file; None if another process holds the lock."""
    folder = appender.files.folder
    with failing(folder, "cleaning the log"):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def held_off(folder: Path) -> Generator[None]:
    """See ``EmbeddedLog.uncleaned``."""
    with failing(folder, "holding off a cleaning"):
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            descriptor = None  # no permission to create the file: a log that was never cleaned, or a copy
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


# --- retention


def _move_starts(appender: Appender, at_ms: int) -> None:
    with appender.turn() as view:
        catalog = view.catalog
        moved: list[tuple[str, int, int]] = []
        for topic, settings in catalog.topics.items():
            for partition, start in enumerate(catalog.starts[topic]):
                parts = view.places.get(TopicPartition(topic, partition), [])
                new = _start(parts, start, settings, at_ms)
                if new > start:
                    moved.append((topic, partition, new))
        if moved:
            appender.write_starts(moved)


def _start(parts: list[Blocks], start: int, settings: TopicSettings, at_ms: int) -> int:
    """The new start of a partition: after the blocks at its front that are too old, or exceed the size limit."""
    oldest_ms = None if settings.retention_ms is None else at_ms - settings.retention_ms
    most_bytes = settings.retention_bytes
    if oldest_ms is None and most_bytes is None:
        return start
    size = sum(
        length
        for blocks in parts
        for end, length in zip(blocks.ends, blocks.lengths, strict=True)
        if end > start
    )
    for blocks in parts:
        columns = zip(blocks.ends, blocks.lengths, blocks.max_timestamps_ms, strict=True)
        for end, length, timestamp_ms in columns:
            if end <= start:
                continue
            old = oldest_ms is not None and timestamp_ms < oldest_ms
            if not old and (most_bytes is None or size <= most_bytes):
                return start
            start, size = end, size - length
    return start


# --- what stays


def _decide(
    view: View, sealed: list[SegmentIndex], settled: int, deletions_kept_ms: int
) -> tuple[Kept, dict[SegmentName, float]]:
    """The records to keep of each block of the sealed segments, and the approximate bytes to remove per segment."""
    names = {index.name for index in sealed}
    with view.mutex:
        places = {place: list(parts) for place, parts in view.places.items()}
        topics = dict(view.catalog.topics)
        starts = {topic: list(at) for topic, at in view.catalog.starts.items()}
    kept: Kept = {}
    dropped = dict.fromkeys(names, 0.0)
    for place, parts in places.items():
        start = starts[place.topic][place.partition]
        if topics[place.topic].compacted:
            deleted_before_ms = now_ms() - deletions_kept_ms
            _compact(view, place, parts, start, names, settled, deleted_before_ms, kept, dropped)
            continue
        for blocks in parts:
            if blocks.segment in names and blocks.bases[0] < start:
                gone = [end <= start for end in blocks.ends]
                dropped[blocks.segment] += sum(n for n, out in zip(blocks.lengths, gone, strict=True) if out)
                kept[blocks.segment, place] = [array("i") if out else None for out in gone]
    return kept, dropped


def _compact(
    view: View,
    place: TopicPartition,
    parts: list[Blocks],
    start: int,
    sealed: set[SegmentName],
    settled: int,
    deleted_before_ms: int,
    kept: Kept,
    dropped: dict[SegmentName, float],
) -> None:
    """Read a partition from its end to its start, and drop records whose key has already occurred."""
    chosen = {(blocks.segment, at): array("i") for blocks in parts for at in range(len(blocks))}
    counts: dict[tuple[SegmentName, int], int] = {}
    passes = 1 + sum(blocks.ends[-1] - blocks.bases[0] for blocks in parts) // _MOST_AT_ONCE
    for one in range(passes):
        seen: set[bytes | None] = set()
        for blocks in reversed(parts):
            for number in reversed(range(len(blocks))):
                records = blocks_.decode(view.raw_block(place, blocks, number), blocks.bases[number])
                may_forget = blocks.segment.number <= settled and blocks.times_ms[number] < deleted_before_ms
                stays = chosen[blocks.segment, number]
                counts[blocks.segment, number] = len(records)
                for at in reversed(range(len(records))):
                    offset, _, key, value, _ = records[at]
                    if key in seen or offset < start or (passes > 1 and crc32(key or b"") % passes != one):
                        continue
                    seen.add(key)
                    if value is not None or not may_forget:
                        stays.append(at)
    for blocks in parts:
        if blocks.segment not in sealed:
            continue
        found: list[array[int] | None] = []
        for number in range(len(blocks)):
            stays, count = chosen[blocks.segment, number], counts[blocks.segment, number]
            dropped[blocks.segment] += blocks.lengths[number] * (1 - len(stays) / count)
            found.append(None if len(stays) == count else array("i", sorted(stays)))
        kept[blocks.segment, place] = found


# --- the new files


def _rewrite(appender: Appender, sealed: list[SegmentIndex], kept: Kept) -> Cleaned:
    """Rewrite from the oldest to the newest. Each new file is named, and the old one removed, before the next begins."""
    view, files = appender.view, appender.files
    following_of: dict[SegmentName, int] = {}
    rewrote = deleted = 0
    older_are_gone = True
    for index in sealed:
        name = index.name
        stays = {place: kept.get((name, place)) for place in index.blocks}
        if not _gives(index, kept):
            older_are_gone = older_are_gone and not index.blocks
            continue
        empty = all(
            one is not None and all(each is not None and not each for each in one) for one in stays.values()
        )
        if empty and (older_are_gone or not index.publications):
            following_of[name] = _GONE
            continue
        older_are_gone = False
        deleted += _put_in_place(appender, following_of)
        following_of.clear()
        _require_room(view, name)
        following = SegmentName(name.number, name.generation + 1)
        files.create(following.file, rewritten(view, index, following, stays))
        files.create(following.index_file, [view.index_of(following).encode()])
        following_of[name] = following.generation
        deleted += _put_in_place(appender, following_of)
        following_of.clear()
        rewrote += 1
    deleted += _put_in_place(appender, following_of)
    after = sum(files.size(index.name) for index in _sealed(view))
    return Cleaned(0, after, rewrote, deleted)


def _require_room(view: View, name: SegmentName) -> None:
    """Check that there is space to rewrite a segment and for the commits of that time."""
    free = shutil.disk_usage(view.files.folder).free
    if free < view.files.size(name) + _ROOM_FOR_COMMITS:
        raise LogUnavailableError(
            f"the disk is nearly full: to clean {name.file} in {str(view.files.folder)!r} takes "
            f"{view.files.size(name):,} bytes for a while, and {free:,} are free",
            hint="Make room; cleaning then continues. Nothing committed is lost, and all that could be deleted was.",
        )


def _put_in_place(appender: Appender, following_of: Mapping[SegmentName, int]) -> int:
    """Name the new generations of segments, and remove the old files. Returns how many segments were deleted."""
    if following_of:
        appender.write_cleaned({name.number: generation for name, generation in following_of.items()})
    for name in following_of:
        for file in _files(name):
            (appender.files.folder / file).unlink(missing_ok=True)
    return sum(generation == _GONE for generation in following_of.values())


def _remove_what_nothing_names(appender: Appender) -> None:
    """Remove unreferenced files of segments before the active one. Only cleanings create such files, one at a time."""
    view = appender.view
    view.refresh()
    with view.mutex:
        active = view.active.number
        wanted = {file for one in view.catalog.segments.items() for file in _files(SegmentName(*one))}
    with failing(view.files.folder, "cleaning the log"):
        for entry in list(view.files.folder.iterdir()):
            found = _FILE.fullmatch(entry.name)
            if found and int(found[1]) < active and entry.name not in wanted:
                entry.unlink(missing_ok=True)


def _files(name: SegmentName) -> tuple[str, str]:
    return name.file, name.index_file
