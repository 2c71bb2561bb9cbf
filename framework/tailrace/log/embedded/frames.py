"""The files of the log: segments made of frames, each of which is one commit.

::

    <folder>/tailrace-log.json                  the label: this is a log, of this format
    <folder>/lock                               who appends holds it (``lock``)
    <folder>/000000000007-0000.segment          segment 7, as it was written (generation 0)
    <folder>/000000000006-0002.segment          segment 6, cleaned twice
    <folder>/000000000006-0002.index            where its blocks are, so that nobody scans a sealed segment

    segment  = head, frame*                     the first frame holds the state so far, the last one seals it
    frame    = head, meta, block*               all topics of one commit
    head     = lengths, sequence, checksum of the meta, checksum of the head itself

What a commit says besides its records (offsets of a group, epochs of writers, watermarks, new topics) is in the meta,
and so are place, offsets and checksum of every block. Who follows the log reads heads and metas only; who reads a
partition, its blocks. A segment begins with the state of everything before it, so older ones can be deleted.

A frame is committed when the file is long enough to hold it: bytes arrive in order, so one that was cut short by the
death of its writer is shorter than its head says, is seen by nobody and is cut off by the next writer. That is the only
damage a kill can do. A checksum that does not fit is therefore corruption, and an error, but for the time after a power
loss: what was not synced then may be anything, and ends the log where it begins. Each head says how far its segment
was known to be synced, so that what lies below is never taken for such an end.
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
        """The name of its file."""
        return f"{self.number:012d}-{self.generation:04d}.segment"

    @property
    def index_file(self) -> str:
        """The name of the file that holds its index."""
        return f"{self.number:012d}-{self.generation:04d}.index"


class BlockPlace(msgspec.Struct, array_like=True, gc=False):
    """Where a block is, and what it holds: offsets from ``base`` up to, but not including, ``end``."""

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
    """When it was committed, by the writer's clock."""


class Published(msgspec.Struct, array_like=True):
    """A watermark as it was published: it holds for who has read partition p up to ``ends[p]``."""

    topic: str
    publisher: str
    watermark_ms: int | None
    ends: Sequence[int]


class State(msgspec.Struct, array_like=True):
    """What all commits so far amount to, records apart."""

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
    """What a frame says besides the bytes of its blocks. New fields go to the end."""

    at_ms: int
    blocks: Sequence[BlockPlace] = ()
    group: str = ""
    offsets: Sequence[tuple[str, int, int]] = ()
    published: Sequence[Published] = ()
    topics: Mapping[str, TopicSettings] = {}
    epochs: Mapping[str, int] = {}
    starts: Sequence[tuple[str, int, int]] = ()
    """(topic, partition, offset): everything below is deleted."""
    forgotten: Sequence[str] = ()
    """Groups whose offsets are forgotten."""
    cleaned: Mapping[int, int] = {}
    """Sealed segments that have a new generation; below zero: that are gone."""
    sealed: bool = False
    """The segment ends here."""
    state: State | None = None
    """Of everything before this segment."""


class FrameHead(NamedTuple):
    """The lengths are in bytes; ``synced``: up to where its segment was known to be on the disk."""

    meta_length: int
    body_length: int
    sequence: int
    synced: int
    meta_checksum: int

    @property
    def length(self) -> int:
        """Of the whole frame."""
        return FRAME_HEAD.size + self.meta_length + self.body_length


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Meta)


def encode_frame(meta: Meta, body_length: int, sequence: int, synced: int) -> bytes:
    """Head and meta of a frame, which its blocks follow."""
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
    """What a segment begins with."""
    fields = (_SEGMENT_MAGIC, FORMAT, 0, name.number, name.generation)
    return SEGMENT_HEAD.pack(*fields, zlib.crc32(SEGMENT_HEAD.pack(*fields, 0)))


def check_segment_head(data: bytes, name: SegmentName) -> None:
    """See that a file is the segment that it is named for.

    Raises:
        NewerFormatError: A newer version wrote it.
        CorruptLogError: It is not.
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
