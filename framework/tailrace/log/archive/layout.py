"""The layout of an archive, and which of its files count.

::

    <uri>/_archive.json                                                  format; identity of the log
    <uri>/_topics/<topic>.json                                           its settings, and its id where the log has ids
    <uri>/_chunks/<topic>/<partition>/<start>_<stop>_<first>_<last>.json which files hold these offsets, and what else
    <uri>/_ends/<position>.json                                          ends of topics as of one commit of the log
    <uri>/topic=<topic>/partition=<n>/date=<day>/<start>-<stop>.parquet  records: offset, timestamp, key, value, headers

A *chunk* is a run of offsets of one partition. Its records are in a file for each day (UTC) of their
timestamps, in the order of their offsets. Its marker is written after the files. **A file that no chunk names
is not part of the archive**: the next run removes it, and begins where the last chunk ends. So other tools,
which see only the Parquet files, may see a record twice between a killed run and the next.

Archived offsets are a run without gaps, from the first chunk on. ``first`` and ``last`` are the lowest and
highest timestamp in milliseconds, so a list of names is enough to leave a chunk unread.

``_ends`` is written when all topics have been archived up to there: a moment at which no commit is in one
topic and not in another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from tailrace.core.errors import ArchiveError
from tailrace.core.formats import check_format
from tailrace.core.records import RecordMark
from tailrace.log.interface import Ends, TopicPartition, TopicSettings
from tailrace.state.snapshots.places import Place

FORMAT = 3
LABEL = "_archive.json"
_TOPICS, _CHUNKS, _ENDS = "_topics", "_chunks", "_ends"
_T = TypeVar("_T")
_HINT = "Restore the file from a copy of the archive, or archive again into another folder."


class ChunkFile(msgspec.Struct, frozen=True):
    """A file of a chunk, under its path in the archive. Times in milliseconds; sha256 in hex."""

    path: str
    rows: int
    first_ms: int
    last_ms: int
    bytes: int
    sha256: str


class Published(msgspec.Struct, frozen=True, array_like=True):
    """A watermark that was published for the topic, and the position from which on it holds."""

    position: int
    publisher: str
    watermark_ms: int | None


class ChunkContent(msgspec.Struct, frozen=True):
    """The marker of a chunk."""

    format: int
    files: tuple[ChunkFile, ...] = ()
    published: tuple[Published, ...] = ()
    last: RecordMark | None = None
    """The last record; None if there is no record."""


class _Label(msgspec.Struct):
    format: int
    log: str = ""


class _Topic(msgspec.Struct):
    partitions: int
    compacted: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    note: bytes = b""
    """Its id in the log (see ``Log.topic_ids``)."""

    @property
    def settings(self) -> TopicSettings:
        return TopicSettings(self.partitions, self.compacted, self.retention_ms, self.retention_bytes)


class _EndsContent(msgspec.Struct):
    position: int
    offsets: dict[str, list[int]]


_label, _topic = msgspec.json.Decoder(_Label), msgspec.json.Decoder(_Topic)
_content, _ends = msgspec.json.Decoder(ChunkContent), msgspec.json.Decoder(_EndsContent)


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Offsets from ``start`` up to ``stop``; its records have timestamps from ``first_ms`` to ``last_ms``."""

    start: int
    stop: int
    first_ms: int
    last_ms: int

    @property
    def name(self) -> str:
        """Of its marker."""
        return f"{self.start:020d}_{self.stop:020d}_{self.first_ms}_{self.last_ms}.json"

    @classmethod
    def named(cls, name: str) -> Chunk | None:
        """The chunk that a marker's name describes; None for any other name."""
        parts = name.removesuffix(".json").split("_")
        try:
            return cls(*map(int, parts)) if len(parts) == 4 and name.endswith(".json") else None
        except ValueError:
            return None


