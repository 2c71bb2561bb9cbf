"""The memory of a service that gets more events than it can handle."""

from __future__ import annotations

from itertools import islice
from time import perf_counter, sleep

from benchmarks.measure import Row, Scale
from benchmarks.served.apps import crawling
from benchmarks.served.house import House, endless
from benchmarks.served.service import Service

SLOW_MS = 0.5
TIMES = 10
MOST_GROWTH = 1.1
KEYS = 100
"""Few keys, because the state is not measured."""
_LOOK_S = 0.1
_MIB = 1 << 20


def burst(scale: Scale) -> list[Row]:
    """A handler that takes half a millisecond gets ten times the events that it can handle: its memory must not grow."""
    with House(crawling) as house:
        app = "benchmarks.served.apps:crawling"
        with house.start(app, scale.commit_ms, slow_ms=SLOW_MS) as service:
            service.wait_for_partitions(1)
            warm = int(scale.burst_s * 200)
            rate = house.take(service, islice(endless(KEYS), warm), "totals").wall_rate
            sizes = _flooded(house, service, TIMES * rate, scale.burst_s)
            backlog = house.records("events") - house.records("totals")
    begin, middle, end, peak = sizes[0], sizes[len(sizes) // 2], sizes[-1], max(sizes)
    return [
        Row(
            case=f"memory under a burst of {TIMES} times the rate: peak",
            measured=peak / _MIB,
            unit="MiB",
            target="at most 110 % of before",
            met=peak <= MOST_GROWTH * begin,
            ratio=peak / begin,
            compared_with="before",
            compared=begin / _MIB,
            note=f"{middle / _MIB:.1f} in the middle, {end / _MIB:.1f} at the end of {len(sizes)} samples; "
            f"{rate:,.0f} events/s handled, {backlog:,} waiting in the end",
        )
    ]


def _flooded(house: House, service: Service, per_s: float, lasting_s: float) -> list[int]:
    """Feed events for ``lasting_s``, then none for half as long. Returns samples of the service's memory in bytes."""
    events, fed = islice(endless(KEYS), KEYS, None), 0
    sizes = [service.resident_bytes()]
    start = perf_counter()
    while (elapsed_s := perf_counter() - start) < 1.5 * lasting_s:
        if elapsed_s < lasting_s:
            fed += house.feed(islice(events, int(per_s * elapsed_s) - fed))
        sleep(_LOOK_S)
        sizes.append(service.resident_bytes())
    return sizes
