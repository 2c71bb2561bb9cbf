"""A part of the rebuild of one partition that is split by key: what its units have in common."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from tailrace.core.engine import tape
from tailrace.core.engine.delivery import own_inputs
from tailrace.core.engine.key_split.chunks import Overview
from tailrace.core.engine.key_split.shard import Ordered
from tailrace.core.errors import BadRecordError, ReplayDivergedError, UnsplittableError
from tailrace.core.records import Output
from tailrace.history.reading.beginnings import Beginning
from tailrace.history.rebuilding.blocks import BlockWriter
from tailrace.history.rebuilding.failed_before import FailedAgain
from tailrace.history.rebuilding.job import Unit, UnitKind
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.recorded_sends import Sends, compares_sends
from tailrace.history.rebuilding.request import task_settings
from tailrace.history.rebuilding.results import UnitResult
from tailrace.history.rebuilding.work_folder import WorkFolder

AT_ONCE = 10_000
OTHER_CODE: Final = "some of it was run by version {!r}"
NOT_IN_PARTS = (UnsplittableError, ReplayDivergedError, BadRecordError)
"""After these errors the partition is replayed in one piece, which can name the event that differs or fails.
"""


class Dealing(msgspec.Struct, frozen=True):
    """Results of a first pass: for each shard a file of records, their number, and how the task is driven."""

    files: list[str]
    """Empty if the operators are ordered."""
    records: list[int]
    overview: Overview
    whole: bool
    marks: bytes = b""


class ShardFiles(msgspec.Struct, frozen=True):
    """What a shard has made: a file of rows, one of outputs, and counts."""

    rows: str
    outputs: str
    schema: bytes
    counted: tape.Totals


class Part:
    """The common base of the three kinds of units."""

    def __init__(self, unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> None:
        self.unit, self.job, self.past, self.work = unit, unit.job, past, work
        self.plan, self.number, self.attempt = past.plan, unit.partition, attempt
        self.target = unit.job.targets[unit.partition].cut
        self.result = UnitResult(unit=unit.name, attempt=attempt)
        self.settings = task_settings()
        self.again = FailedAgain(past.plan, unit.job.letters_of(unit.partition))

    def path(self, what: str, shard: int) -> Path:
        """The path of a file of this attempt."""
        return self.work.blocks / f"{self.number}-{shard}-{what}-{self.attempt}"

    def look(self, outputs: Iterator[Output], sends: Sends | None) -> Iterator[Output]:
        """Iterates over the outputs, and looks at each."""
        while batch := list(islice(outputs, AT_ONCE)):
            self.again.look(batch)
            if sends is not None:
                sends.take(batch)
            yield from batch

    def beginning(self) -> Beginning:
        """The beginning of the task."""
        return self.past.beginning(self.job, self.number)

    def done(self, kind: UnitKind, shard: int = 0) -> UnitResult:
        """The result of an earlier unit of the same partition."""
        name = Unit(job=self.job, kind=kind, partition=self.number, shard=shard).name
        found = self.work.result(name)
        if found is None:
            raise ReplayDivergedError(f"the unit {name} has not been run", hint="Run the rebuild again.")
        return found


def _looked_at(part: Part) -> frozenset[str]:
    """The topics whose outputs must be looked at: those compared with the recorded ones, and dead letters."""
    topics = frozenset(own_inputs(part.plan) if compares_sends(part.job, part.plan) else ())
    return topics | {part.plan.dead_letters_topic} if part.job.letters else topics


class Emitted:
    """Writes a shard's outputs to a file: all, or only those that must be looked at."""

    def __init__(self, part: Part, outputs: BlockWriter) -> None:
        self._outputs = outputs
        self._wanted = None if part.job.request.to.outputs != "none" else _looked_at(part)

    @property
    def any(self) -> bool:
        """Whether any output may be written."""
        return self._wanted is None or bool(self._wanted)

    def write(self, emitted: list[Ordered]) -> None:
        """Write outputs."""
        if self._wanted is not None:
            emitted = [one for one in emitted if one.output[0] in self._wanted]
        if emitted:
            self._outputs.write(emitted)
