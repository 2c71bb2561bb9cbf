"""The job that a rebuild settles before it begins, and its units of work.

Theory. A unit is a value: any process that can read the log and reach the work folder can run it, at any time, more than
once, at the same time as another process. These values make that safe:

    request    the options of the user, see ``request``. With the app's name it gives the rebuild its *id*: the same
               request resumes an interrupted rebuild, unless the code or its environment has changed since
    job        settled once, by the first driver: where each task ends, the snapshot's folder. It is kept in the work
               folder, so that a later driver ends where the first would have ended, even if the log has grown since
    unit       one part: a kind, a partition, a shard. It reads the log and the results of earlier units
    result     the outcome of a unit: counts, and files that carry the attempt in their names. Two attempts at one unit
               never touch each other's files; the first to finish is the one that counts

All of them are msgspec structs: ``encode`` and ``decode_unit`` transfer them to another machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tailrace.core import errors
from tailrace.core.engine import tape
from tailrace.core.engine.canonical import Canonical
from tailrace.core.engine.replay import Source
from tailrace.core.errors import TailraceError
from tailrace.core.records import InputRecord
from tailrace.history.rebuilding.request import Request
from tailrace.state.snapshots import FileInfo

UnitKind: TypeAlias = Literal["task", "first", "shard", "merge", "canonical"]


class Target(msgspec.Struct, frozen=True):
    """Where the task of a partition ends. No cut: the task never committed, so there is nothing to rebuild."""

    partition: int
    cut: bytes | None
    changelog_position: int | None
    """The offset after that cut in the changelog."""


class Letters(msgspec.Struct, frozen=True):
    """In canonical order, the app's dead letters of one partition: inputs and offsets. See ``failed_before``."""

    redriven: tuple[tuple[str, int], ...] = ()
    """Records that failed and were redriven: they are skipped."""
    failed: tuple[tuple[str, int], ...] = ()
    """Records that failed and were not redriven: they are handled."""
    sent: tuple[tuple[str, int, bytes], ...] = ()
    """Records that the app has sent to itself, that failed, and were not redriven, with digests of their contents."""
    redriven_sent: tuple[bytes, ...] = ()
    """Of those that were redriven: digests of their contents."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
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
    order: Literal["tape", "canonical"]
    together: bool = False
    """In canonical order: all partitions run as one, and the app's own inputs are delivered; see ``core.engine.delivery``."""
    split: int = 1
    """Number of shards of each partition."""
    finish: bool = False
    """In canonical order: the inputs end with the end of history, as in the service's last run."""
    lenient: bool
    """Whether totals may differ from those of the tape: because of other code, dead letters, or missing history."""
    targets: tuple[Target, ...]
    base: str | None = None
    """Id of the snapshot that the rebuild continues from."""
    ends: dict[str, list[int]] = {}
    position: int | None = None
    """The commit of the log that targets and ends belong to."""
    topics: bytes = b""
    """What the log notes of the topics that it reads."""
    notes: tuple[str, ...] = ()
    letters: tuple[Letters, ...] = ()
    """By partition; empty if no unit needs them."""

    def letters_of(self, partition: int) -> Letters:
        """The dead letters of a partition."""
        return self.letters[partition] if self.letters else Letters()


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job. ``name`` identifies it within the job."""

    job: Job
    kind: UnitKind
    partition: int
    shard: int = 0

    @property
    def name(self) -> str:
        """Identifies the part; it is a valid file name."""
        shard = f"-{self.shard}" if self.kind == "shard" else ""
        return f"{self.kind}-{self.partition}{shard}"

    def encode(self) -> bytes:
        """The unit as bytes, for another process."""
        return msgspec.msgpack.encode(self)


class OutputFile(msgspec.Struct, frozen=True):
    """A file with outputs of one partition, in their order, in the folder of the outputs."""

    name: str
    partition: int
    first: int
    """Running number of the first output."""
    rows: int
    bytes: int


class Phases(msgspec.Struct):
    """Seconds of CPU-bound work, summed over units."""

    read: float = 0.0
    shuffle: float = 0.0
    handle: float = 0.0
    write: float = 0.0

    def reading(self, source: Source) -> Source:
        """The source, with its time counted as reading."""

        def timed(name: str, start: int, stop: int) -> Sequence[InputRecord]:
            begun_s = time.perf_counter()
            found = source(name, start, stop)
            self.read += time.perf_counter() - begun_s
            return found

        return timed

    def add(self, more: Phases) -> None:
        """Add the seconds of another unit."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


