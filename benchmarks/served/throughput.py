"""Exactly-once throughput of a worker: compared with a hand-written loop, with poison events, and with a second worker.

Each case gets a large batch of events several times. All keys are known before that, so the figures include neither the start
nor the first access to a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median

from benchmarks.apps import counting
from benchmarks.measure import Row, Scale, seconds
from benchmarks.served import rows
from benchmarks.served.apps import doubling, surviving
from benchmarks.served.bare import OUT, BareLoop
from benchmarks.served.house import House, Taken, endless
from benchmarks.served.rows import Shared
from benchmarks.served.service import Cores
from tailrace.core.records import Output
from tailrace.history.replay.replaying import seldom_collected

LEAST = 120_000
POISON_EVERY = 100


def worker(scale: Scale) -> list[Row]:
    """JSON in and out, one output for each event, a commit per second, RocksDB; compared with a hand-written loop."""
    taken: list[Taken] = []
    by_hand: list[float] = []
    with House(counting) as house, house.start("benchmarks.apps:counting", scale.commit_ms) as service:
        service.wait_for_partitions(1)
        loop, events = BareLoop(house.log, scale.commit_ms), endless(scale.keys)
        house.take(service, islice(events, scale.keys), "totals")
        loop.run()
        with seldom_collected():  # like in the worker
            for _ in range(scale.repeats):
                taken.append(house.take(service, islice(events, scale.served_events), "totals"))
                by_hand.append(scale.served_events / seconds(loop.run))
        assert house.records("totals") == house.records(OUT)
    measured = median(one.rate for one in taken)
    ratio = median(one.rate / other for one, other in zip(taken, by_hand, strict=True))
    return [
        Row(
            case="worker, exactly once",
            measured=measured,
            unit="events/s",
            target=f"{LEAST:,} or more",
            met=measured >= LEAST,
            note=_by_the_wall(taken),
        ),
        Row(
            case="worker, beside a loop by hand",
            measured=measured,
            unit="events/s",
            target="50 % or more",
            met=ratio >= 0.5,
            ratio=ratio,
            compared_with="bare loop over the same log, its state in a dict",
            compared=median(by_hand),
        ),
    ]


def _by_the_wall(taken: list[Taken]) -> str:
    return f"{median(one.wall_rate for one in taken):,.0f}/s by the wall"


# --- poison


def poison(scale: Scale) -> list[Row]:
    """One event in a hundred goes to the dead letters, compared with the same app without poison."""
    survivors = ("survivors", surviving.plan().dead_letters_topic)
    clean: list[Taken] = []
    mixed: list[Taken] = []
    with (
        House(surviving) as house,
        house.start("benchmarks.served.apps:surviving", scale.commit_ms) as service,
    ):
        service.wait_for_partitions(1)
        events = endless(scale.keys, "mixed")
        house.take(service, islice(events, scale.keys), *survivors)
        for _ in range(scale.repeats):
            clean.append(house.take(service, islice(events, scale.served_events), *survivors))
            mixed.append(house.take(service, _poisoned(islice(events, scale.served_events)), *survivors))
        assert house.records(survivors[1]) == scale.repeats * (scale.served_events // POISON_EVERY)
    ratio = median(one.rate / other.rate for one, other in zip(mixed, clean, strict=True))
    return [
        Row(
            case="worker, 1 % of the events poison",
            measured=median(one.rate for one in mixed),
            unit="events/s",
            target="33 % or more",
            met=ratio >= 1 / 3,
            ratio=ratio,
            compared_with="the same app, no poison",
            compared=median(one.rate for one in clean),
            note=_by_the_wall(mixed),
        )
    ]


def _poisoned(records: Iterator[Output]) -> Iterator[Output]:
    """Poison one event in a hundred: half of these cannot be decoded; for the other half the handler raises."""
    for number, record in enumerate(records, 1):
        if number % POISON_EVERY:
            yield record
        elif number // POISON_EVERY % 2:
            yield record._replace(value=b"no JSON")
        else:
            yield record._replace(value=(record.value or b"").replace(b'"value":', b'"value":-1'))


# --- two workers


def two_workers(scale: Scale) -> list[Row]:
    """Two processes for two partitions, compared with one."""
    one: list[Shared] = []
    two: list[Shared] = []
    with House(doubling) as house:
        events = endless(scale.keys)
        for _ in range(scale.repeats):
            one.append(_with_workers(1, house, events, scale))
            two.append(_with_workers(2, house, events, scale))
    return [rows.two_workers("two workers, by the wall", one, two)]


def _with_workers(count: int, house: House, events: Iterator[Output], scale: Scale) -> Shared:
    with house.start("benchmarks.served.apps:doubling", scale.commit_ms, "--workers", count) as service:
        service.wait_for_partitions(doubling.plan().partitions)
        house.take(service, islice(events, scale.keys), "totals")
        cores = Cores()
        taken = house.take(service, islice(events, 2 * scale.served_events), "totals")
        return Shared(taken, cores.free(taken.processor_s))
