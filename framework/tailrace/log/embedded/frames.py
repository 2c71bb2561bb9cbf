"""The files of the log: segments made of frames, each of which is one commit.

::

    <folder>/tailrace-log.json                  the label: this is a log, of this format
    <folder>/lock                               held during an append (``lock``)
    <folder>/000000000007-0000.segment          segment 7, as it was written (generation 0)
    <folder>/000000000006-0002.segment          segment 6, cleaned twice
    <folder>/000000000006-0002.index            positions of its blocks, so that a sealed segment need not be scanned

    segment  = head, frame*                     the first frame holds the state so far, the last one seals it
    frame    = head, meta, block*               all topics of one commit
    head     = lengths, sequence, checksum of the meta, checksum of the head itself

The meta holds everything in a commit except its records: group offsets, epochs of writers, watermarks, new topics, and the
position, offsets and checksum of every block. A process that follows the log reads only heads and metas; a reader of a
partition also reads its blocks. A segment begins with the state of everything before it, so older segments can be deleted.

A frame is committed when the file is long enough to hold it. Bytes are written in order. So a frame whose writer died is
shorter than its head says. Readers ignore it, and the next writer cuts it off. A kill cannot do any other damage. So a checksum
that does not match is corruption, and an error. The exception is a power loss: bytes that were not synced may be anything, and
the log ends where they begin. Each head records up to where its segment was known to be synced; damage below that position is
always an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from tailrace.core.errors import CorruptLogError, NewerFormatError
from tailrace.log.interface import TopicSettings

FORMAT = 1
"""Version of the folder's layout, of frames and of blocks."""

SEGMENT_HEAD = Struct("<8sHHQII")
FRAME_HEAD = Struct("<4sIQQQII")
_SEGMENT_MAGIC = b"TAILRACE"
_FRAME_MAGIC = b"FRAM"
_CHECKSUM = Struct("<I")
REPAIR = "Restore the file from a copy, or cut the log there by hand and restore what depends on it."


class SegmentName(NamedTuple):
    """A segment's number, counted from 1, and how often it was cleaned."""

    number: int
    generation: int = 0

    @property
    def file(self) -> str:
        """The name of the segment's file."""
        return f"{self.number:012d}-{self.generation:04d}.segment"

    @property
    def index_file(self) -> str:
        """The name of the file that holds its index."""
        return f"{self.number:012d}-{self.generation:04d}.index"


class BlockPlace(msgspec.Struct, array_like=True, gc=False):
    """The position of a block, and its offsets: from ``base`` up to, but not including, ``end``."""

    topic: str
    partition: int
    base: int
    end: int
    position: int
    """In bytes from the frame's first block."""
    length: int
    checksum: int
    max_timestamp_ms: int
    at_ms: int
    """Time of the commit, by the writer's clock."""


class Published(msgspec.Struct, array_like=True):
    """A published watermark: it is valid for readers that have read partition p up to ``ends[p]``."""

    topic: str
    publisher: str
    watermark_ms: int | None
    ends: Sequence[int]


class State(msgspec.Struct, array_like=True):
    """The state after all commits so far, without records."""

    topics: Mapping[str, TopicSettings] = {}
    starts: Mapping[str, Sequence[int]] = {}
    ends: Mapping[str, Sequence[int]] = {}
    epochs: Mapping[str, int] = {}
    offsets: Mapping[str, Sequence[tuple[str, int, int]]] = {}
    """Per group (topic, partition, offset)."""
    published: Sequence[Published] = ()
    segments: Mapping[int, int] = {}
    """Generation of each sealed segment."""


class Meta(msgspec.Struct, array_like=True, omit_defaults=True):
    """The content of a frame except the bytes of its blocks. New fields must be added at the end."""

    at_ms: int
    blocks: Sequence[BlockPlace] = ()
    group: str = ""
    offsets: Sequence[tuple[str, int, int]] = ()
    published: Sequence[Published] = ()
    topics: Mapping[str, TopicSettings] = {}
    epochs: Mapping[str, int] = {}
    starts: Sequence[tuple[str, int, int]] = ()
    """(topic, partition, offset): all records below the offset are deleted."""
    forgotten: Sequence[str] = ()
    """Groups whose offsets are forgotten."""
    cleaned: Mapping[int, int] = {}
    """New generations of sealed segments, by number; below zero: the segment is deleted."""
    sealed: bool = False
    """The segment ends here."""
    state: State | None = None
    """The state before this segment. Only the first frame has it."""


class FrameHead(NamedTuple):
    """The head of a frame. Lengths are in bytes. ``synced``: up to where its segment was known to be on the disk."""

    meta_length: int
    body_length: int
    sequence: int
    synced: int
    meta_checksum: int

    @property
    def length(self) -> int:
        """Length of the whole frame in bytes."""
        return FRAME_HEAD.size + self.meta_length + self.body_length


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Meta)


def encode_frame(meta: Meta, body_length: int, sequence: int, synced: int) -> bytes:
    """Head and meta of a frame. Its blocks follow them."""
    data = _encoder.encode(meta)
    fields = (_FRAME_MAGIC, len(data), body_length, sequence, synced, zlib.crc32(data))
    plain = FRAME_HEAD.pack(*fields, 0)
    return FRAME_HEAD.pack(*fields, zlib.crc32(plain)) + data


def decode_head(data: bytes) -> FrameHead | None:
    """The head of a frame; None if it is damaged."""
    magic, meta_length, body_length, sequence, synced, meta_checksum, checksum = FRAME_HEAD.unpack_from(data)
    plain = data[: FRAME_HEAD.size - _CHECKSUM.size] + bytes(_CHECKSUM.size)
    if magic != _FRAME_MAGIC or zlib.crc32(plain) != checksum:
        return None
    return FrameHead(meta_length, body_length, sequence, synced, meta_checksum)


def decode_meta(head: FrameHead, data: bytes) -> Meta | None:
    """The meta of a frame; None if it is damaged."""
    if zlib.crc32(data) != head.meta_checksum:
        return None
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None


def encode_segment_head(name: SegmentName) -> bytes:
    """The head of a segment file."""
    fields = (_SEGMENT_MAGIC, FORMAT, 0, name.number, name.generation)
    return SEGMENT_HEAD.pack(*fields, zlib.crc32(SEGMENT_HEAD.pack(*fields, 0)))


def check_segment_head(data: bytes, name: SegmentName) -> None:
    """Check that a file is the segment of its name.

    Raises:
        NewerFormatError: A newer version wrote the file.
        CorruptLogError: The file is damaged, or is not this segment.
    """
    if len(data) < SEGMENT_HEAD.size or not data.startswith(_SEGMENT_MAGIC):
        raise CorruptLogError("a segment does not begin as one", segment=name.file, position=0, hint=REPAIR)
    _, number_of_format, *_, checksum = SEGMENT_HEAD.unpack_from(data)
    if zlib.crc32(data[: SEGMENT_HEAD.size - 4] + bytes(4)) != checksum:
        raise CorruptLogError("the head of a segment is damaged", segment=name.file, position=0, hint=REPAIR)
    if number_of_format > FORMAT:
        raise newer(number_of_format, name.file)
    if data[: SEGMENT_HEAD.size] != encode_segment_head(name):
        raise CorruptLogError("a segment was renamed", segment=name.file, position=0, hint=REPAIR)


def newer(number: int, path: str) -> NewerFormatError:
    """The error for a format that this version does not know."""
    return NewerFormatError(
        f"the log is of format {number}, this version of tailrace reads up to {FORMAT}",
        path=path,
        hint="It was written by a newer version. Run that version, or a later one.",
    )
