"""What a rebuild settles before it begins, and the units of work it is cut into.

Theory. A unit is a value: any process that can read the log and reach the work folder can run it, at any time, more than
once, at the same time as another. What makes that safe:

    request    what was asked for, see ``request``. With the app's name it gives the rebuild its *id*: the same request
               resumes an interrupted rebuild, unless the code or its environment has changed since
    job        what the first driver settled, once: where each task ends, the snapshot's folder. Kept in the work folder,
               so that who goes on ends where the first would have ended, however far the log has come since
    unit       one part: a kind, a partition, a shard. It reads the log and the results of earlier units
    result     what it made: counts, and names of files that carry the attempt in their names. Two attempts at one unit
               never touch each other's files; the first to say that it is done is the one that counts

All of them are msgspec structs: ``encode`` and ``decode_unit`` take them to another machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tailrace.core import errors
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Source
from tailrace.core.errors import TailraceError
from tailrace.core.records import InputRecord
from tailrace.history.rebuilding.request import Request
from tailrace.state.snapshots import FileInfo

UnitKind: TypeAlias = Literal["task", "first", "shard", "merge", "canonical", "trace"]


class Target(msgspec.Struct, frozen=True):
    """Where the task of a partition ends. No cut: it never committed, and has nothing to be rebuilt."""

    partition: int
    cut: bytes | None
    changelog_position: int | None
    """Behind that cut in the changelog."""


class Letters(msgspec.Struct, frozen=True):
    """What the app's dead letters tell of one partition. A record is named by its input and offset; see ``retrying``."""

    originals: dict[str, tuple[tuple[str, int], ...]] = {}
    """By the id of its letter: what failed, and was redriven into this partition, before where the rebuild ends. Behind it, if
    it had itself been redriven for another app, the original of that, which a rebuild from the beginning handles instead."""
    left: tuple[tuple[str, int], ...] = ()
    """What failed and was redriven elsewhere: into another partition, or to where the rebuild does not come."""
    failed: tuple[tuple[str, int], ...] = ()
    """What no tape tells: records that were refused. In canonical order, all that failed."""
    timers: tuple[tuple[str, str, str], ...] = ()
    """In canonical order, the timers that failed: actor, key, name with time."""
    contents: tuple[tuple[str, int, bytes], ...] = ()
    """In canonical order, of inputs that the app writes itself: what failed, and its content; see ``own_letters``."""


class Retries(msgspec.Struct):
    """What became of what had failed when it ran first."""

    run: int = 0
    """Records and timers that were run again, in their place."""
    again: int = 0
    """Those of them that failed again."""
    passed_over: int = 0
    """Redriven records that were not handled, as their originals had been."""
    left: int = 0
    """Records that were not run again, as they were redriven to where this rebuild does not come."""
    undelivered: int = 0
    """Messages, and events for the app itself, that were sent by what was run again and are not in the log."""
    shown: list[str] = []
    """The first that failed again."""

    def add(self, more: Retries) -> None:
        """Add those of another task."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A rebuild that has been begun. The same for every driver that goes on with it."""

    id: str
    code: str
    """A digest of the code and environment that it was begun with."""
    parts: dict[str, str] = {}
    """The same part by part; see ``code``."""
    request: Request
    app: str
    version: str
    partitions: int
    work: str
    """The work folder, as an absolute path."""
    snapshot: str
    """Id of the snapshot that is being made."""
    folder: str
    """URI of its folder."""
    created_ms: int
    order: Literal["tape", "canonical"]
    together: bool = False
    """In canonical order: all partitions run as one, and the app's own inputs are delivered; see ``core.engine.delivery``."""
    split: int = 1
    """Shards of each partition."""
    finish: bool = False
    """In canonical order: the end of history ends the inputs, as the service's last run did."""
    lenient: bool
    """Whether totals may differ from those of the tape: other code, dead letters wanted, history missing."""
    targets: tuple[Target, ...]
    base: str | None = None
    """Id of the snapshot it goes on from."""
    ends: dict[str, list[int]] = {}
    position: int | None = None
    """The commit of the log that targets and ends belong to."""
    notes: tuple[str, ...] = ()
    letters: tuple[Letters, ...] = ()
    """By partition; none where no unit has to know of any."""

    def letters_of(self, partition: int) -> Letters:
        """What the dead letters tell of a partition."""
        return self.letters[partition] if self.letters else Letters()


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job. ``name`` says which, within the job."""

    job: Job
    kind: UnitKind
    partition: int
    shard: int = 0
    keys: tuple[bytes, ...] = ()
    """Of a trace."""

    @property
    def name(self) -> str:
        """Which part: fit for a file's name."""
        shard = f"-{self.shard}" if self.kind == "shard" else ""
        return f"{self.kind}-{self.partition}{shard}"

    def encode(self) -> bytes:
        """For another process."""
        return msgspec.msgpack.encode(self)


