"""Rebuilds of a whole history, compared with the live run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median
from typing import NamedTuple

import msgspec

from benchmarks.measure import Row, Scale, load
from benchmarks.served.apps import doubling
from benchmarks.served.house import House, Taken, endless
from benchmarks.served.service import BenchmarkError
from benchmarks.spark.runs import EngineName, Order, Run, run
from tailrace.core.records import Output
from tailrace.history.rebuilding.results import Phases

APP = "benchmarks.served.apps:doubling"
TIMES = 1.5
MOST_GROWTH = 1.15
_LUMP = 500_000
_REPEATED_UP_TO = 1_000_000


class _Setting(NamedTuple):
    """An engine and its number of cores."""

    engine: EngineName
    cores: int

    def __str__(self) -> str:
        if self.engine == "spark":
            return f"Spark local[{self.cores}]"
        return "one process" if self.cores == 1 else f"{self.cores} processes"


_ALL = (_Setting("spark", 2), _Setting("local", 2), _Setting("spark", 1), _Setting("local", 1))


class _Made(NamedTuple):
    """Rebuilds of one kind: the same history and setting."""

    events: int
    setting: _Setting
    runs: list[Run]

    @property
    def rate(self) -> float:
        """Events per second of processor time."""
        return self.events / median(one.processor_s for one in self.runs)

    def note(self) -> str:
        """A note with wall time, the time of each phase, and the load of the machine."""
        wall_s = median(one.wall_s for one in self.runs)
        middle = sorted(self.runs, key=lambda one: one.wall_s)[len(self.runs) // 2].report.phases
        return f"{wall_s:.1f} s by the wall, {self.events / wall_s:,.0f}/s; {_phases(middle)}; {load()}"


def rebuilds(scale: Scale) -> list[Row]:
    """A growing history: at each size, handled live by one worker with both partitions, then rebuilt."""
    made: list[_Made] = []
    rows: list[Row] = []
    live: list[Taken] = []
    with House(doubling) as house:
        events = endless(scale.keys)
        for size in scale.rebuilt_events:
            live += _live(house, events, size - house.records("events"), scale)
            live_rate = sum(one.events for one in live) / sum(one.events / one.rate for one in live)
            last = size == scale.rebuilt_events[-1]
            for setting in _settings(size, scale):
                made.append(_rebuilt(house, setting, size, scale))
                rows.append(_row(made[-1], live_rate, last=last and setting == _ALL[0]))
    return [*rows, _growth(made, scale)]


def _settings(size: int, scale: Scale) -> Sequence[_Setting]:
    """All settings at the middle size; at other sizes only the one with a target."""
    return _ALL if size == scale.rebuilt_middle and scale.rebuilt_by_all else _ALL[:1]


def _live(house: House, events: Iterator[Output], many: int, scale: Scale) -> list[Taken]:
    """Feed a worker ``many`` more events, in batches. Its start does not count."""
    with house.start(APP, scale.commit_ms) as service:
        service.wait_for_partitions(doubling.plan().partitions)
        return [
            house.take(service, islice(events, min(_LUMP, many - fed)), "totals")
            for fed in range(0, many, _LUMP)
        ]


def _rebuilt(house: House, setting: _Setting, size: int, scale: Scale) -> _Made:
    repeats = scale.repeats if size <= _REPEATED_UP_TO else 1
    runs = run(Order(APP, str(house.folder / "log"), str(house.folder / "rebuilt"), *setting, times=repeats))
    for one in runs:
        if one.report.events != size:
            raise BenchmarkError(f"this is no rebuild of {size:,} events as it was asked for: {one.report}")
    return _Made(size, setting, runs)


def _row(made: _Made, live_rate: float, *, last: bool) -> Row:
    ratio = made.rate / live_rate
    return Row(
        case=f"{made.events:,} events along the tape, {made.setting}",
        measured=made.rate,
        unit="events/s per core",
        target=f"{100 * TIMES:.0f} % or more" if last else "",
        met=ratio >= TIMES if last else None,
        ratio=ratio,
        compared_with="live, one worker",
        compared=live_rate,
        note=made.note(),
    )


def _growth(made: Sequence[_Made], scale: Scale) -> Row:
    """Check that an event of a large history costs the same as one of a smaller history."""
    costs = {one.events: 1e9 / one.rate for one in made if one.setting == _ALL[0]}
    # At the smallest size, most of the time is Spark's overhead per job.
    middle, largest = scale.rebuilt_middle, scale.rebuilt_events[-1]
    return Row(
        case=f"cost of an event of {largest:,}, along the tape",
        measured=costs[largest],
        unit="ns/event",
        target=f"at most {100 * MOST_GROWTH:.0f} %",
        met=costs[largest] <= MOST_GROWTH * costs[middle],
        ratio=costs[largest] / costs[middle],
        compared_with=f"of {middle:,}",
        compared=costs[middle],
    )


def _phases(phases: Phases) -> str:
    """The seconds of each phase, summed over all processes, as text."""
    parts = msgspec.structs.asdict(phases).items()
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts if seconds)
