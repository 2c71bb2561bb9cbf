"""The job that a rebuild settles before it begins, and its units of work.

Theory. A unit is a value: any process that can read the log and reach the work folder can run it, at any
time, more than once, at the same time as another process. These values make that safe:

    request    the options of the user, see ``request``. With the app's name it gives the rebuild its *id*:
               the same request resumes an interrupted rebuild, unless the code or its environment has changed
    job        settled once, by the first driver: where each task ends, the snapshot's folder. It is kept in
               the work folder, so that a later driver ends where the first would have ended
    unit       one part: a kind, a partition, a stage, a range of keys. It reads the log and the results of earlier units
    result     what a unit has made, see ``results``

All of them are msgspec structs: ``encode`` and ``decode_unit`` transfer them to another machine.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tailrace.core.records import RecordMark
from tailrace.history.rebuilding.request import Request

SettledOrder: TypeAlias = Literal["tape", "stages"]
UnitKind: TypeAlias = Literal["task", "stage"]


class Target(msgspec.Struct, frozen=True):
    """Where the task of a partition ends. Without a cut it has never committed."""

    partition: int
    cut: bytes | None
    changelog_position: int | None
    """The offset after that cut in the changelog."""


class StandOf(msgspec.Struct, frozen=True):
    """A cut of the service: the watermarks of its operators, by name, and its clock."""

    marks: dict[str, int]
    clock_ms: int | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The order of a rebuild, where its tasks end, and the ends of all topics, as of one commit of the log.

    in stages tasks end at the ends of their inputs. Their targets only describe the service's own
    last commits.
    """

    order: SettledOrder
    targets: tuple[Target, ...]
    ends: dict[str, list[int]] = {}
    topics: bytes = b""
    """The ids of the topics that are read (``provenance.topics``)."""
    base: str | None = None
    """Id of the snapshot that the rebuild continues from."""
    notes: tuple[str, ...] = ()
    marks: dict[str, list[RecordMark | None]] = {}
    """By topic and partition, the last record before its end."""
    starts: dict[str, list[int]] = {}
    """In stages: by input and partition, the first offset that the log has."""
    clock_ms: int | None = None
    """In stages: when the rebuild began. Event times are compared with it."""
    stages: int = 0
    """In stages: the number of stages (``core.engine.stages``)."""
    stands: tuple[StandOf, ...] = ()
    """In stages, by partition: the cut at which the task ends. Empty: each ends where its inputs do."""
    end_clock_ms: int = 0
    """In stages: the highest timestamp with which an input ends."""
    first_ms: dict[str, list[int]] = {}
    """In stages: by input with reference data and partition, the timestamp up to which its records come before all others."""
    finish: bool = False
    """In stages: the inputs end with the end of history, as in the service's last run."""


class Job(Settled, frozen=True, kw_only=True):
    """A rebuild that has begun. It is the same for every driver that resumes it."""

    id: str
    code: dict[str, str]
    """The parts of the code and environment at the beginning; see ``code_digest``."""
    request: Request
    app: str
    version: str
    partitions: int
    work: str
    """The work folder, as an absolute path."""
    snapshot: str
    """Id of the snapshot that the rebuild makes."""
    folder: str
    """URI of its folder."""
    created_ms: int

    def stand_of(self, partition: int) -> StandOf | None:
        """The cut at which the task of a partition ends; None: where its inputs do."""
        return self.stands[partition] if self.stands else None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job. ``name`` identifies it within the job."""

    job: Job
    kind: UnitKind
    partition: int
    stage: int = 0
    range: int | None = None
    """The range of keys (``ranges``); None: all keys, or what the ranges have made is joined."""

    @property
    def name(self) -> str:
        """Identifies the part; it is a valid file name."""
        suffix = f"-{self.stage}" if self.kind == "stage" else ""
        suffix += "" if self.range is None else f"-{self.range}"
        return f"{self.kind}-{self.partition}{suffix}"

    def encode(self) -> bytes:
        """The unit as bytes, for another process."""
        return msgspec.msgpack.encode(self)


decode_unit = msgspec.msgpack.Decoder(Unit).decode
"""The unit in the bytes of ``Unit.encode``."""
