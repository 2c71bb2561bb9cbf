"""A process's view of the log: it follows the frames that any process appends, without a lock between processes.

Theory. The view is positioned after some frame of the newest segment that it knows. A refresh checks whether the file has
grown, and applies each complete frame. Processes communicate in no other way. A writer also learns about its own frames by a
refresh, so catalog and index are built in only one way.

After a frame that seals its segment, the view continues in the next segment, which begins with the state. A process that opens
the log starts in the newest segment, and reads the indexes of older segments from their files. A view does the same if its
segment, or the next one, was cleaned since its last refresh.

A complete frame stays in the log. An incomplete frame is invisible, and only the holder of the append lock may cut it off.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping

from tailrace.core.errors import CorruptLogError, LogUnavailableError
from tailrace.core.records import InputRecord
from tailrace.log.embedded import blocks as blocks_
from tailrace.log.embedded.catalog import Catalog
from tailrace.log.embedded.failures import failing
from tailrace.log.embedded.files import SegmentFiles
from tailrace.log.embedded.frames import (
    FRAME_HEAD,
    REPAIR,
    SEGMENT_HEAD,
    FrameHead,
    Meta,
    SegmentName,
    State,
    check_segment_head,
    decode_head,
    decode_meta,
)
from tailrace.log.embedded.index import Blocks, SegmentIndex, decode_index
from tailrace.log.interface import TopicPartition

_READ_AHEAD = 4096
_ATTEMPTS = 20


class View:
    """The log up to the position that this process has followed. ``mutex`` guards all reads and changes.

    ``power_was_lost`` returns whether the machine has been down since the last commit: see ``frames``.
    """

    def __init__(self, files: SegmentFiles, power_was_lost: Callable[[], bool]) -> None:
        self.files = files
        self.mutex = threading.RLock()
        self._power_was_lost = power_was_lost
        self.load()

    # --- following

    def load(self) -> None:
        """Load everything again, starting with the newest segment."""
        for _ in range(_ATTEMPTS):
            try:
                with self.mutex:
                    return self._load()
            except FileNotFoundError:  # a segment was replaced by a cleaned one meanwhile
                continue
        raise LogUnavailableError(
            f"the segments of the log in {str(self.files.folder)!r} keep changing, or one is missing",
            hint="Look at the folder; restore a file that was deleted by hand.",
        )

    def refresh(self) -> None:
        """Apply all new complete frames.

        Raises:
            CorruptLogError: A frame is damaged.
            LogUnavailableError: The files cannot be read.
        """
        with self.mutex, failing(self.files.folder, "following the log"):
            while self._step():
                pass

    @property
    def torn(self) -> int:
        """Number of bytes after the last complete frame: its write is in progress, or its writer died."""
        return 0 if self.sealed else max(0, self.files.size(self.active) - self.position)

    def _load(self) -> None:
        names = self.files.names()
        if not names:
            raise CorruptLogError(
                "the log has a label and no segment",
                segment=str(self.files.folder),
                position=0,
                hint=REPAIR,
            )
        self._begin(names[-1])
        found = self._next_frame()
        if found is None or found[1].state is None:
            raise CorruptLogError(
                "a segment does not begin with the state of the log",
                segment=self.active.file,
                position=self.position,
                hint=REPAIR,
            )
        head, meta = found
        state = meta.state
        assert state is not None
        self.catalog = Catalog(state)
        self.indexes: dict[int, SegmentIndex] = {}
        for number, generation in self.catalog.segments.items():
            try:
                self.indexes[number] = self.index_of(SegmentName(number, generation))
            except FileNotFoundError:
                continue  # cleaned since this state was written; a later frame names the replacement
        self._enter(state)
        self._pass(head)
        self._collect()
        while self._step():
            pass
        for number, generation in self.catalog.segments.items():
            name = SegmentName(number, generation)
            if number not in self.indexes or self.indexes[number].name != name:
                raise FileNotFoundError(name.file)

    def _begin(self, name: SegmentName) -> None:
        check_segment_head(self.files.read(name, 0, SEGMENT_HEAD.size), name)
        self.active = name
        """The segment that frames are appended to."""
        self.position = SEGMENT_HEAD.size
        """Position after the last complete frame."""
        self.sealed = False
        self.synced = 0
        self.sequence = 0

    def _enter(self, state: State) -> None:
        index = self.indexes[self.active.number] = SegmentIndex(self.active)
        index.first = list(state.published)

    def _step(self) -> bool:
        """Apply one frame. Returns whether there was one."""
        try:
            if self.sealed:
                following = SegmentName(self.active.number + 1)
                if not self.files.path(following).exists():
                    return self._skip()
                sequence = self.sequence
                self._begin(following)
                self.sequence = sequence
            found = self._next_frame()
        except FileNotFoundError:
            if not self._skip():
                raise
            return True
        if found is None:
            return False
        head, meta = found
        if head.sequence != self.sequence + 1 and meta.state is None:
            raise self._damage(f"frame {head.sequence} follows frame {self.sequence}")
        if meta.state is not None:
            self._enter(meta.state)
            self._pass(head)
            return True
        # Steps that may fail come first, so that a frame is applied completely, or again later.
        cleaned = self._cleaned(meta)
        self.catalog.apply(meta)
        body = self.position + FRAME_HEAD.size + head.meta_length
        index = self.indexes[self.active.number]
        for block in meta.blocks:
            new = index.add_block(block, body + block.position)
            if new is not None:
                self.places.setdefault(TopicPartition(block.topic, block.partition), []).append(new)
        for one in meta.published:
            index.add_published(one)
        self._pass(head)
        if meta.sealed:
            self.sealed = True
            self.catalog.segments[self.active.number] = self.active.generation
        if cleaned:
            self._replace(cleaned)
        return True

    def _skip(self) -> bool:
        """Continue from the newest segment if the ones before it were cleaned meanwhile. Returns whether there is a newer one.

        Only sealed segments are cleaned, so another segment follows them. A view that took a missing segment for the log's end
        would never see new frames, and a writer would create the segment a second time.
        """
        if not any(name.number > self.active.number for name in self.files.names()):
            return False
        newest = View(self.files, self._power_was_lost)
        for name in {one.name for one in self.indexes.values()} - {
            one.name for one in newest.indexes.values()
        }:
            self.files.forget(name)
        self.active, self.position, self.sealed = newest.active, newest.position, newest.sealed
        self.synced, self.sequence = newest.synced, newest.sequence
        self.catalog, self.indexes = newest.catalog, newest.indexes
        self._collect()
        return True

    def _pass(self, head: FrameHead) -> None:
        self.position += head.length
        self.synced = max(self.synced, head.synced)
        self.sequence = head.sequence

    def _next_frame(self) -> tuple[FrameHead, Meta] | None:
        """The frame at the view's position, if it is complete."""
        try:
            return self._read_frame()
        except CorruptLogError:
            # A repair by another process may have replaced the frame during the read. Real damage is found again.
            return self._read_frame()

    def _read_frame(self) -> tuple[FrameHead, Meta] | None:
        name, position = self.active, self.position
        size = self.files.size(name)
        if size < position:
            raise self._damage(f"the segment ends at {size}, before a commit that was in it")
        if size < position + FRAME_HEAD.size:
            return None
        data = self.files.read(name, position, min(_READ_AHEAD, size - position))
        if len(data) < FRAME_HEAD.size:
            return None
        head = decode_head(data)
        if head is None:
            self._refuse("the head of a frame")
            return None
        if position + head.length > size:
            return None
        begin = FRAME_HEAD.size
        packed = data[begin : begin + head.meta_length]
        if len(packed) < head.meta_length:
            packed = self.files.read(name, position + begin, head.meta_length)
        meta = decode_meta(head, packed)
        # Since the size was read, a repair may have cut the frame off and written a longer one.
        if self.files.size(name) < position + head.length:
            return None
        if meta is None:
            self._refuse("the meta of a frame")
            return None
        return head, meta

    def _refuse(self, what: str) -> None:
        """Raise an error, unless a power loss may have caused the damage."""
        if self.position < self.synced or not self._power_was_lost():
            raise self._damage(f"{what} does not have its checksum")

    def _damage(self, what: str) -> CorruptLogError:
        return CorruptLogError(what, segment=self.active.file, position=self.position, hint=REPAIR)

    # --- indexes

    def index_of(self, name: SegmentName) -> SegmentIndex:
        """The index of a sealed segment, from its file or from the segment itself."""
        path = self.files.folder / name.index_file
        try:
            index = decode_index(path.read_bytes(), name)
        except FileNotFoundError:
            index = None
        return self._scanned(name) if index is None else index

    def _scanned(self, name: SegmentName) -> SegmentIndex:
        index = SegmentIndex(name)
        for position, head, meta in self.frames(name):
            if meta.state is not None:
                index.first = list(meta.state.published)
            body = position + FRAME_HEAD.size + head.meta_length
            for block in meta.blocks:
                index.add_block(block, body + block.position)
            for one in meta.published:
                index.add_published(one)
        return index

    def frames(self, name: SegmentName) -> Iterator[tuple[int, FrameHead, Meta]]:
        """Position, head and meta of every frame of a segment, up to where the view has followed it.

        Raises:
            CorruptLogError: A frame is damaged or incomplete.
        """
        check_segment_head(self.files.read(name, 0, SEGMENT_HEAD.size), name)
        position = SEGMENT_HEAD.size
        size = self.position if name == self.active else self.files.size(name)
        while position < size:
            data = self.files.read(name, position, min(_READ_AHEAD, size - position))
            head = decode_head(data) if len(data) >= FRAME_HEAD.size else None
            if head is None or position + head.length > size:
                raise CorruptLogError("a frame is damaged", segment=name.file, position=position, hint=REPAIR)
            packed = data[FRAME_HEAD.size : FRAME_HEAD.size + head.meta_length]
            if len(packed) < head.meta_length:
                packed = self.files.read(name, position + FRAME_HEAD.size, head.meta_length)
            meta = decode_meta(head, packed)
            if meta is None:
                raise CorruptLogError("a frame is damaged", segment=name.file, position=position, hint=REPAIR)
            yield position, head, meta
            position += head.length

    def _cleaned(self, meta: Meta) -> dict[int, SegmentIndex | None]:
        """The new indexes of cleaned segments, by number; None: the segment was deleted, or cleaned again since."""
        found: dict[int, SegmentIndex | None] = {}
        for number, generation in meta.cleaned.items():
            try:
                name = SegmentName(number, generation)
                found[number] = self.index_of(name) if generation >= 0 else None
            except FileNotFoundError:
                found[number] = None  # cleaned again since; a later frame names the result
        return found

    def _replace(self, cleaned: Mapping[int, SegmentIndex | None]) -> None:
        for number, index in cleaned.items():
            before = self.indexes.pop(number, None)
            if before is not None:
                self.files.forget(before.name)
            if index is not None:
                self.indexes[number] = index
        self.indexes = dict(sorted(self.indexes.items()))
        self._collect()

    def _collect(self) -> None:
        self.places: dict[TopicPartition, list[Blocks]] = {}
        """By topic-partition, its blocks, segment by segment."""
        for _, index in sorted(self.indexes.items()):
            for place, blocks in index.blocks.items():
                self.places.setdefault(place, []).append(blocks)

    # --- records

    def find(self, place: TopicPartition, offset: int) -> tuple[Blocks, int] | None:
        """The first block with records at or after ``offset``; None if there is none."""
        segments = self.places.get(place)
        if not segments or segments[-1].ends[-1] <= offset:
            return None
        found = segments[bisect_right(segments, offset, key=_last_end)]
        return found, found.at_or_after(offset)

    def offsets_of_blocks_at(self, place: TopicPartition, timestamp_ms: int) -> list[int]:
        """The first offsets of the blocks that hold a record with this timestamp or a later one."""
        with self.mutex:
            return [
                base
                for blocks in self.places.get(place, [])
                for base, highest_ms in zip(blocks.bases, blocks.max_timestamps_ms, strict=True)
                if highest_ms >= timestamp_ms
            ]

    def raw_block(self, place: TopicPartition, blocks: Blocks, number: int) -> bytes:
        """The bytes of a block, after a check of its checksum.

        Raises:
            FileNotFoundError: The segment was replaced or deleted; refresh and try again.
            CorruptLogError: The checksum does not match.
        """
        position, length = blocks.positions[number], blocks.lengths[number]
        data = self.files.read(blocks.segment, position, length)
        if len(data) < length or zlib.crc32(data) != blocks.checksums[number]:
            raise CorruptLogError(
                f"the records of {place.topic!r} partition {place.partition} from offset {blocks.bases[number]} on do "
                "not have their checksum",
                segment=blocks.segment.file,
                position=position,
                hint=REPAIR,
            )
        return data

    def records_at(self, place: TopicPartition, offset: int) -> list[InputRecord]:
        """All records of the first block that ends after ``offset``; an empty list at the end of the log."""
        for _ in range(_ATTEMPTS):
            with self.mutex, failing(self.files.folder, "reading records"):
                found = self.find(place, offset)
                if found is None:
                    return []
                blocks, number = found
                try:
                    data = self.raw_block(place, blocks, number)
                except FileNotFoundError:
                    self.refresh()
                    continue
                base = blocks.bases[number]
            return blocks_.decode(data, base)
        raise LogUnavailableError(
            f"the segment with offset {offset} of {place.topic!r} partition {place.partition} is missing in "
            f"{str(self.files.folder)!r}",
            hint="Restore the file; nothing in the log says that it may be gone.",
        )


def _last_end(blocks: Blocks) -> int:
    return blocks.ends[-1]
