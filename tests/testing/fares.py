"""A chain of apps: fares per driver and hour, from these the sums per region and hour, from these those of
the day.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

import tailrace as tr
from tailrace.testing import System

HOUR_MS = 3_600_000
REGIONS = 3
LATENESS_MS = 600_000


class Fare(msgspec.Struct, frozen=True):
    driver: str
    region: str
    at: int
    cents: int


class DriverHour(msgspec.Struct, frozen=True):
    driver: str
    region: str
    end: int
    """The last millisecond of the hour."""
    cents: int


class RegionHour(msgspec.Struct, frozen=True, order=True):
    region: str
    end: int
    cents: int
    drivers: int


class Day(msgspec.Struct, frozen=True):
    name: str
    cents: int
    hours: int


def end_of_hour(at: int) -> int:
    return at - at % HOUR_MS + HOUR_MS - 1


class Drivers:
    """The first of the chain: what each driver has taken in each hour, told when the hour is over."""

    def __init__(self, partitions: int = 4, name: str = "drivers") -> None:
        app = self.app = tr.App(name, partitions=partitions)
        fares = self.fares = app.topic(
            "fares", Fare, key="driver", event_time="at", out_of_order=LATENESS_MS, late="drop"
        )
        hours = self.hours = app.topic("driver-hours", DriverHour, key="region", event_time="end")

        @app.actor
        class Driver(tr.Actor):
            region: str = ""
            cents: tr.MapState[int, int]

            @tr.process(fares)
            def take(self, event: Fare, ctx: tr.Context[str]) -> None:
                end = end_of_hour(event.at)
                self.region = event.region
                self.cents[end] = self.cents.get(end, 0) + event.cents
                ctx.set_timer(end)

            @tr.on_timer
            def over(self, ctx: tr.Context[str]) -> None:
                ctx.emit(
                    hours, DriverHour(ctx.key, self.region, ctx.event_time, self.cents.pop(ctx.event_time))
                )

        self.Driver = Driver


class Regions:
    """The second: what each region has taken in each hour. Nothing of an hour may come once it has told of
    it.
    """

    def __init__(self, partitions: int = 3, name: str = "regions") -> None:
        app = self.app = tr.App(name, partitions=partitions)
        hours = self.hours = app.topic(
            "driver-hours", DriverHour, key="region", event_time="end", watermark="upstream", late="drop"
        )
        sums = self.sums = app.topic("region-hours", RegionHour, key="region", event_time="end")

        @app.actor
        class Region(tr.Actor):
            cents: tr.MapState[int, tuple[int, int]]

            @tr.process(hours)
            def add(self, event: DriverHour, ctx: tr.Context[str]) -> None:
                cents, drivers = self.cents.get(event.end, (0, 0))
                self.cents[event.end] = (cents + event.cents, drivers + 1)
                ctx.set_timer(event.end)

            @tr.on_timer
            def over(self, ctx: tr.Context[str]) -> None:
                cents, drivers = self.cents.pop(ctx.event_time)
                ctx.emit(sums, RegionHour(ctx.key, ctx.event_time, cents, drivers))

        self.Region = Region


class Days:
    """The third: one sum of all that there is, told at the end."""

    def __init__(self, partitions: int = 2, name: str = "days") -> None:
        app = self.app = tr.App(name, partitions=partitions)
        sums = self.sums = app.topic(
            "region-hours", RegionHour, key=lambda _: "all", key_type=str,
            event_time="end", watermark="upstream", repartition=True,
        )  # fmt: skip
        days = self.days = app.topic("days", Day, key="name")

        @app.actor
        class Total(tr.Actor):
            cents: int = 0
            hours: int = 0

            @tr.process(sums)
            def add(self, event: RegionHour, ctx: tr.Context[str]) -> None:
                self.cents += event.cents
                self.hours += 1
                ctx.set_timer(end_of_hour(event.end) + 24 * HOUR_MS, "day")

            @tr.on_timer("day")
            def over(self, ctx: tr.Context[str]) -> None:
                ctx.emit(days, Day(ctx.key, self.cents, self.hours))

        self.Total = Total


def some_fares(random: Random, count: int) -> list[Fare]:
    """Fares of some hours, out of order by up to ten minutes; each driver has a region."""
    at, found = 0, list[Fare]()
    for _ in range(count):
        at += random.randrange(HOUR_MS // 4)
        driver = random.randrange(9)
        found.append(
            Fare(
                f"d{driver}",
                f"r{driver % REGIONS}",
                max(0, at - random.randrange(LATENESS_MS)),
                random.randrange(1, 100),
            )
        )
    return found


def sums_of(fares: Iterable[Fare]) -> list[RegionHour]:
    """What ``Regions`` has to come to, in plain Python."""
    cents: dict[tuple[str, int], int] = {}
    drivers: dict[tuple[str, int], set[str]] = {}
    for fare in fares:
        place = fare.region, end_of_hour(fare.at)
        cents[place] = cents.get(place, 0) + fare.cents
        drivers.setdefault(place, set()).add(fare.driver)
    return sorted(RegionHour(*place, cents[place], len(drivers[place])) for place in cents)


def sums_in(s: System, topic: tr.Topic[RegionHour, str]) -> list[RegionHour]:
    return sorted(s.emitted(topic))
