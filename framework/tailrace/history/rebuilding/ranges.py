"""Ranges of keys: the work of one stage of one partition, divided among several units and joined again (``--split``).

Theory. A *range* is a unit that runs the stage for the keys of ``core.engine.key_ranges``, and makes files for one other unit,
that of the whole: its rows, and what it emits with the turn of each. That unit joins them::

    rows        merged: no two ranges have a row of one name
    emitted     merged by turn, then numbered; so all bytes are those of a stage that was not divided
    counts      of handlers: the sum; of records: those of any range
    the cut     the same in all ranges but for these counts; a difference is an error
    in flight   the same in all ranges, as each takes every record: those of the first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import replace

from tailrace.core import rows
from tailrace.core.engine import tape
from tailrace.core.engine.key_ranges import KeyRange
from tailrace.core.errors import ReplayDivergedError
from tailrace.core.handling.promises import Behind
from tailrace.core.records import InputRecord, Output, RawOutput, output_of
from tailrace.core.unit_ids import SentNumbers
from tailrace.history.rebuilding.blocks import BlockReader, BlockWriter
from tailrace.history.rebuilding.job import Unit
from tailrace.history.rebuilding.output_files import Frame
from tailrace.history.rebuilding.past import HistorySource
from tailrace.history.rebuilding.sends import SendsWriter
from tailrace.history.rebuilding.stage_history import inner_inputs
from tailrace.history.rebuilding.work_folder import WorkFolder

T = TypeVar("T")
_IN_A_FRAME = 1_000
_HANDLED = ("fired", "outputs", "failed", "dropped")
"""The counts of handlers."""


@dataclass(frozen=True, slots=True)
class StageMade:
    """What a stage of a partition has made, before it is written: see ``stage_history.Made``."""

    cut: bytes
    schema: bytes
    rows: Iterable[tuple[bytes, bytes]]
    in_flight: Sequence[InputRecord]
    outputs: Iterator[Frame] | None
    """None: they are not wanted."""
    sends: SendsWriter
    published: dict[str, int | None]
    stood: dict[str, int | None]
    again: int
    behind: Mapping[Behind, int]


class _RangeMade(msgspec.Struct):
    """What a range has made; the names of its files are those of the unit and its attempt."""

    files: str
    before: tape.Totals
    sent_before: dict[str, int]
    cut: bytes
    schema: bytes
    published: dict[str, int | None]
    stood: dict[str, int | None]
    again: int
    behind: list[tuple[Behind, int]]

    def common(self) -> bytes:
        """What is the same in all ranges of a stage of a partition."""
        cut = tape.decode_cut(self.cut)
        totals = replace(cut.totals, **dict.fromkeys(_HANDLED, 0))
        cut = replace(cut, totals=totals, sent={}, tape=0, identity=b"")
        return tape.encode((cut, self.schema, self.published, self.stood, self.again, self.sent_before))


class RangeFiles:
    """The files of one range. ``before``: the counts of its task at the beginning; ``sent``: the numbers of its sends then.
    ``is_wanted``: what it emits is read again.
    """

    def __init__(
        self,
        unit: Unit,
        work: WorkFolder,
        attempt: str,
        range: KeyRange,
        before: tape.Totals,
        sent: dict[str, int],
        *,
        is_wanted: bool,
    ) -> None:
        self._work, self._files, self._range = work, f"{unit.name}-{attempt}", range
        self._before, self._sent = replace(before), sent
        self._emitted = BlockWriter(work.blocks / f"{self._files}-emitted")
        self._is_wanted = is_wanted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._emitted.__exit__(kind, *raised)

    def take(self, outputs: Sequence[Output]) -> None:
        """Write what the task has emitted."""
        turns = self._range.turns(len(outputs))
        if outputs and self._is_wanted:
            self._emitted.write(list(zip(turns, outputs, strict=True)))

    def finish(self, made: StageMade) -> bytes:
        """Write the rest, and return what the unit of the whole needs."""
        first = not self._range.number
        state = made.rows if first else (one for one in made.rows if one[0][:1] == rows.STATE)
        for name, some in (("rows", state), ("in-flight", made.in_flight if first else ())):
            with BlockWriter(self._work.blocks / f"{self._files}-{name}") as file:
                for held in _frames(some):
                    file.write(held)
        return msgspec.msgpack.encode(
            _RangeMade(
                self._files,
                self._before,
                self._sent,
                made.cut,
                made.schema,
                made.published,
                made.stood,
                made.again,
                [*made.behind.items()],
            )
        )


def joined_ranges(unit: Unit, past: HistorySource, work: WorkFolder, attempt: str) -> StageMade:
    """What the ranges of a stage of a partition have made, as one. Raises ReplayDivergedError: they do not fit each other."""
    names = [replace(unit, range=one).name for one in range(unit.job.request.execution.split)]
    made = [_decode(done.made) for name in names if (done := work.result(name)) is not None]
    if len(made) != len(names) or len({one.common() for one in made}) != 1:
        raise ReplayDivergedError(
            f"the ranges of keys of {unit.name} have not come to one cut", hint="Run it again with --restart."
        )
    first, plan = made[0], past.plan
    cut, *others = (tape.decode_cut(one.cut) for one in made)
    numbers = SentNumbers(unit.partition, first.sent_before)
    for name in _HANDLED:
        more = sum(getattr(one.totals, name) - getattr(first.before, name) for one in others)
        setattr(cut.totals, name, getattr(cut.totals, name) + more)

    def read(name: str, one: _RangeMade, type: Any) -> Iterator[Any]:
        return chain.from_iterable(BlockReader[Any](work.blocks / f"{one.files}-{name}", list[type]))

    sends = SendsWriter(work, f"{unit.name}-{attempt}", inner_inputs(plan), plan.partitions, plan.app)
    emitted = merge(
        *(read("emitted", one, tuple[tuple[Any, ...], RawOutput]) for one in made), key=itemgetter(0)
    )
    at, origin = first.before.outputs, f"{plan.app}/{unit.partition}/".encode()
    with BlockWriter(work.blocks / f"{unit.name}-{attempt}-outputs") as file:
        for some in _frames(emitted):
            outputs = [
                output_of((*fields, numbers.again(headers, b"%b%d" % (origin, number))))
                for number, (_, (*fields, headers)) in enumerate(some, at)
            ]
            sends.take(outputs)
            sends.flush(lambda _: None)
            if unit.job.request.to.outputs != "none":
                file.write(Frame(at, outputs))
            at += len(outputs)
    cut.sent = numbers.noted()
    return StageMade(
        tape.encode(cut),
        first.schema,
        merge(*(read("rows", one, tuple[bytes, bytes]) for one in made), key=itemgetter(0)),
        [*read("in-flight", first, InputRecord)],
        None if unit.job.request.to.outputs == "none" else iter(BlockReader[Frame](file.path, Frame)),
        sends,
        first.published,
        first.stood,
        first.again,
        sum((Counter(dict(one.behind)) for one in made), Counter[Behind]()),
    )


def _frames(some: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(some)
    return iter(lambda: [*islice(rest, _IN_A_FRAME)], [])


_decode = msgspec.msgpack.Decoder(_RangeMade).decode
