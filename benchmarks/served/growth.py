"""Checks that the cost of an event in a service does not depend on the number of earlier events."""

from __future__ import annotations

from itertools import islice
from statistics import median
from typing import NamedTuple

from benchmarks.apps import counting
from benchmarks.measure import Row, Scale
from benchmarks.served.house import House, Taken, endless

MOST = 1.15
_MIB = 1 << 20
_LUMP = 500_000
_REPEATED_UP_TO = 1_000_000


def growth_served(scale: Scale) -> list[Row]:
    """A new worker on the log for each size: 10^5, 10^6, 10^7 events of ten thousand keys."""
    rows: list[Row] = []
    first_ns = 0.0
    for count in scale.served_growth:
        repeats = scale.repeats if count <= _REPEATED_UP_TO else 1
        runs = [_run(count, scale) for _ in range(repeats)]
        cost_ns, last = median(one.cost_ns for one in runs), count == scale.served_growth[-1]
        of_lumps = median(one.last_ns / one.first_ns for one in runs)
        first_ns = first_ns or cost_ns
        rows.append(
            Row(
                case=f"growth of a worker: {count:,} events",
                measured=cost_ns,
                unit="ns/event",
                target="at most 115 % of the fewest" if last else "",
                met=cost_ns <= MOST * first_ns if last else None,
                ratio=cost_ns / first_ns if rows else None,
                compared_with=f"{scale.served_growth[0]:,} events" if rows else "",
                compared=first_ns if rows else None,
                note=f"its last lump {of_lumps:.0%} of its first; {max(one.size for one in runs) / _MIB:.0f} MiB in the end",
            )
        )
    return rows


class _Run(NamedTuple):
    """Nanoseconds per event of the whole run, the first and the last batch, and the memory at the end in bytes."""

    cost_ns: float
    first_ns: float
    last_ns: float
    size: int


def _run(count: int, scale: Scale) -> _Run:
    keys, lumps = scale.keys // 10, list[Taken]()
    with House(counting) as house, house.start("benchmarks.apps:counting", scale.commit_ms) as service:
        service.wait_for_partitions(1)
        events = endless(keys)
        house.take(service, islice(events, keys), "totals")
        for fed in range(0, count, _LUMP):
            lumps.append(house.take(service, islice(events, min(_LUMP, count - fed)), "totals"))
        size = service.resident_bytes()
    cost_ns = sum(one.events / one.rate for one in lumps) / count * 1e9
    return _Run(cost_ns, 1e9 / lumps[0].rate, 1e9 / lumps[-1].rate, size)
