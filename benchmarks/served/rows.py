"""Rows of the table which the services on both logs have."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.measure import Row, load
from benchmarks.served.house import Taken


def latencies(case: str, runs: Sequence[Sequence[float]], most_ms: float, note: str) -> list[Row]:
    """The median and the 99th percentile of some runs, each given as the milliseconds of its events."""
    percents = [quantiles(each, n=100) for each in runs]
    middle_ms, high_ms = (median(each[n - 1] for each in percents) for n in (50, 99))
    return [
        Row(
            case=f"{case}, median",
            measured=middle_ms,
            unit="ms",
            note=f"{sum(map(len, runs)):,} events, at worst {max(map(max, runs)):.0f} ms",
        ),
        Row(
            case=f"{case}, 99 of 100",
            measured=high_ms,
            unit="ms",
            target=f"under {most_ms} ms",
            met=high_ms < most_ms,
            note=f"{note}; {load()}",
        ),
    ]


class Shared(NamedTuple):
    """One run with some number of workers, and the cores that were free for it."""

    taken: Taken
    free_cores: float


def two_workers(case: str, one: Sequence[Shared], two: Sequence[Shared], *, broker: bool = False) -> Row:
    """Pairs of runs with one worker and with two. This needs wall time, so a note shows the free cores."""
    ratio = median(b.taken.wall_rate / a.taken.wall_rate for a, b in zip(one, two, strict=True))
    cost = median(_cost_s(b) / _cost_s(a) for a, b in zip(one, two, strict=True))
    free = median(each.free_cores for each in two)
    return Row(
        case=case,
        measured=median(each.taken.wall_rate for each in two),
        unit="events/s",
        target="170 % or more",
        # Without two free cores, no program could reach the target.
        met=ratio >= 1.7 if ratio >= 1.7 or free >= 1.9 else None,
        ratio=ratio,
        compared_with="one worker, all partitions",
        compared=median(each.taken.wall_rate for each in one),
        note=f"{free:.1f} cores were free{', but for the broker' if broker else ''}; "
        f"processor time per event {cost:.0%} of that of one worker",
    )


def _cost_s(shared: Shared) -> float:
    """Processor time per event."""
    return shared.taken.processor_s / shared.taken.events
