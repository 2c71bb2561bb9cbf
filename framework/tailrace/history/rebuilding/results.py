"""The results of units: what each has made, and what it has to report.

Theory. A unit is run by attempts. The files of an attempt have the attempt in their names, so two attempts at
one unit never touch each other's files, and the first attempt to finish counts. A result is made of records,
each of which is filled in one place::

    UnitResult         the unit, its notes, and the reason if it failed
      Work             the effort of this attempt
      NewFailures      failures in stages
      TaskResult       for each task that the unit has brought to its end: its cut and its counts
        StateFiles     its rows in the snapshot
        RowComparison  the comparison of these rows with the service's
        OutputFile     its outputs, if they are written; one of each stage
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tailrace.core import errors
from tailrace.core.engine import tape
from tailrace.core.engine.replay import Source
from tailrace.core.errors import TailraceError
from tailrace.core.records import InputRecord
from tailrace.state.snapshots import FileInfo


class OutputFile(msgspec.Struct, frozen=True):
    """A file with outputs of one partition, in their order, in the folder of the outputs. Made by ``output_files.write_outputs``."""

    name: str
    partition: int
    first: int
    """Running number of the first output."""
    rows: int
    bytes: int


class StateFiles(msgspec.Struct, frozen=True):
    """The rows of a task in the snapshot. Made by ``task_folder.write_rows``."""

    files: tuple[FileInfo, ...] = ()
    schema: bytes = b""
    keys: int = 0
    rows: int = 0
    named_keys: tuple[bytes, ...] = ()
    """If only some keys are rebuilt: the keys that have a row, as actors encode them."""
    waiting: dict[str, int] | None = None
    """See ``TaskEntry.waiting``; None: unset."""


class RowComparison(msgspec.Struct, frozen=True):
    """The comparison of a task's rows with the changelog. Made by ``recorded_rows.compare_rows``."""

    same: int = 0
    note: str = ""
    """Why none were compared."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """A task at the end of the rebuild. Without a cut it has never committed, and has no rows."""

    partition: int
    cut: bytes | None = None
    changelog_position: int | None = None
    """The position of its rows in the service's changelog; None: they are not known to be the service's rows.
    """
    totals: tape.Totals = msgspec.field(default_factory=tape.Totals)
    """The counts of the task since the beginning of its history."""
    state: StateFiles = StateFiles()
    rows: RowComparison = RowComparison()
    outputs: tuple[OutputFile, ...] = ()
    """In the order of the numbers of their outputs."""


class Phases(msgspec.Struct):
    """Seconds of CPU-bound work, summed over units."""

    read: float = 0.0
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


class Work(msgspec.Struct):
    """The effort of one attempt, without what an earlier attempt has left to it."""

    replayed: int = 0
    """Records replayed."""
    commits: int = 0
    phases: Phases = msgspec.field(default_factory=Phases)


class NewFailures(msgspec.Struct, frozen=True):
    """Records and timers that failed in stages, and went to the dead letters as the rebuild says."""

    count: int = 0
    shown: tuple[str, ...] = ()
    """The first of them."""


class Failure(msgspec.Struct, frozen=True):
    """A ``TailraceError`` of a unit, which the driver raises again."""

    kind: str
    what: str
    hint: str
    places: dict[str, Any]

    @classmethod
    def of(cls, error: TailraceError) -> Failure:
        """The parts of an error. Places that are neither numbers nor text are converted to text."""
        places = {name: getattr(error, name, None) for name in (*error.places, "why")}
        values = {name: _plain(value) for name, value in places.items() if value is not None}
        return cls(type(error).__name__, error.what, error.hint, values)

    def error(self) -> TailraceError:
        """The original error."""
        kind: type[Any] = getattr(errors, self.kind, TailraceError)
        error: TailraceError = kind(self.what, hint=self.hint, **self.places)
        return error


class UnitResult(msgspec.Struct, kw_only=True):
    """The result of a unit, or the reason why it failed."""

    unit: str
    attempt: str
    tasks: tuple[TaskResult, ...] = ()
    """The tasks that it has brought to their end. Units that only prepare the work of others have none."""
    work: Work = msgspec.field(default_factory=Work)
    new_failures: NewFailures = NewFailures()
    notes: list[str] = []
    made: bytes = b""
    """Data for later stages, in an encoding of their own."""
    failure: Failure | None = None


def encode_result(result: UnitResult) -> bytes:
    """The result as bytes, for another process or the work folder."""
    return msgspec.msgpack.encode(result)


decode_result = msgspec.msgpack.Decoder(UnitResult).decode
"""The result in the bytes of ``encode_result``."""


def _plain(value: Any) -> Any:
    return value if type(value) in {int, str} else str(value)
