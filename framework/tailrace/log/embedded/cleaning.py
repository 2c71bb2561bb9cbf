"""Deletes records: retention moves the start of partitions, compaction keeps the last record of each key.

Theory. Both work in short transactions, each of which may be the last: others commit in between, and a cleaning may
be killed. Retention deletes blocks below the start of their partition. Compaction reads a partition from its end to
its start, notes the records to keep, and writes runs of neighbouring blocks again as one block, with the same offsets.

Runs are rewritten from the oldest to the newest, and none is skipped. So wherever a cleaning ends, a deletion is
never removed while an older record that it deletes still exists: that record would come back.

A reader that has seen the older record must also see the deletion. So a deletion is kept for its time from the
cleaning on that removed the last older record. Up to where a cleaning has come, no older records are left. So this
offset is stored with the time. When that is long enough ago, the next cleaning removes the deletions up to there, and
its own offset takes the place of the other.

Compaction is due as in Kafka (``min.cleanable.dirty.ratio``): when the bytes added to compacted topics since the last
cleaning are half of the bytes that it left. While a partition is read, the set of its keys is in memory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from array import array
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from tailrace.core.records import InputRecord
from tailrace.log.embedded import blocks as blocks_
from tailrace.log.embedded.appending import Appender
from tailrace.log.embedded.database import CLEANINGS, PARTITIONS
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.lock import FileLock
from tailrace.log.embedded.rows import Block, Changes, Published, Rows, Topic
from tailrace.log.interface import Cleaned

_LOCK = "cleaning"
"""File that is locked during a cleaning."""
_DIRTY_SHARE = 0.5
_LEAST_SHARE = 0.1
"""Retention is due when it frees this share of the partitions that it concerns."""
_TURN_S = 0.01
"""After this time a transaction ends, so that a commit need not wait for longer."""
_BLOCKS_AT_ONCE = 256
_PAGES_AT_ONCE = 32
_FREE_PAGES = 64
_FREE_SHARE = 8
"""The file keeps an eighth of its pages free, as new records need them soon."""

Kept = dict[int, "array[int]"]
"""By the first offset of a block, the indexes of the records that stay. Other blocks keep all of them."""


class _Past(NamedTuple):
    """A row of the table ``cleanings``: what earlier cleanings of a partition have done."""

    looked_bytes: int = 0
    """Its length after the last cleaning."""
    through: int = 0
    """How far the cleaning came from whose end on deletions are kept for their time."""
    through_ms: int = 0
    """When that cleaning ended."""


def clean(appender: Appender, at_ms: int, deletions_kept_ms: int) -> Cleaned:
    """See ``EmbeddedLog.clean``."""
    with closing(FileLock(appender.folder / _LOCK)) as lock:
        with failing(appender.folder, "cleaning the log"):
            is_alone = lock.acquire()
        if not is_alone:
            return Cleaned(busy=True)
        before = _total_bytes(appender)
        _move_starts(appender, at_ms)
        rewritten = deleted = 0
        with appender.view.moment() as rows:
            topics = list(rows.topics().values())
        for topic in topics:
            _drop_publications(appender, topic)
            for place in topic.places:
                deleted += _delete_blocks(appender, place)
                if topic.compacted:
                    rewritten += _Compaction(appender, place, at_ms, deletions_kept_ms).run()
        _give_back(appender)
        return Cleaned(before, _total_bytes(appender), rewritten, deleted)


def is_due(rows: Rows, at_ms: int, least_new: int) -> bool:
    """See ``EmbeddedLog.cleaning_is_due``."""
    new_bytes = known_bytes = old_bytes = held_bytes = 0
    for topic in rows.topics().values():
        for place in topic.places:
            bounds = rows.bounds(place)
            if topic.compacted:
                looked = _past(rows, place).looked_bytes
                known_bytes += looked
                new_bytes += max(0, bounds.bytes - looked)
            old = sum(block.length for block in _old_blocks(rows, place, topic, at_ms))
            if old:
                old_bytes += old
                held_bytes += bounds.bytes
    much_is_new = new_bytes >= max(1, least_new, _DIRTY_SHARE * known_bytes)
    return much_is_new or (old_bytes > 0 and old_bytes >= _LEAST_SHARE * held_bytes)


def _past(rows: Rows, place: int) -> _Past:
    return _Past(*(rows.get(CLEANINGS, place) or ()))


def _total_bytes(appender: Appender) -> int:
    with appender.view.moment() as rows:
        return sum(values[-1] for _, values in rows.all(PARTITIONS))


@contextmanager
def held_off(folder: Path) -> Generator[None]:
    """See ``EmbeddedLog.compaction_paused``."""
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


class _Turns:
    """Takes short turns of an appender, with time for others in between."""

    def __init__(self, appender: Appender, doing: str = "cleaning the log") -> None:
        self._appender = appender
        self._doing = doing
        self._rest_s = 0.0

    @contextmanager
    def next(self) -> Generator[tuple[Changes, float]]:
        """The next turn, and the instant at which it should end."""
        time.sleep(self._rest_s)
        with self._appender.turn(self._doing) as changes:
            begun_s = time.monotonic()
            yield changes, begun_s + _TURN_S
        self._rest_s = max(time.monotonic() - begun_s, _TURN_S / 2)


# --- retention


def _move_starts(appender: Appender, at_ms: int) -> None:
    with appender.turn("cleaning the log") as changes:
        for topic in changes.topics().values():
            for place in topic.places:
                bounds, start = changes.bounds(place), 0
                for block in _old_blocks(changes, place, topic, at_ms):
                    start = block.end
                changes.put(PARTITIONS, (place,), bounds._replace(start=max(bounds.start, start)))


def _old_blocks(rows: Rows, place: int, topic: Topic, at_ms: int) -> Iterator[Block]:
    """The blocks at the front of a partition that are deleted, too old, or exceed the size limit."""
    bounds = rows.bounds(place)
    oldest_ms = None if topic.retention_ms is None else at_ms - topic.retention_ms
    if not bounds.start and oldest_ms is None and topic.retention_bytes is None:
        return
    size = bounds.bytes
    for block in rows.blocks(place):
        old = oldest_ms is not None and block.max_ms < oldest_ms
        large = topic.retention_bytes is not None and size > topic.retention_bytes
        if block.end > bounds.start and not old and not large:
            return
        size -= block.length
        yield block


def _delete_blocks(appender: Appender, place: int) -> int:
    """Delete the blocks below the start of a partition. Returns how many there were."""
    deleted, turns, more = 0, _Turns(appender), True
    while more:
        with turns.next() as (changes, until_s):
            bounds, more = changes.bounds(place), False
            size = bounds.bytes
            for block in _some(changes.blocks(place)):
                if block.end > bounds.start or (more and time.monotonic() > until_s):
                    break
                changes.drop_block(block)
                size -= block.length
                deleted, more = deleted + 1, True
            changes.put(PARTITIONS, (place,), bounds._replace(bytes=size))
    return deleted


def _some(blocks: Iterator[Block]) -> list[Block]:
    return [block for block, _ in zip(blocks, range(_BLOCKS_AT_ONCE), strict=False)]


def _drop_publications(appender: Appender, topic: Topic) -> None:
    """Delete publications that hold at the start of each partition, and that a later one replaces."""
    with appender.view.moment() as rows:
        starts = [rows.bounds(place).start for place in topic.places]

        def holds(one: Published) -> bool:
            return all(end <= start for end, start in zip(one.ends, starts, strict=True))

        before = [one.number for one in takewhile(holds, rows.published(topic.first_place, 0))]
        kept = {one.number for one in rows.last_published(topic.first_place, before[-1] + 1 if before else 0)}
    gone = [number for number in before if number not in kept]
    turns = _Turns(appender)
    while gone:
        with turns.next() as (changes, _):
            for number in gone[:_BLOCKS_AT_ONCE]:
                changes.drop_published(topic.first_place, number)
        del gone[:_BLOCKS_AT_ONCE]


# --- compaction


class _Compaction:
    """Compacts a partition."""

    def __init__(self, appender: Appender, place: int, at_ms: int, deletions_kept_ms: int) -> None:
        self._appender = appender
        self._view = appender.view
        self._place = place
        self._at_ms = at_ms
        self._turns = _Turns(appender, "compacting a topic")
        with self._view.moment() as rows:
            self._past = _past(rows, place)
            self._start, self._end = rows.bounds(place)[:2]
            first = next(rows.blocks(place), None)
            self._first = self._end if first is None else first.first
        self._waited = self._past.through_ms <= at_ms - deletions_kept_ms
        waited_below = self._past.through if self._waited else 0
        self._removed_below = self._end if deletions_kept_ms <= 0 else waited_below
        """Below this offset deletions are removed."""

    def run(self) -> int:
        """Compact. Returns how many blocks were rewritten."""
        rewritten = self._rewrite(self._chosen())
        past = self._past
        waits = past.through > 0 and not self._waited and past.through_ms <= self._at_ms
        then = (past.through, past.through_ms) if waits else (self._end, self._at_ms)
        with self._appender.turn("compacting a topic") as changes:
            looked = changes.bounds(self._place).bytes - sum(
                block.length for block in changes.blocks(self._place, self._end)
            )
            changes.put(CLEANINGS, (self._place,), _Past(looked, *then))
        return rewritten

    def _chosen(self) -> Kept:
        """Read the partition backwards, and leave out records whose key has already occurred."""
        kept: Kept = {}
        seen: set[bytes | None] = set()
        at = self._end
        while at > self._first:
            with self._view.moment() as rows:
                found = rows.records_at(self._place, at - 1)
            assert found is not None
            block, records = found
            stays = array("H")
            for number in reversed(range(len(records))):
                offset, _, key, value, _ = records[number]
                if offset < self._start or key in seen:
                    continue
                if key is not None:  # a record without a key takes the place of no other
                    seen.add(key)
                    if value is None and offset < self._removed_below:
                        continue
                stays.append(number)
            if len(stays) < len(records):
                kept[block.first] = stays
            at = block.first
        return kept

    def _blocks(self) -> Iterator[Block]:
        """The blocks of the partition, some in each moment."""
        at = 0
        while True:
            with self._view.moment() as rows:
                some = _some(rows.blocks(self._place, at, self._end))
            if not some:
                return
            yield from some
            at = some[-1].end

    def _rewrite(self, kept: Kept) -> int:
        """Rewrite runs of blocks, up to the last that loses records. Full blocks that keep all records stay."""
        last = max(kept, default=-1)
        run: list[Block] = []
        records: list[InputRecord] = []
        size = rewritten = 0
        for block in self._blocks():
            if block.first > last:
                break
            stays = kept.get(block.first)
            is_full = stays is None and block.last - block.base >= blocks_.MOST_RECORDS // 2
            if run and (
                is_full
                or len(run) >= _BLOCKS_AT_ONCE
                or len(records) >= blocks_.MOST_RECORDS
                or size >= blocks_.MOST_BYTES
            ):
                self._replace(run, records, kept)
                rewritten += len(run)
                run, records, size = [], [], 0
            if not is_full:
                with self._view.moment() as rows:
                    found = rows.records(block)
                records += found if stays is None else [found[at] for at in sorted(stays)]
                run.append(block)
                size += block.length
        if run:
            self._replace(run, records, kept)
            rewritten += len(run)
        return rewritten

    def _replace(self, run: list[Block], records: list[InputRecord], kept: Kept) -> None:
        """Replace a run of blocks by one block."""
        if len(run) == 1 and run[0].first not in kept:
            return
        data, max_ms = blocks_.encode_records(records) if records else (b"", 0)
        old, new = run[0], run[-1]
        base, end = (records[0].offset, records[-1].offset) if records else (old.first, old.first - 1)
        block = Block.sealed(
            *(self._place, old.first, new.end, base, end, max_ms, new.highest_ms, len(data)),
            of_records=crc32(data),
        )
        with self._turns.next() as (changes, _):
            for one in run:
                changes.drop_block(one)
            changes.add_block(block, data)
            bounds = changes.bounds(self._place)
            size = bounds.bytes - sum(one.length for one in run) + len(data)
            changes.put(PARTITIONS, (self._place,), bounds._replace(bytes=size))


def _give_back(appender: Appender) -> None:
    """Give free pages back to the file system, some in each turn."""
    turns = _Turns(appender)
    while True:
        with appender.view.moment() as rows:
            free, pages = rows.connection.pragma("freelist_count"), rows.connection.pragma("page_count")
        if free <= max(_FREE_PAGES, pages // _FREE_SHARE):
            break
        with turns.next() as (changes, until_s):
            while time.monotonic() < until_s:
                list(changes.connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})"))
            changes.changed = True
    appender.checkpoint()
