"""Moves a log of format 1 into the present format. Versions before this one read and write format 1.

A log of format 1 is made of segments, and a segment of frames, each of which is one commit::

    segment  = head, frame*                     the first frame has the state of the log before it
    frame    = head, meta, block*               all topics of one commit
    head     = lengths, sequence, checksum of the meta, checksum of the head itself

The blocks of records are the same in both formats. An incomplete frame at the end is a commit that was never completed. The old
files are kept in a folder of their own.

Both formats have the same append lock, so nobody commits during an upgrade. But a process of the older version keeps the files
open that it has read or written, and what it would commit to them later would be lost. So the upgrade is refused while another
process owns a task or has a file of the old log open. This is checked again before the files are moved.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from tailrace.core.errors import CorruptLogError, LogUnavailableError
from tailrace.log.embedded.claims import OWNERS, owner_of
from tailrace.log.embedded.database import (
    DATABASE,
    FORMAT,
    MAKING,
    OFFSETS,
    OLD_LABEL,
    PARTITIONS,
    TOPICS,
    WRITERS,
    checksum_of,
    connect,
    filling,
    put_in_place,
)
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.holders import processes_with_open
from tailrace.log.embedded.lock import AppendLock
from tailrace.log.embedded.rows import Block, Bounds, Changes, Rows, State
from tailrace.log.interface import TopicSettings

KEPT = "before-upgrade"
"""Folder in the log's folder that the old files are moved to."""
_SEGMENT_HEAD_BYTES = 28
_FRAME_HEAD = Struct("<4sIQQQII")
_SEGMENT = re.compile(r"(\d{12})-(\d{4,})\.segment")
_OLD_FILE = re.compile(r"\d{12}-\d{4,}\.(segment|index)(\.making)?|tailrace-log\.json.*")
_FRAMES_AT_ONCE = 500


class Upgraded(NamedTuple):
    """What was moved."""

    topics: int
    offsets: int
    """Number of offsets from start to end of all partitions."""
    bytes_left_out: int
    """Length of an incomplete commit at the end."""
    kept: Path | None
    """Where the old files are now; None if the log was changed where it is."""


class _BlockPlace(msgspec.Struct, array_like=True, gc=False):
    topic: str
    partition: int
    base: int
    end: int
    position: int
    length: int
    checksum: int
    max_timestamp_ms: int
    at_ms: int


class _Published(msgspec.Struct, array_like=True):
    topic: str
    publisher: str
    watermark_ms: int | None
    ends: Sequence[int]


class _State(msgspec.Struct, array_like=True):
    topics: Mapping[str, TopicSettings] = {}
    starts: Mapping[str, Sequence[int]] = {}
    ends: Mapping[str, Sequence[int]] = {}
    epochs: Mapping[str, int] = {}
    offsets: Mapping[str, Sequence[tuple[str, int, int]]] = {}
    published: Sequence[_Published] = ()
    segments: Mapping[int, int] = {}


class _Meta(msgspec.Struct, array_like=True):
    at_ms: int
    blocks: Sequence[_BlockPlace] = ()
    group: str = ""
    offsets: Sequence[tuple[str, int, int]] = ()
    published: Sequence[_Published] = ()
    topics: Mapping[str, TopicSettings] = {}
    epochs: Mapping[str, int] = {}
    starts: Sequence[tuple[str, int, int]] = ()
    forgotten: Sequence[str] = ()
    cleaned: Mapping[int, int] = {}
    sealed: bool = False
    state: _State | None = None


class _Frame(NamedTuple):
    sequence: int
    meta: _Meta
    blocks: list[bytes]


_decoder = msgspec.msgpack.Decoder(_Meta)