class Failure(msgspec.Struct, frozen=True):
    """A ``TailraceError`` of a unit, which the driver raises again."""

    kind: str
    what: str
    hint: str
    places: dict[str, Any]

    @classmethod
    def of(cls, error: TailraceError) -> Failure:
        """The parts of an error. Places that are neither numbers nor text are converted to text."""
        places = {name: getattr(error, name) for name in error.places}
        said = {name: _plain(value) for name, value in places.items() if value is not None}
        return cls(type(error).__name__, error.what, error.hint, said)

    def error(self) -> TailraceError:
        """The original error."""
        kind: type[Any] = getattr(errors, self.kind, TailraceError)
        error: TailraceError = kind(self.what, hint=self.hint, **self.places)
        return error


class UnitResult(msgspec.Struct, kw_only=True):
    """The result of a unit, or the reason why it failed."""

    unit: str
    attempt: str
    partition: int
    taken: int = 0
    """Records that this attempt replayed itself, without those before the point where it resumed."""
    totals: tape.Totals = msgspec.field(default_factory=tape.Totals)
    """The counts of the task since the beginning of its history."""
    commits: int = 0
    keys: int = 0
    found: list[bytes] = []
    """If only some keys are rebuilt: the keys that have a row, as actors encode them."""
    rows: int = 0
    cut: bytes | None = None
    changelog_position: int | None = None
    """The position of these rows in the service's changelog; None: they are not known to be the service's rows."""
    same_rows: int = 0
    """Rows that were compared with the changelog and are equal."""
    other_rows: int = 0
    """Rows that were compared with the changelog and differ."""
    schema: bytes = b""
    files: tuple[FileInfo, ...] = ()
    outputs: tuple[OutputFile, ...] = ()
    marks: bytes = b""
    """Marks of the commits that the outputs belong to; see ``output_watermarks``."""
    made: dict[str, Any] = {}
    """Values for later units."""
    phases: Phases = msgspec.field(default_factory=Phases)
    notes: tuple[str, ...] = ()
    failed_here: int = 0
    """Records and timers that failed in the rebuild, but not in the service."""
    dead_letters: tuple[str, ...] = ()
    """The first of these."""
    idle: tuple[tuple[str, int], ...] = ()
    """In canonical order, the inputs, with their partitions, that became idle by the clock."""
    late_after_idle: int = 0
    """Late events since the first of them became idle."""
    gaps: dict[str, int] = {}
    """In canonical order, by compacted input: offsets that were read and hold no record."""
    handled: dict[str, list[int]] = {}
    """See ``TaskEntry.handled``."""
    waiting: dict[str, int] | None = None
    """See ``TaskEntry.waiting``; None: unset."""
    others: tuple[UnitResult, ...] = ()
    """The results of the other partitions, if one unit ran all partitions."""
    failure: Failure | None = None

    def note_idle(self, order: Canonical) -> None:
        """Keep which inputs became idle by the clock, if events were late after that."""
        self.late_after_idle = order.late_after_idle
        self.idle = tuple(order.became_idle) if self.late_after_idle else ()


def decode_unit(data: bytes) -> Unit:
    """The unit in the bytes of ``Unit.encode``."""
    return msgspec.msgpack.decode(data, type=Unit)


def encode_result(result: UnitResult) -> bytes:
    """The result as bytes, for another process or the work folder."""
    return msgspec.msgpack.encode(result)


def decode_result(data: bytes) -> UnitResult:
    """The result in the bytes of ``encode_result``."""
    return msgspec.msgpack.decode(data, type=UnitResult)


def _plain(value: Any) -> Any:
    return value if type(value) in {int, str} else str(value)
