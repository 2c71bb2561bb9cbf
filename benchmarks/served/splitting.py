"""Rebuilds of one hot partition, unsplit and split by key.

The time on two cores is measured by the wall. The work of every unit is measured too, as processor time in one process. From
this follows the time on more cores: the first pass and the merge each run in one process, the shards side by side.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import tailrace as tr
from benchmarks.flights import run_to_end, worker_of
from benchmarks.measure import Row, Scale, load
from benchmarks.served.apps import HOT
from benchmarks.served.house import House, endless
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import Engine, LocalEngine, OnProgress
from tailrace.history.rebuilding.job import Unit, UnitKind
from tailrace.history.rebuilding.request import Destination, Execution, Request, Source
from tailrace.history.rebuilding.results import UnitResult
from tailrace.history.rebuilding.units import run_unit

SHARDS = 8
CORES = (2, 8, 32)


class MeasuringEngine:
    """Runs the units one after the other in this process, and records the processor time of each."""

    name = "measuring"
    workers = 1

    def __init__(self) -> None:
        self.spent_s: dict[UnitKind, list[float]] = defaultdict(list)

    def run(self, units: Sequence[Unit], on_progress: OnProgress) -> Iterator[UnitResult]:
        """See ``Engine.run``."""
        for unit in units:
            begun_s = process_time()
            result = run_unit(unit)
            self.spent_s[unit.kind].append(process_time() - begun_s)
            yield result
            on_progress()

    def close(self) -> None:
        """See ``Engine.close``."""


def splitting(scale: Scale) -> list[Row]:
    """A light handler and a heavy one."""
    return [row for name, app in HOT.items() for row in _of(name, app, scale)]


def _of(name: str, app: tr.App, scale: Scale) -> Iterator[Row]:
    events = scale.split_events
    with House(app) as house:
        house.feed(islice(endless(scale.keys), events))
        run_to_end(worker_of(app, house.log, house.folder / "state"))
        made = partial(_made, house.folder, f"benchmarks.served.apps:{name}")
        made(LocalEngine(1), 1)  # the imports of the first rebuild must not count for the others
        whole, parts = MeasuringEngine(), MeasuringEngine()
        made(whole, 1)
        made(parts, SHARDS)
        (whole_s,) = whole.spent_s["task"]
        (first_s,), (merge_s,) = parts.spent_s["first"], parts.spent_s["merge"]
        shards_s = sum(parts.spent_s["shard"])
        case = f"{events:,} events of one partition, {name} handler"
        work = (
            f"in one piece {whole_s / events * 1e6:.1f} us an event; first pass {first_s / events * 1e6:.1f}, "
            f"shards {shards_s / events * 1e6:.1f}, merge {merge_s / events * 1e6:.1f}; {load()}"
        )
        walls = {
            split: median(made(LocalEngine(2), split) for _ in range(scale.repeats)) for split in (1, SHARDS)
        }
        yield _row(f"{case}, 2 processes", walls[SHARDS], walls[1], work)
        for cores in CORES:
            took_s = first_s + merge_s + shards_s / cores
            yield _row(f"{case}, {cores} cores by the work of its units", took_s, whole_s, "")


def _made(folder: Path, app: str, engine: Engine, split: int) -> float:
    """The wall time of one rebuild in seconds."""
    to = folder / "rebuilt"
    begun_s = perf_counter()
    report = rebuild(
        Request(
            app=app,
            source=Source(log=str(folder / "log")),
            to=Destination(uri=str(to)),
            order="tape",
            execution=Execution(split=split),
        ),
        engine,
    )
    took_s = perf_counter() - begun_s
    assert not any("not split" in note for note in report.notes), report.notes
    shutil.rmtree(to)
    return took_s


def _row(case: str, took_s: float, whole_s: float, note: str) -> Row:
    return Row(
        case=case,
        measured=took_s,
        unit="s",
        ratio=took_s / whole_s,
        compared_with="in one piece",
        compared=whole_s,
        note=note,
    )
