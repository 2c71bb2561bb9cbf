"""What is measured with: pairs in alternation, medians, peak memory; and what a measurement looks like in the table.

Time is the processor time of the process, all its threads together, so that a busy machine does not spoil the figures;
on an idle one it is what the clock on the wall shows, plus what background threads do meanwhile. ``BENCH_CLOCK=wall``
measures by the wall.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import msgspec

WALL = os.environ.get("BENCH_CLOCK") == "wall"
clock: Callable[[], float] = perf_counter if WALL else process_time


class Scale(msgspec.Struct, frozen=True):
    """How much is measured. ``repeats`` is the number of pairs, or of runs where nothing is compared."""

    events: int = 1_000_000
    keys: int = 100_000
    repeats: int = 5
    growth: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    large_keys: int = 10_000_000
    large_revisits: int = 1_000_000
    durable_s: float = 8.0
    harness_events: int = 200_000
    log_records: int = 1_000_000
    served_events: int = 500_000
    served_growth: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    commit_ms: int = 1_000
    restored_keys: int = 1_000_000
    latency_s: float = 10.0
    burst_s: float = 20.0
    rebuilt_events: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    rebuilt_by_all: bool = True
    """By all engines, on one core and on two; else only where there is a target."""
    snapshot_events: int = 5_000_000
    flight_days: int = 60
    split_events: int = 500_000
    pause_s: float = 5.0

    @property
    def rebuilt_middle(self) -> int:
        """The size in the middle of those that are rebuilt."""
        return self.rebuilt_events[len(self.rebuilt_events) // 2]


FULL = Scale()
QUICK = Scale(
    events=3_000,
    keys=300,
    repeats=1,
    growth=(500, 1_000, 2_000),
    large_keys=3_000,
    large_revisits=1_000,
    durable_s=0.05,
    harness_events=500,
    log_records=5_000,
    served_events=2_000,
    served_growth=(500, 1_000),
    commit_ms=50,
    restored_keys=2_000,
    latency_s=0.2,
    burst_s=0.5,
    rebuilt_events=(2_000,),
    rebuilt_by_all=False,
    snapshot_events=4_000,
    flight_days=2,
    split_events=2_000,
    pause_s=0.3,
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``met`` is None where there is no target, or where the run was too small to tell.

    ``compared_with`` says what the ratio is to.
    """

    case: str
    measured: float
    unit: str
    target: str = ""
    met: bool | None = None
    ratio: float | None = None
    compared_with: str = ""
    compared: float | None = None
    note: str = ""


class Pairs(NamedTuple):
    """Medians of runs that alternated: events per second of the case, of its baseline, and of their ratios."""

    case: float
    baseline: float
    ratio: float


def seconds(run: Callable[[], object]) -> float:
    """How long a run takes. What earlier runs have left is collected before, so that nobody pays for another."""
    gc.collect()
    start = clock()
    kept = run()
    took = clock() - start
    del kept
    return took


def alternating(
    events: int, case: Callable[[], object], baseline: Callable[[], object], repeats: int
) -> Pairs:
    """Run both in turn, who begins in turn as well, so that a slow moment of the machine meets both alike."""
    took: list[tuple[float, float]] = []
    for number in range(repeats):
        if number % 2:
            mine, other = seconds(case), seconds(baseline)
        else:
            other, mine = seconds(baseline), seconds(case)
        took.append((mine, other))
    return Pairs(
        events / median(mine for mine, _ in took),
        events / median(other for _, other in took),
        median(other / mine for mine, other in took),
    )


def rate(events: int, case: Callable[[], object], repeats: int) -> float:
    """Events per second, the median of several runs."""
    return events / median(seconds(case) for _ in range(repeats))


def load() -> str:
    """How busy the machine is, to be told with what only the wall can tell."""
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"


def peak_bytes() -> int:
    """The most memory that this process has had."""
    # On Linux, `ru_maxrss` of a new process begins at what its parent had; the kernel's own mark does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