def upgrade(folder: Path) -> Upgraded:
    """Move a log of format 1 into the present format. If it is interrupted, it can be run again.

    Raises:
        CorruptLogError: The old log is damaged. It is left as it is.
        LogUnavailableError: There is no old log, or no room, or another process uses the log.
    """
    lock = AppendLock(folder)
    with failing(folder, "upgrading the log"), closing(lock):
        kept = folder / KEPT
        if (folder / DATABASE).is_file() and not (folder / OLD_LABEL).is_file() and _completed(folder, lock):
            return Upgraded(0, 0, 0, None)
        if not (folder / OLD_LABEL).is_file():
            # If there are old files beside it, an earlier upgrade was interrupted in its last step.
            if (kept / OLD_LABEL).is_file() and _put_aside(folder, kept):
                return Upgraded(0, 0, 0, kept)
            raise LogUnavailableError(
                f"there is no log of an older format in {str(folder)!r}", hint="Nothing is to be done."
            )
        _check_unused(folder)
        with lock.held():
            old = _OldLog(folder)
            made = Upgraded(0, 0, 0, kept)
            if (
                folder / DATABASE
            ).exists():  # an earlier upgrade was interrupted; nobody could open the log since
                _check_moved(old, folder)
            else:
                made = _moved(old, folder)
            _check_unused(folder)
            lock.forget()
            kept.mkdir(exist_ok=True)
            _put_aside(folder, kept)
            return made


def _completed(folder: Path, lock: AppendLock) -> bool:
    """Give a database of format 2 the digest of its publications, in one transaction. Returns whether it was of that format."""
    with lock.held(), closing(connect(folder, synchronous="FULL", older=True)) as connection:
        if connection.pragma("user_version") != FORMAT - 1:
            return False
        _check_unused(folder)
        lock.keep_note()
        connection.execute("BEGIN IMMEDIATE")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(log)")]
        if "published" not in columns:  # some of the last development versions have it
            *state, checksum = next(connection.execute("SELECT identity, commits, digest, checksum FROM log"))
            if checksum_of("log", tuple(state)) != checksum:
                raise CorruptLogError(
                    "the row with the state of the log is damaged",
                    path=str(folder / DATABASE),
                    hint="Restore a copy.",
                )
            published = 0
            for (one,) in connection.execute("SELECT checksum FROM publications"):
                published ^= one
            connection.execute("ALTER TABLE log ADD COLUMN published")
            sealed = checksum_of("log", (*state, published))
            connection.execute("UPDATE log SET published = ?, checksum = ?", (published, sealed))
        connection.pragma("user_version", FORMAT)
        connection.execute("COMMIT")
    return True


def _check_unused(folder: Path) -> None:
    owners = (owner_of(folder, unquote(path.stem)) for path in (folder / OWNERS).glob("*.lock"))
    pids = {owner.pid for owner in owners if owner is not None} | processes_with_open(folder, _OLD_FILE)
    if pids:
        raise LogUnavailableError(
            f"the log in {str(folder)!r} is in use by process {', '.join(map(str, sorted(pids)))}, which would continue to write "
            "the old files",
            hint="Stop all services and programs that use the log, and run `tailrace log upgrade` again. Nothing was changed.",
        )


def _put_aside(folder: Path, kept: Path) -> int:
    """Move the old files, the label first: without it the new log is the only one. Returns how many there were."""
    files = [entry for entry in folder.iterdir() if _OLD_FILE.fullmatch(entry.name)]
    for entry in sorted(files, key=lambda one: not one.name.startswith(OLD_LABEL)):
        entry.rename(kept / entry.name)
    return len(files)


def _check_moved(old: _OldLog, folder: Path) -> None:
    """Check that the new log has what the old one has. The old version may have run since, or its files were put back."""
    connection = connect(folder)
    try:
        rows = Rows(connection, folder / DATABASE)
        ends = {name: rows.ends(name) for name in rows.topics()}
    finally:
        connection.close()
    if ends != {name: list(at) for name, at in old.ends.items()}:
        raise LogUnavailableError(
            f"{str(folder)!r} has a log of an older format and one of this format, and their topics do not end at the same "
            "offsets: one of them was continued alone",
            hint=f"Decide which of them counts, and move the files of the other out of the folder: {DATABASE}* of this format, "
            f"or {OLD_LABEL} and the segments. Then run `tailrace log upgrade` again, or start the services.",
        )


