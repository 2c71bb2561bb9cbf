"""Tools for measuring (alternating pairs, medians, peak memory), and the form of a measurement in the table.

Time is the processor time of the process, of all its threads together, so other load on the machine does not affect the
figures. On an idle machine it equals wall time plus the work of background threads. ``BENCH_CLOCK=wall`` measures wall time.
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
    """The amount of work to measure. ``repeats`` is the number of pairs, or of runs if there is no baseline."""

    events: int = 1_000_000
    keys: int = 100_000
    repeats: int = 5
    growth: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    pending: tuple[int, int] = (1_000, 8_000)
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
    """Rebuild with all engines, on one core and on two; otherwise only the cases with a target."""
    snapshot_events: int = 5_000_000
    flight_days: int = 60
    pause_s: float = 5.0
    kafka_events: int = 1_000_000
    session_s: float = 6.0

    @property
    def rebuilt_middle(self) -> int:
        """The middle one of the rebuilt sizes."""
        return self.rebuilt_events[len(self.rebuilt_events) // 2]


FULL = Scale()
QUICK = Scale(
    events=3_000,
    keys=300,
    repeats=1,
    growth=(500, 1_000, 2_000),
    pending=(100, 800),
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
    pause_s=0.3,
    kafka_events=2_000,
    session_s=1.5,
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``met`` is None if there is no target, or if the run was too small to decide.

    ``compared_with`` names the baseline of the ratio.
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
    """Seconds of a run. Garbage of earlier runs is collected first, so that it does not count."""
    gc.collect()
    start = clock()
    kept = run()
    took = clock() - start
    del kept
    return took


def alternating(
    events: int, case: Callable[[], object], baseline: Callable[[], object], repeats: int
) -> Pairs:
    """Run both in turn, and alternate which one is first, so that a slow moment of the machine affects both equally."""
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
    """The load of the machine, as a note for figures in wall time."""
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"


def peak_bytes() -> int:
    """Peak memory of this process."""
    # On Linux, `ru_maxrss` of a new process starts at the value of its parent; VmHWM does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
