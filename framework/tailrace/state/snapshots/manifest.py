"""The manifest: a list of the parts of a snapshot, with checksums that prove that they are unchanged.

It is readable JSON (bytes as base64). Its own checksum covers all other fields, which include the checksum of
each file. A folder becomes a snapshot when its manifest is written into it.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec

from tailrace.core.errors import AlteredSnapshotError
from tailrace.core.formats import check_format
from tailrace.state.provenance import NOTHING, Provenance

FORMAT = 7
"""The newest format of manifests and tables that this code reads, and the one that it writes."""

MANIFEST = "manifest.json"

HELD_BY = "held-by-"
"""A file in a snapshot's folder with this prefix and the name of an app: its history begins there."""

Kind: TypeAlias = Literal["full", "incremental"]
Source: TypeAlias = Literal["live", "tape", "stages", "edited"]
"""Where the rows come from: a service, a rebuild along the tape or in stages, or a person."""

TableName: TypeAlias = Literal["state", "timers", "messages", "deleted"]


class FileInfo(msgspec.Struct, frozen=True):
    """A file of a snapshot, in its folder: name, table, rows, size in bytes, sha256 in hex."""

    name: str
    table: TableName
    rows: int
    bytes: int
    sha256: str


class TaskEntry(msgspec.Struct, frozen=True):
    """One task: its encoded ``tape.Cut``, where its changelog stood, its schema row's value, its files."""

    partition: int
    cut: bytes
    changelog_position: int | None = None
    schema: bytes = b""
    files: tuple[FileInfo, ...] = ()
    provenance: Provenance = NOTHING
    """The last records that the task has read, and where it has left inputs."""
    waiting: dict[str, int] | None = None
    """By internal topic of the app that it reads, the number of records on their way to the task. If it is
    None, these are all from the position in the cut to the end in the manifest, without a gap.
    """


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to know about a snapshot. ``created_ms`` is milliseconds since 1970, UTC."""

    format: int = FORMAT
    id: str
    app: str
    version: str
    """Of the app's code."""
    partitions: int
    created_ms: int
    kind: Kind = "full"
    parent: str | None = None
    """The id of the snapshot that an incremental one builds on."""
    name: str | None = None
    """Of a savepoint."""
    automatic: bool = False
    source: Source = "live"
    environment: dict[str, str] = {}
    ends: dict[str, list[int]] = {}
    """End offsets at the cut, by topic and partition: inputs, inbox, outputs, changelog, tape."""
    keys: tuple[str, ...] = ()
    """If it holds some keys only: these. No service starts from it."""
    as_of_ms: int | None = None
    """If it leaves out events from after this event time: no service starts from it."""
    tasks: tuple[TaskEntry, ...] = ()
    notes: tuple[str, ...] = ()
    checksum: str = ""
    """Set by publishing."""

    def task(self, partition: int) -> TaskEntry:
        """The task of a partition. Raises KeyError."""
        for task in self.tasks:
            if task.partition == partition:
                return task
        raise KeyError(partition)


class _AnyManifest(msgspec.Struct):
    """What the manifests of all formats share."""

    format: int


_encoder = msgspec.json.Encoder(order="deterministic")
_any_manifest, _manifest = msgspec.json.Decoder(_AnyManifest), msgspec.json.Decoder(Manifest)


def sealed(manifest: Manifest) -> Manifest:
    """The same manifest with its checksum."""
    plain = msgspec.structs.replace(manifest, checksum="")
    checksum = hashlib.sha256(_encoder.encode(plain)).hexdigest()
    return msgspec.structs.replace(manifest, checksum=checksum)


def encode(manifest: Manifest) -> bytes:
    """A sealed manifest as it stands in its file."""
    return msgspec.json.format(_encoder.encode(manifest)) + b"\n"


def decode(data: bytes, snapshot: str, path: str) -> Manifest:
    """Read a manifest. Raises FormatError, or AlteredSnapshotError if a byte has changed."""
    hint = "Remove this folder. The others cannot be listed before, since it may be the latest snapshot."
    try:
        number = _any_manifest.decode(data).format
        check_format(f"snapshot {snapshot!r}", number, FORMAT, path=path)
        manifest = _manifest.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AlteredSnapshotError(
            f"the manifest cannot be read: {error}", snapshot=snapshot, path=path, hint=hint
        ) from error
    if encode(sealed(manifest)) != data:
        raise AlteredSnapshotError(
            "the manifest does not match its checksum", snapshot=snapshot, path=path, hint=hint
        )
    return manifest
