"""Hourly sums of ten-minute sums, by two actors of one app, are the sums that a batch makes of the same events."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import Output
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import WorkerSettings
from tailrace.testing import Harness
from tests.runtime.bounded_run import BoundedRun, read_all

MINUTE_MS = 60_000
WINDOW_MS, HOUR_MS = 10 * MINUTE_MS, 60 * MINUTE_MS
OUT_OF_ORDER_MS = 7 * MINUTE_MS


class Ride(msgspec.Struct, frozen=True):
    driver: str
    city: str
    at: int
    cents: int


class Earned(msgspec.Struct, frozen=True):
    driver: str
    city: str
    cents: int


class Hour(msgspec.Struct, frozen=True):
    city: str
    end: int
    cents: int
    drivers: int


def end_of(at: int, size: int) -> int:
    """The last instant of the window that an instant is in."""
    return at - at % size + size - 1


def make_app() -> tr.App:
    app = tr.App("rides", partitions=4)
    rides = app.topic("rides", Ride, key="driver", event_time="at", out_of_order=OUT_OF_ORDER_MS)
    earned = app.topic("earned", Earned, key="city")
    hours = app.topic("hours", Hour, key="city")

    @app.actor
    class Driver(tr.Actor):
        cents: tr.MapState[str, int]

        @tr.process(rides)
        def ride(self, event: Ride, ctx: tr.Context[str]) -> None:
            end = end_of(event.at, WINDOW_MS)
            window = f"{end}:{event.city}"
            self.cents[window] = self.cents.get(window, 0) + event.cents
            ctx.set_timer(end, f"window:{event.city}:{end}")

        @tr.on_timer("window")
        def over(self, ctx: tr.Context[str]) -> None:
            assert ctx.timer_name is not None
            city = ctx.timer_name.split(":")[1]
            ctx.emit(earned, Earned(ctx.key, city, self.cents.pop(f"{ctx.event_time}:{city}")))

    @app.actor
    class City(tr.Actor):
        hours: tr.MapState[int, tuple[int, int]]

        @tr.process(earned)
        def add(self, event: Earned, ctx: tr.Context[str]) -> None:
            end = end_of(ctx.event_time, HOUR_MS)
            cents, sums = self.hours.get(end, (0, 0))
            self.hours[end] = (cents + event.cents, sums + 1)
            ctx.set_timer(end)

        @tr.on_timer
        def over(self, ctx: tr.Context[str]) -> None:
            ctx.emit(hours, Hour(ctx.key, ctx.event_time, *self.hours.pop(ctx.event_time)))

    return app


def random_rides(seed: int, count: int = 2_000) -> list[Ride]:
    """In an order in which none comes more than ``OUT_OF_ORDER_MS`` behind the furthest."""
    dice = random.Random(seed)
    rides = [
        Ride(f"d{dice.randrange(30)}", dice.choice("abc"), dice.randrange(9 * HOUR_MS), dice.randrange(1_000))
        for _ in range(count)
    ]
    return sorted(rides, key=lambda one: one.at + dice.randrange(OUT_OF_ORDER_MS))


def by_batch(rides: Sequence[Ride]) -> list[Hour]:
    cents: dict[tuple[str, int], int] = defaultdict(int)
    sums: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for one in rides:
        hour = one.city, end_of(one.at, HOUR_MS)
        cents[hour] += one.cents
        sums[hour].add((one.driver, end_of(one.at, WINDOW_MS)))
    return [Hour(*hour, cents[hour], len(sums[hour])) for hour in sorted(cents)]


def in_order(hours: list[Hour]) -> list[Hour]:
    return sorted(hours, key=lambda one: (one.city, one.end))


@pytest.mark.one_seed_in(25)  # one takes 0.1 s
@pytest.mark.parametrize("commit_every", [None, 7])
def test_a_harness_gives_what_a_batch_gives(commit_every: int | None, seeds: Sequence[int]) -> None:
    for seed in seeds:
        rides = random_rides(seed, 500)
        app = make_app()
        with Harness(app, commit_every=commit_every, slice_size=50) as h:
            h.send(app.topics["rides"], *rides)
            h.end_of_input()
            assert in_order(h.emitted(app.topics["hours"])) == by_batch(rides), seed
            assert (h.late, h.behind) == (0, {}), seed


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("commit_interval_ms", [5, 100, 1_000])
def test_workers_give_what_a_batch_gives(commit_interval_ms: int, processes: int, tmp_path: Path) -> None:
    rides = random_rides(commit_interval_ms + processes)
    settings = WorkerSettings(
        slice_records=200, partition=PartitionSettings(commit_interval_ms=commit_interval_ms)
    )
    run = BoundedRun(make_app(), tmp_path / "log", settings)
    run.log.append_all(
        [Output("rides", one.driver.encode(), msgspec.json.encode(one), one.at) for one in rides]
    )
    run.run(processes)
    assert in_order(read_all(run.log, "hours", Hour)) == by_batch(rides)
    run.check()
