"""Whether an event costs a service the same, however many came before it."""

from __future__ import annotations

from itertools import islice
from statistics import median

from benchmarks.apps import counting
from benchmarks.measure import Row, Scale
from benchmarks.served.house import House, endless

MOST = 1.15
_MIB = 1 << 20
_LUMP = 500_000
_REPEATED_UP_TO = 1_000_000


def growth_served(scale: Scale) -> list[Row]:
    """A worker on the log, a new one for each size: 10^5, 10^6, 10^7 events of ten thousand keys."""
    rows: list[Row] = []
    first_ns = 0.0
    for count in scale.served_growth:
        repeats = scale.repeats if count <= _REPEATED_UP_TO else 1
        runs = [_cost(count, scale) for _ in range(repeats)]
        cost_ns, last = median(ns for ns, _ in runs), count == scale.served_growth[-1]
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
                note=f"{max(size for _, size in runs) / _MIB:.0f} MiB of memory at the end",
            )
        )
    return rows


def _cost(count: int, scale: Scale) -> tuple[float, int]:
    """Nanoseconds per event, and the bytes of memory that it had in the end."""
    keys = scale.keys // 10
    with House(counting) as house, house.start("benchmarks.apps:counting", scale.commit_ms) as service:
        service.wait_for_partitions(1)
        events = endless(keys)
        house.take(service, islice(events, keys), "totals")
        before_s = service.processor_s()
        for fed in range(0, count, _LUMP):
            house.take(service, islice(events, min(_LUMP, count - fed)), "totals")
        return (service.processor_s() - before_s) / count * 1e9, service.resident_bytes()