class OutputFile(msgspec.Struct, frozen=True):
    """Outputs of one partition, in their order, in a file of the outputs' place."""

    name: str
    partition: int
    first: int
    """Running number of the first."""
    rows: int
    bytes: int


class Phases(msgspec.Struct):
    """Seconds of processor-bound work, summed over units."""

    read: float = 0.0
    shuffle: float = 0.0
    handle: float = 0.0
    write: float = 0.0

    def reading(self, source: Source) -> Source:
        """A source of records, whose time counts as reading."""

        def timed(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            begun_s = time.perf_counter()
            found = source(name, start, stop)
            self.read += time.perf_counter() - begun_s
            return found

        return timed

    def add(self, more: Phases) -> None:
        """Add those of another unit."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


class Failure(msgspec.Struct, frozen=True):
    """A ``TailraceError`` of a unit, to be raised again by the driver."""

    kind: str
    what: str
    hint: str
    places: dict[str, Any]

    @classmethod
    def of(cls, error: TailraceError) -> Failure:
        """What is to be known of an error; places are given as text where they are neither number nor text."""
        places = {name: getattr(error, name) for name in error.places}
        said = {name: _plain(value) for name, value in places.items() if value is not None}
        return cls(type(error).__name__, error.what, error.hint, said)

    def error(self) -> TailraceError:
        """The error again."""
        kind: type[Any] = getattr(errors, self.kind, TailraceError)
        error: TailraceError = kind(self.what, hint=self.hint, **self.places)
        return error


class UnitResult(msgspec.Struct, kw_only=True):
    """What a unit has made, or why it could not."""

    unit: str
    attempt: str
    partition: int
    taken: int = 0
    """Records that this attempt went through itself: those before where it went on are not counted."""
    totals: tape.Totals = msgspec.field(default_factory=tape.Totals)
    """Of the task, since its history began."""
    commits: int = 0
    keys: int = 0
    found: list[bytes] = []
    """Where only some keys are rebuilt: those that have a row, as actors encode them."""
    rows: int = 0
    cut: bytes | None = None
    changelog_position: int | None = None
    """Where these rows stand in the service's changelog; None: they are not the service's, as far as is known."""
    same_rows: int = 0
    """Rows that were held against the changelog and are the same there."""
    other_rows: int = 0
    """Those that are not."""
    schema: bytes = b""
    files: tuple[FileInfo, ...] = ()
    outputs: tuple[OutputFile, ...] = ()
    marks: bytes = b""
    """Of the commits that the outputs were of; see ``marks``."""
    made: dict[str, Any] = {}
    """What later units want to know."""
    phases: Phases = msgspec.field(default_factory=Phases)
    notes: tuple[str, ...] = ()
    failed_here: int = 0
    """Records and timers that failed here, and had not failed when they ran first."""
    dead_letters: tuple[str, ...] = ()
    """The first of them."""
    retries: Retries = msgspec.field(default_factory=Retries)
    handled: dict[str, list[int]] = {}
    """See ``TaskEntry.handled``."""
    others: tuple[UnitResult, ...] = ()
    """Those of the other partitions, where one unit did them all."""
    failure: Failure | None = None


def decode_unit(data: bytes) -> Unit:
    """What ``Unit.encode`` wrote."""
    return msgspec.msgpack.decode(data, type=Unit)


def encode_result(result: UnitResult) -> bytes:
    """For another process, or the work folder."""
    return msgspec.msgpack.encode(result)


def decode_result(data: bytes) -> UnitResult:
    """What ``encode_result`` wrote."""
    return msgspec.msgpack.decode(data, type=UnitResult)


def _plain(value: Any) -> Any:
    return value if type(value) in {int, str} else str(value)