def _moved(old: _OldLog, folder: Path) -> Upgraded:
    making = folder / MAKING
    with filling(making) as connection:
        changes = Changes(connection, making)
        mover = _Mover(changes, old)
        mover.move()
        offsets = sum(
            end - start
            for topic, starts in old.starts.items()
            for start, end in zip(starts, old.ends[topic], strict=True)
        )
        result = Upgraded(len(old.topics), offsets, old.torn, folder / KEPT)
    put_in_place(making)
    return result


class _OldLog:
    """The state of an old log after all its commits, and its frames."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.torn = 0
        names = sorted(
            (int(found[1]), int(found[2]))
            for entry in folder.iterdir()
            if (found := _SEGMENT.fullmatch(entry.name))
        )
        if not names:
            raise CorruptLogError(
                "the log has a label and no segment", path=str(folder), hint="Restore its files."
            )
        self._newest = names[-1]
        first = True
        for frame in self._frames_of(*self._newest):
            if first:
                state = frame.meta.state
                if state is None:
                    raise self._damage(*self._newest, 0)
                self._take(state)
                first = False
            else:
                self._apply(frame.meta)
            self.sequence = frame.sequence

    def frames(self) -> Iterator[_Frame]:
        """All frames that are part of the log, in order."""
        for number, generation in sorted(self.segments.items()):
            if number != self._newest[0]:
                yield from self._frames_of(number, generation)
        yield from self._frames_of(*self._newest)

    def _take(self, state: _State) -> None:
        self.topics = dict(state.topics)
        self.starts = {name: list(at) for name, at in state.starts.items()}
        self.ends = {name: list(at) for name, at in state.ends.items()}
        self.epochs = dict(state.epochs)
        self.offsets = {
            group: {(topic, number): at for topic, number, at in offsets}
            for group, offsets in state.offsets.items()
        }
        self.segments = dict(state.segments)
        self.sequence = 0

    def _apply(self, meta: _Meta) -> None:
        for topic, settings in meta.topics.items():
            self.topics[topic] = settings
            self.starts.setdefault(topic, [0] * settings.partitions)
            self.ends.setdefault(topic, [0] * settings.partitions)
        for block in meta.blocks:
            self.ends[block.topic][block.partition] = block.end
        for topic, number, at in meta.offsets:
            self.offsets.setdefault(meta.group, {})[topic, number] = at
        for topic, number, at in meta.starts:
            self.starts[topic][number] = at
        for group in meta.forgotten:
            self.offsets.pop(group, None)
        self.epochs.update(meta.epochs)
        for number, generation in meta.cleaned.items():
            if generation < 0:
                self.segments.pop(number, None)
            else:
                self.segments[number] = generation

    def _frames_of(self, number: int, generation: int) -> Iterator[_Frame]:
        path = self._folder / f"{number:012d}-{generation:04d}.segment"
        size, position = path.stat().st_size, _SEGMENT_HEAD_BYTES
        is_newest = (number, generation) == self._newest
        with path.open("rb") as file:
            while position < size:
                file.seek(position)
                head = file.read(_FRAME_HEAD.size)
                if is_newest and len(head) < _FRAME_HEAD.size:
                    break
                if (
                    len(head) < _FRAME_HEAD.size
                    or zlib.crc32(head[:-4] + bytes(4)) != _FRAME_HEAD.unpack(head)[-1]
                ):
                    raise self._damage(number, generation, position)
                _, meta_length, body_length, sequence, _, checksum, _ = _FRAME_HEAD.unpack(head)
                end = position + _FRAME_HEAD.size + meta_length + body_length
                if is_newest and end > size:
                    break
                packed, body = file.read(meta_length), file.read(body_length)
                if len(body) < body_length or zlib.crc32(packed) != checksum:
                    raise self._damage(number, generation, position)
                meta = _decoder.decode(packed)
                blocks = [body[one.position : one.position + one.length] for one in meta.blocks]
                if any(
                    zlib.crc32(data) != one.checksum for data, one in zip(blocks, meta.blocks, strict=True)
                ):
                    raise self._damage(number, generation, position)
                yield _Frame(sequence, meta, blocks)
                position = end
        self.torn = size - position if is_newest else self.torn

    def _damage(self, number: int, generation: int, position: int) -> CorruptLogError:
        return CorruptLogError(
            "the old log is damaged: a commit does not have its checksum",
            path=f"{number:012d}-{generation:04d}.segment",
            position=position,
            hint="Restore the file from a copy; or open the log with the older version, which may cut off a damaged end after a "
            "power loss.",
        )


class _Mover:
    """Writes the rows of an old log."""

    def __init__(self, changes: Changes, old: _OldLog) -> None:
        self._changes = changes
        self._old = old
        self._bounds: dict[tuple[str, int], Bounds] = {}
        """``end`` is the end of the last block that was written."""
        self._places: dict[tuple[str, int], int] = {}
        self._held: dict[tuple[str, int], tuple[_BlockPlace, bytes, int]] = {}
        """The last block of each partition, which may stand for offsets behind its records."""
        self._numbers: dict[str, int] = {}
        self._commits = 0

    def move(self) -> None:
        """Write everything."""
        self._begin()
        self._topics()
        first = True
        for frame in self._old.frames():
            self._commits += 1
            if frame.meta.state is not None:
                if first:
                    self._publish(sorted(frame.meta.state.published, key=lambda one: sum(one.ends)))
                first = False
            for block, data in zip(frame.meta.blocks, frame.blocks, strict=True):
                self._add(block, data)
            self._publish(frame.meta.published)
            if self._commits % _FRAMES_AT_ONCE == 0:
                self._end()
                self._begin()
        self._partitions()
        for group, offsets in self._old.offsets.items():
            for place, at in offsets.items():
                self._changes.put(OFFSETS, (group, *place), (at,))
        for transactional_id, epoch in self._old.epochs.items():
            self._changes.put(WRITERS, (transactional_id,), (epoch,))
        self._commits = max(self._commits, self._old.sequence)
        self._end()

    def _begin(self) -> None:
        self._changes.connection.execute("BEGIN")
        self._changes.begin()

    def _end(self) -> None:
        changes = self._changes
        changes.before = State(changes.before.identity, self._commits - 1, changes.before.digest)
        changes.end()
        changes.connection.execute("COMMIT")

    def _topics(self) -> None:
        place = 0
        for number, (name, settings) in enumerate(self._old.topics.items()):
            self._numbers[name] = number
            self._changes.put(
                TOPICS,
                (name,),
                (
                    *(number, place, settings.partitions, int(settings.compacted)),
                    *(settings.retention_ms, settings.retention_bytes),
                ),
            )
            for partition in range(settings.partitions):
                self._places[name, partition] = place
                start = self._old.starts[name][partition]
                self._bounds[name, partition] = Bounds(start, start)
                place += 1

    def _add(self, block: _BlockPlace, data: bytes) -> None:
        at = block.topic, block.partition
        if at not in self._places:
            return
        self._flush(at)
        self._held[at] = block, data, self._commits

    def _flush(self, at: tuple[str, int], end: int | None = None) -> None:
        held = self._held.pop(at, None)
        if held is None:
            return
        block, data, commits = held
        bounds = self._bounds[at]
        highest_ms = max(bounds.highest_ms, block.max_timestamp_ms)
        first = min(bounds.end, block.base) if bounds.bytes == 0 else bounds.end
        end = end or block.end
        self._changes.add_block(
            Block(
                *(self._places[at], first, end, block.base, block.end - 1, commits),
                *(block.max_timestamp_ms, highest_ms, block.length, block.checksum),
            ),
            data,
        )
        self._bounds[at] = Bounds(bounds.start, end, highest_ms, bounds.bytes + block.length)

    def _partitions(self) -> None:
        for at, place in self._places.items():
            end = self._old.ends[at[0]][at[1]]
            self._flush(at, end)
            bounds = self._bounds[at]
            if bounds.end < end:
                empty = (place, bounds.end, end, bounds.end, bounds.end - 1, self._commits)
                self._changes.add_block(Block(*empty, 0, bounds.highest_ms, 0, 0), b"")
            self._changes.put(PARTITIONS, (place,), bounds._replace(end=end))

    def _publish(self, published: Sequence[_Published]) -> None:
        for one in published:
            number = self._numbers.get(one.topic)
            if number is not None:
                self._changes.publish(number, one.publisher, one.watermark_ms, list(one.ends))
