"""Exactly-once throughput of services on Kafka: beside a transactional loop by hand, with a second worker, and with real history.

Each case gets a lump of events several times. All keys are known before that, so the figures include neither the start nor the first
access to a key. The raw loop and the service take the same events, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from itertools import islice
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

from benchmarks.flights import FIRST
from benchmarks.kafka import apps
from benchmarks.kafka.apps import EVENTS, TOTALS, counting
from benchmarks.kafka.house import KafkaHouse
from benchmarks.kafka.raw import OUT, RawLoop
from benchmarks.measure import Row, Scale
from benchmarks.served import rows
from benchmarks.served.house import Taken, endless
from benchmarks.served.rows import Shared
from benchmarks.served.service import Cores
from schemas.flights import HOUR_MS, Arrival, Departure
from services.flights import aircraft
from services.flights.history import facts
from services.flights.load import timed_records
from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tailrace.history.replay.replaying import seldom_collected
from tailrace.log import TopicPartition

APP = "benchmarks.kafka.apps:counting"
MOST_US, MOST_FLIGHT_US, MOST_TIMER_US = 12, 33, 15
DAY_MS = 24 * HOUR_MS
_PLACES = [TopicPartition(EVENTS, number) for number in range(counting.plan().partitions)]


class _Rates(NamedTuple):
    """Of one run: microseconds of processor time per event, and events per second by the wall."""

    us: float
    per_s: float


def worker(scale: Scale) -> list[Row]:
    """JSON in and out, one output for each event, a commit per second, RocksDB; compared with a transactional loop."""
    ours: list[_Rates] = []
    raw: list[_Rates] = []
    with (
        KafkaHouse(counting) as house,
        house.start(APP, scale.commit_ms) as service,
        closing(RawLoop(house.log, house.url, scale.commit_ms)) as loop,
        seldom_collected(),  # like in the worker
    ):
        service.wait_for_partitions(len(_PLACES))
        events = endless(scale.keys)
        house.take([service], counting.name, islice(events, scale.keys))
        _by_hand(loop, house)
        for _ in range(scale.repeats):
            ours.append(_rates(house.take([service], counting.name, islice(events, scale.kafka_events))))
            raw.append(_by_hand(loop, house))
        assert house.count(TOTALS) == house.count(OUT)
    us, per_s = (median(column) for column in zip(*ours, strict=True))
    raw_us, raw_per_s = (median(column) for column in zip(*raw, strict=True))
    ratio = median(one.per_s / other.per_s for one, other in zip(ours, raw, strict=True))
    of_time = median(other.us / one.us for one, other in zip(ours, raw, strict=True))
    return [
        Row(
            case="Kafka: a worker, exactly once, processor time",
            measured=us,
            unit="us/event",
            target=f"{MOST_US} us or less",
            met=us <= MOST_US,
            ratio=of_time,
            compared_with="raw transactional loop, its state in a dict",
            compared=raw_us,
        ),
        Row(
            case="Kafka: a worker, exactly once, by the wall",
            measured=per_s,
            unit="events/s",
            target="45 % or more",
            met=ratio >= 0.45,
            ratio=ratio,
            compared_with="raw transactional loop, its state in a dict",
            compared=raw_per_s,
        ),
    ]


def _rates(taken: Taken) -> _Rates:
    return _Rates(taken.processor_s / taken.events * 1e6, taken.wall_rate)


def _by_hand(loop: RawLoop, house: KafkaHouse) -> _Rates:
    """Let the raw loop take what the service has taken."""
    ends = house.taken(counting.name, _PLACES)
    started, processor_s = perf_counter(), process_time()
    taken = loop.run(ends)
    return _Rates((process_time() - processor_s) / taken * 1e6, taken / (perf_counter() - started))


# --- two workers


def two_workers(scale: Scale) -> list[Row]:
    """Two processes of a group, with two tasks each, compared with one that has all four."""
    one: list[Shared] = []
    two: list[Shared] = []
    with KafkaHouse(counting) as house:
        events = endless(scale.keys)
        for number in range(scale.repeats):
            for count in (1, 2) if number % 2 else (2, 1):
                (one if count == 1 else two).append(_with_workers(count, number, house, events, scale))
    return [rows.two_workers("Kafka: two workers, by the wall", one, two, broker=True)]


def _with_workers(
    count: int, number: int, house: KafkaHouse, events: Iterator[Output], scale: Scale
) -> Shared:
    tasks = counting.plan().partitions // count
    with ExitStack() as running:
        services = [
            running.enter_context(
                house.start(APP, scale.commit_ms, state=f"state-of-two-{number}-{count}-{each}")
            )
            for each in range(count)
        ]
        for service in services:
            service.wait_for_tasks(tasks)
        house.take(services, counting.name, islice(events, scale.keys))
        cores = Cores()
        taken = house.take(services, counting.name, islice(events, scale.kafka_events))
        return Shared(taken, cores.free(taken.processor_s))


# --- timers


def timers(scale: Scale) -> list[Row]:
    """Processor time per event that sets a timer, which fires five seconds later; and that moves the timer of its key."""
    found: list[Row] = []
    for app, what in ((apps.firing, "a timer set and fired"), (apps.moving, "a timer moved")):
        measured: list[float] = []
        with (
            KafkaHouse(app) as house,
            house.start(f"benchmarks.kafka.apps:{app.name}", scale.commit_ms) as service,
        ):
            service.wait_for_partitions(len(_PLACES))
            events = endless(scale.keys)
            house.take([service], app.name, islice(events, scale.keys))
            for _ in range(scale.repeats):
                taken = house.take([service], app.name, islice(events, scale.kafka_events))
                measured.append(_rates(taken).us)
        us = median(measured)
        found.append(
            Row(
                case=f"Kafka: {what} per event",
                measured=us,
                unit="us/event",
                target=f"{MOST_TIMER_US} us or less",
                met=us <= MOST_TIMER_US,
            )
        )
    return found


# --- flights


def flights(scale: Scale) -> list[Row]:
    """Processor time per event of the aircraft service: ordered, with interleaved inputs and timers."""
    plan = aircraft.app.plan()
    read = {one.name for one in plan.inputs}
    measured: list[float] = []
    for _ in range(scale.repeats):
        with (
            KafkaHouse(aircraft.app) as house,
            house.start("services.flights.aircraft:app", scale.commit_ms) as service,
        ):
            service.wait_for_partitions(plan.partitions)
            history = timed_records(facts(FIRST, FIRST + timedelta(days=scale.flight_days)))
            outputs = [
                Output(topic.name, topic.encode_key(event), topic.encode(event), known_ms)
                for topic, event, known_ms in history
                if topic.name in read
            ]
            taken = house.take([service], plan.app, outputs, after=_last_flights(outputs[-1].timestamp_ms))
            measured.append(_rates(taken).us)
    us = median(measured)
    return [
        Row(
            case="Kafka: flights, aircraft, live",
            measured=us,
            unit="us/event",
            target=f"{MOST_FLIGHT_US} us or less",
            met=us <= MOST_FLIGHT_US,
        )
    ]


def _last_flights(at_ms: int) -> Iterator[Output]:
    """A departure and an arrival in each partition, a day later: with them, event time passes all others."""
    later_ms = at_ms + DAY_MS
    tails = {partition_of(tail.encode(), aircraft.app.plan().partitions): tail for tail in "ABCDEFGHIJKL"}
    for tail in tails.values():
        for topic, event in (
            (aircraft.departures, Departure(tail, "-", 0, "EWR", "ORD", later_ms, later_ms, later_ms)),
            (aircraft.arrivals, Arrival(tail, "-", 0, later_ms, later_ms)),
        ):
            yield Output(topic.name, topic.encode_key(event), topic.encode(event), later_ms)
