"""Giving room back: retention moves the start of partitions, compaction keeps the last record of each key.

Theory. Both work on sealed segments only, which nobody writes any more. What is kept of one is written beside it as its
next generation, with the same offsets; when all new files are there, one frame names them, and from that frame on every
process reads those. A process that has not seen the frame yet reads the old files, and looks again when they are gone.
A crash at any point leaves either all old or all new, and files that nothing names, which the next cleaning removes.

All segments that have something to give are rewritten together or none is. If only the segment with a deletion were, the
older record that it deletes would come back.
"""

from __future__ import annotations

import errno
import fcntl
import os
from array import array
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tailrace.log.embedded import blocks as blocks_
from tailrace.log.embedded.appending import Appender, now_ms
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.files import MAKING
from tailrace.log.embedded.frames import SegmentName
from tailrace.log.embedded.index import Blocks, SegmentIndex
from tailrace.log.embedded.rewriting import rewritten
from tailrace.log.embedded.view import View
from tailrace.log.interface import TopicPartition

_LOCK = "cleaning"

Kept = dict[tuple[SegmentName, TopicPartition], "list[array[int] | None]"]
"""Per block the indexes of the records that stay; None: all of them."""


class Cleaned(NamedTuple):
    """What a cleaning did. ``busy``: nothing, as another process was at it."""

    bytes_before: int = 0
    bytes_after: int = 0
    segments_rewritten: int = 0
    segments_deleted: int = 0
    busy: bool = False


def clean(appender: Appender, at_ms: int | None, deletions_kept_ms: int, least_gain: float) -> Cleaned:
    """See ``EmbeddedLog.clean``."""
    with _alone(appender) as alone:
        if not alone:
            return Cleaned(busy=True)
        view = appender.view
        _move_starts(appender, now_ms() if at_ms is None else at_ms)
        with view.mutex:
            sealed = [view.indexes[number] for number in view.catalog.segments if number in view.indexes]
        kept, dropped = _decide(view, sealed, deletions_kept_ms)
        before = sum(view.files.size(index.name) for index in sealed)
        held = sum(sum(blocks.lengths) for index in sealed for blocks in index.blocks.values())
        if not dropped or dropped < least_gain * held:
            return Cleaned(before, before)
        with failing(view.files.folder, "cleaning the log"):
            done = _rewrite(appender, sealed, kept)
        return done._replace(bytes_before=before)


@contextmanager
def _alone(appender: Appender) -> Generator[bool]:
    folder = appender.files.folder
    with failing(folder, "cleaning the log"):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
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
            descriptor = None  # who may not even make this file reads a log that was never cleaned, or a copy
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
            if settings.retention_ms is None and settings.retention_bytes is None:
                continue
            for partition, start in enumerate(catalog.starts[topic]):
                parts = view.places.get(TopicPartition(topic, partition), [])
                oldest_ms = None if settings.retention_ms is None else at_ms - settings.retention_ms
                new = _start(parts, start, oldest_ms, settings.retention_bytes)
                if new > start:
                    moved.append((topic, partition, new))
        if moved:
            appender.write_starts(moved)


def _start(parts: list[Blocks], start: int, oldest_ms: int | None, most_bytes: int | None) -> int:
    """The new start of a partition: past the blocks at its front that are too old, or over the size."""
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


def _decide(view: View, sealed: list[SegmentIndex], deletions_kept_ms: int) -> tuple[Kept, float]:
    """What stays of each block of the sealed segments, and about how many bytes do not."""
    names = {index.name for index in sealed}
    with view.mutex:
        places = {place: list(parts) for place, parts in view.places.items()}
        topics = dict(view.catalog.topics)
        starts = {topic: list(at) for topic, at in view.catalog.starts.items()}
    kept: Kept = {}
    dropped = 0.0
    for place, parts in places.items():
        start = starts[place.topic][place.partition]
        if topics[place.topic].compacted:
            dropped += _compact(view, place, parts, start, names, now_ms() - deletions_kept_ms, kept)
            continue
        for blocks in parts:
            if blocks.segment in names and blocks.bases[0] < start:
                gone = [end <= start for end in blocks.ends]
                dropped += sum(n for n, out in zip(blocks.lengths, gone, strict=True) if out)
                kept[blocks.segment, place] = [array("i") if out else None for out in gone]
    return kept, dropped


def _compact(
    view: View,
    place: TopicPartition,
    parts: list[Blocks],
    start: int,
    sealed: set[SegmentName],
    deleted_before_ms: int,
    kept: Kept,
) -> float:
    """Walk a partition from its end to its start; who has met a key already drops it."""
    seen: set[bytes | None] = set()
    dropped = 0.0
    for blocks in reversed(parts):
        stays: list[array[int] | None] = []
        for number in reversed(range(len(blocks))):
            records = blocks_.decode(view.raw_block(place, blocks, number), blocks.bases[number])
            may_forget = blocks.times_ms[number] < deleted_before_ms
            chosen = array("i")
            for at in reversed(range(len(records))):
                record = records[at]
                if record.key in seen or record.offset < start:
                    continue
                seen.add(record.key)
                if record.value is not None or not may_forget:
                    chosen.append(at)
            chosen.reverse()
            whole = len(chosen) == len(records)
            if blocks.segment in sealed and not whole:
                dropped += blocks.lengths[number] * (1 - len(chosen) / len(records))
            stays.append(None if whole else chosen)
        if blocks.segment in sealed:
            kept[blocks.segment, place] = stays[::-1]
    return dropped


# --- the new files


def _rewrite(appender: Appender, sealed: list[SegmentIndex], kept: Kept) -> Cleaned:
    view, files = appender.view, appender.files
    cleaned: dict[int, int] = {}
    older_are_gone = True
    for index in sealed:
        name = index.name
        stays = {place: kept.get((name, place)) for place in index.blocks}
        if all(one is None or all(each is None for each in one) for one in stays.values()):
            older_are_gone = older_are_gone and not index.blocks
            continue
        empty = all(
            one is not None and all(each is not None and not each for each in one) for one in stays.values()
        )
        if empty and (older_are_gone or not index.publications):
            cleaned[name.number] = -1
            continue
        older_are_gone = False
        following = SegmentName(name.number, name.generation + 1)
        files.create(following.file, rewritten(view, index, following, stays))
        files.create(following.index_file, [view.index_of(following).encode()])
        cleaned[name.number] = following.generation
    if cleaned:
        appender.write_cleaned(cleaned)
    _remove_what_nothing_names(appender)
    rewrote = sum(generation >= 0 for generation in cleaned.values())
    with view.mutex:
        after = sum(files.size(index.name) for index in view.indexes.values() if index.name != view.active)
    return Cleaned(0, after, rewrote, len(cleaned) - rewrote)


def _remove_what_nothing_names(appender: Appender) -> None:
    """In a turn, so that nobody is making a file meanwhile."""
    with appender.turn() as view:
        named = {SegmentName(*one) for one in view.catalog.segments.items()} | {view.active}
        wanted = {name.file for name in named} | {name.index_file for name in named}
        for entry in list(view.files.folder.iterdir()):
            ours = entry.name.endswith((".segment", ".index", f".segment{MAKING}", f".index{MAKING}"))
            if ours and entry.name not in wanted:
                entry.unlink(missing_ok=True)
