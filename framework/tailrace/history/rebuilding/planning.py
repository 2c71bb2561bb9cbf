"""The plan of a rebuild: its order, and its units of work with their records and bytes. Nothing is run, and nothing is made.

The counts are those of the offsets. The bytes are estimated by the first records of each input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tailrace.core.counting import counted
from tailrace.core.engine import tape
from tailrace.core.engine.stages import own_inputs
from tailrace.history.rebuilding.job import Settled
from tailrace.history.rebuilding.past import HistorySource, opened_past
from tailrace.history.rebuilding.request import Request, checked
from tailrace.history.rebuilding.targets import settle
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Snapshots

_SAMPLED = 100
"""Offsets of each input that are read for an estimate."""
_MEGABYTE = 1_000_000


class PlannedUnit(msgspec.Struct, frozen=True):
    """The work of a partition. ``records``, ``bytes``: about so many."""

    partition: int
    records: int
    bytes: int


class RebuildPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild would do."""

    app: str
    version: str
    order: str
    base: str | None
    units: tuple[PlannedUnit, ...]
    stages: int
    """The number of stages; 0: along the tape."""
    split: int
    """Into how many ranges of keys the work of each partition is divided."""
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The plan for people."""
        order = "along the tape" if self.order == "tape" else f"in {counted(self.stages, 'stage')}"
        order += f", each in {self.split} ranges of keys" if self.split > 1 else ""
        found = [f"{self.app} version {self.version}, {order}: {_size_of(*self.units)}"]
        found += [f"continues from {self.base}"] if self.base else []
        for one in self.units:
            found.append(f"  partition {one.partition}: {_size_of(one)}")
        return found + [f"note: {one}" for one in self.notes]


def plan_rebuild(request: Request) -> RebuildPlan:
    """The plan of a rebuild. Raises what ``rebuild`` raises before it begins."""
    asked = checked(request)
    plan = find_app(asked.app).plan()
    with opened_past(asked, plan, taped=False) as past:
        settled = settle(asked, past)
        found = [_unit(number, asked, settled, past) for number in range(plan.partitions)]
    return RebuildPlan(
        app=plan.app,
        version=plan.version,
        order=settled.order,
        base=settled.base,
        units=tuple(found),
        stages=settled.stages,
        split=asked.execution.split,
        notes=settled.notes,
    )


def _unit(number: int, request: Request, settled: Settled, past: HistorySource) -> PlannedUnit:
    begins, read = _positions_of_base(number, request, settled, past), past.source(number)
    records = size = 0
    for name, end in _ends(number, settled, past):
        start = max(begins.get(name, 0), past.log.start_offset(name, number))
        if start < end:
            some = read(name, start, min(start + _SAMPLED, end))
            lengths = [len(one.key or b"") + len(one.value or b"") for one in some]
            records += end - start
            size += (end - start) * sum(lengths) // max(1, len(lengths))
    return PlannedUnit(number, records, size)


def _ends(number: int, settled: Settled, past: HistorySource) -> Iterator[tuple[str, int]]:
    """The inputs that are read, each with its end."""
    if settled.order == "tape":
        cut = settled.targets[number].cut
        yield from () if cut is None else tape.decode_cut(cut).positions.items()
        return
    own = own_inputs(past.plan)
    for one in past.plan.inputs:
        if one.name in settled.ends and one.name not in own:
            yield one.name, settled.ends[one.name][number]


def _positions_of_base(
    number: int, request: Request, settled: Settled, past: HistorySource
) -> Mapping[str, int]:
    """Where the unit continues from the snapshot that was named."""
    if settled.base is None or request.source.base is None:
        return {}
    base = Snapshots(request.source.base, past.plan.app).open(settled.base)
    cut = base.manifest.task(number).cut
    return tape.decode_cut(cut).positions if cut else {}


def _size_of(*units: PlannedUnit) -> str:
    records, size = sum(one.records for one in units), sum(one.bytes for one in units)
    return f"about {counted(records, 'record')}, {size / _MEGABYTE:,.1f} MB"