class Archive:
    """The archive of one log, in a folder that was there or is made by the first who writes to it.
    Raises ArchiveError: the folder holds something else; FormatError: a newer version wrote it.
    """

    @classmethod
    def at(cls, uri: str | Path) -> Archive:
        """The archive at a path or a URI, which need not exist."""
        return cls(Place.at(uri))

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.log_identity = ""
        """The identity of the log that was archived, in hex; empty if it is not known."""
        self.exists = self._check()
        self._notes: dict[str, bytes] = {}

    def _check(self) -> bool:
        try:
            data = (self.folder / LABEL).read()
        except FileNotFoundError:
            strangers = [one.name for one in self.folder.entries() if not one.name.startswith(".")]
            if strangers:
                raise ArchiveError(
                    f"the folder is no archive, and holds something else: {', '.join(strangers[:3])}",
                    path=self.folder.shown,
                    hint="Give the archive a folder of its own. Nothing in this folder was changed.",
                ) from None
            return False
        label = self._decoded(data, _label, LABEL)
        number, self.log_identity = label.format, label.log
        check_format("the archive", number, FORMAT, path=self.folder.shown)
        return True

    def create(self, identity: str) -> None:
        """Make it an archive of the log with this identity, if it is none yet."""
        if not self.exists:
            self.folder.make()
            (self.folder / LABEL).write(msgspec.json.encode(_Label(FORMAT, identity)))
            self.exists, self.log_identity = True, identity

    def topics(self) -> dict[str, TopicSettings]:
        """The topics that have been archived, as they were kept."""
        found: dict[str, TopicSettings] = {}
        for file in self._named(_TOPICS):
            stored = self._decoded((self.folder / _TOPICS / file).read(), _topic, f"{_TOPICS}/{file}")
            name = unquote(file.removesuffix(".json"))
            found[name], self._notes[name] = stored.settings, stored.note
        return found

    def topic_note(self, topic: str) -> bytes:
        """The id of a topic in the log when it was first archived."""
        if topic not in self._notes:
            self.topics()
        return self._notes.get(topic, b"")

    def note_topic(self, topic: str, settings: TopicSettings, note: bytes = b"") -> None:
        """Note how a topic is kept, and its id in the log."""
        stored = _Topic(**settings._asdict(), note=note)
        (self.folder / _TOPICS / f"{quoted(topic)}.json").write(msgspec.json.encode(stored))
        self._notes[topic] = note

    def chunks(self, place: TopicPartition) -> list[Chunk]:
        """The chunks of a partition, by their offsets.
        Raises ArchiveError: one does not begin where the one before ends: something else has written or deleted here.
        """
        entries = self._chunk_folder(place).entries()
        found = sorted(chunk for one in entries if (chunk := Chunk.named(one.name)) is not None)
        for before, after in pairwise(found):
            if after.start != before.stop:
                raise ArchiveError(
                    f"the chunks {before.name} and {after.name} of {place.topic!r} partition {place.partition} overlap, or one "
                    "between them is missing",
                    path=self._chunk_folder(place).shown,
                    hint="If two processes archived here at once, delete the second marker, and archive again. If a marker was "
                    "deleted, restore it from a copy.",
                )
        return found

    def content(self, place: TopicPartition, chunk: Chunk) -> ChunkContent:
        """What the marker of a chunk says."""
        marker = self._chunk_folder(place) / chunk.name
        return self._decoded(marker.read(), _content, marker.shown)

    def add(self, place: TopicPartition, chunk: Chunk, content: ChunkContent) -> None:
        """Make a chunk part of the archive. Raises FileExistsError if it is one already."""
        (self._chunk_folder(place) / chunk.name).write(msgspec.json.encode(content), replace=False)

    def _chunk_folder(self, place: TopicPartition) -> Place:
        return self.folder / _CHUNKS / quoted(place.topic) / str(place.partition)

    def ends(self, topics: Iterable[str]) -> Ends | None:
        """The ends of topics at the latest moment up to which they were archived together, if any."""
        names = [*topics]
        for file in sorted(self._named(_ENDS), reverse=True):
            content = self._decoded((self.folder / _ENDS / file).read(), _ends, f"{_ENDS}/{file}")
            if content.offsets.keys() >= set(names):
                return Ends(content.position, {name: content.offsets[name] for name in names})
        return None

    def note_ends(self, ends: Ends) -> None:
        """Note that everything up to these ends is archived."""
        data = msgspec.json.encode(_EndsContent(*ends))
        (self.folder / _ENDS / f"{ends.position:020d}.json").write(data)

    def _named(self, folder: str) -> list[str]:
        """The names of the files in a folder. Those that begin with a dot are not written in full yet."""
        names = [one.name for one in (self.folder / folder).entries()]
        return [name for name in names if name.endswith(".json") and not name.startswith(".")]

    def _decoded(self, data: bytes, decoder: msgspec.json.Decoder[_T], name: str) -> _T:
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ArchiveError(f"it cannot be read: {error}", path=name, hint=_HINT) from error


def folder_of(place: TopicPartition) -> str:
    """Where the records of a partition lie, in the archive."""
    return f"topic={quoted(place.topic)}/partition={place.partition}"


def quoted(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")
