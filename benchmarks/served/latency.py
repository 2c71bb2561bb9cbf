"""The latency of an event in a service that gets events at a steady rate."""

from __future__ import annotations

from itertools import islice
from statistics import quantiles
from time import perf_counter, sleep

from benchmarks.apps import counting
from benchmarks.measure import Row, Scale
from benchmarks.served.house import House, endless
from benchmarks.served.rows import latencies
from benchmarks.served.service import PATIENCE_S, BenchmarkError
from tailrace.log import TopicPartition

PER_S = 10_000
COMMIT_MS = 100
MOST_MS = 250
_LOOK_S = 0.002
_EVENTS, _TOTALS = TopicPartition("events", 0), TopicPartition("totals", 0)


def latency(scale: Scale) -> list[Row]:
    """10,000 events a second, a commit every 100 ms: the time from when an event was due to its visible output.

    The time starts when the event was due to be appended, even if the producer was delayed and appended it later.
    """
    runs: list[list[float]] = []
    with House(counting) as house:
        unserved = quantiles(_paced(house, scale, _EVENTS), n=100)[98]
        with house.start("benchmarks.apps:counting", COMMIT_MS) as service:
            service.wait_for_partitions(1)
            house.wait_for(house.records("events"), service, "totals")
            house.take(service, islice(endless(scale.keys), scale.keys), "totals")
            runs += [_paced(house, scale, _TOTALS) for _ in range(scale.repeats)]
    return latencies(
        "latency at 10,000 events/s", runs, MOST_MS, f"{unserved:.1f} ms until the event itself is visible"
    )


def _paced(house: House, scale: Scale, out: TopicPartition) -> list[float]:
    """Append events, and wait for the record of each in ``out``, in order. Returns the milliseconds of each event."""
    events = islice(endless(scale.keys), scale.keys, None)
    reader = house.log.reader({out: house.records(out.topic)})
    many, fed, took_ms = int(PER_S * scale.latency_s), 0, list[float]()
    start = perf_counter()
    while len(took_ms) < many:
        now_s = perf_counter() - start
        if now_s > scale.latency_s + PATIENCE_S:
            raise BenchmarkError(f"{many - len(took_ms)} events did not come out")
        due = min(many, int(now_s * PER_S))
        if due > fed:
            house.feed(islice(events, due - fed))
            fed = due
        found = len(reader.fetch(*out, many).records)
        now_s = perf_counter() - start
        took_ms += [1_000 * (now_s - number / PER_S) for number in range(len(took_ms), len(took_ms) + found)]
        sleep(_LOOK_S)
    return took_ms
