"""Meters that are read by day and by night, their hours as an app adds them up, and the same in a few lines of plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

import tailrace as tr
from tailrace.core.values.partitioner import partition_of

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DISORDER_MS = 5 * MINUTE_MS
START_MS = 472_222 * HOUR_MS
PARTITIONS = 3


class Reading(msgspec.Struct, frozen=True):
    meter: str
    at: int
    amount: int


class Hour(msgspec.Struct, frozen=True):
    meter: str
    end: int
    total: int


class Bill(msgspec.Struct, frozen=True):
    """The first is due a day after the hour, and each further one a day after the one before."""

    meter: str
    hour: int
    number: int


BILLS = 3
DAY_MS = 24 * HOUR_MS

app = tr.App("meters", partitions=PARTITIONS)
readings = app.topic("readings", Reading, key="meter", key_type=str, event_time="at", out_of_order="5m")
hours = app.topic("hours", Hour, key="meter", key_type=str)
bills = app.topic("bills", Bill, key="meter", key_type=str)


@app.actor
class Meter(tr.Actor):
    open: tr.MapState[int, int]

    @tr.process(readings)
    def read(self, event: Reading, ctx: tr.Context[str]) -> None:
        end = event.at // HOUR_MS * HOUR_MS + HOUR_MS
        self.open[end] = self.open.get(end, 0) + event.amount
        ctx.set_timer(end, f"hour:{end}")

    @tr.on_timer("hour")
    def closed(self, ctx: tr.Context[str]) -> None:
        end = ctx.event_time
        ctx.emit(hours, Hour(ctx.key, end, self.open.pop(end)))
        ctx.set_timer(end + DAY_MS, f"bill:{end}:1")

    @tr.on_timer("bill")
    def billed(self, ctx: tr.Context[str]) -> None:
        _, end, number = (ctx.timer_name or "").split(":")
        ctx.emit(bills, Bill(ctx.key, int(end), int(number)))
        if int(number) < BILLS:
            ctx.set_timer(ctx.event_time + DAY_MS, f"bill:{end}:{int(number) + 1}")


def readings_of(random: Random, count: int = 300) -> list[Reading]:
    """Some hours of readings, in an order that is wrong by less than the disorder."""
    found = [
        Reading(random.choice("abcdefgh"), START_MS + random.randrange(30 * HOUR_MS), random.randrange(9))
        for _ in range(count)
    ]
    return sorted(found, key=lambda one: one.at + random.randrange(DISORDER_MS))


def nights_of(random: Random) -> tuple[list[Reading], list[Reading]]:
    """Readings of two nights. The first one stops anywhere, so within an hour."""
    found = readings_of(random)
    at = random.randrange(1, len(found))
    return found[:at], found[at:]


# --- the oracle


def all_hours(of: Iterable[Reading]) -> Counter[Hour]:
    """Each hour of each meter that had a reading, once, with all of its readings."""
    totals: Counter[tuple[str, int]] = Counter()
    for one in of:
        totals[one.meter, one.at // HOUR_MS * HOUR_MS + HOUR_MS] += one.amount
    return Counter(Hour(meter, end, total) for (meter, end), total in totals.items())


def hours_over(of: Sequence[Reading]) -> Counter[Hour]:
    """Those that are over by the readings themselves: in their partition, one came that is later by more than the disorder."""
    latest: dict[int, int] = {}
    for one in of:
        place = partition_of(one.meter.encode(), PARTITIONS)
        latest[place] = max(one.at, latest.get(place, 0))
    return Counter(
        hour
        for hour in all_hours(of).elements()
        if hour.end <= latest[partition_of(hour.meter.encode(), PARTITIONS)] - DISORDER_MS - 1
    )


def all_bills(of: Iterable[Reading]) -> Counter[Bill]:
    """Three for each hour."""
    return Counter(
        Bill(hour.meter, hour.end, number)
        for hour in all_hours(of).elements()
        for number in range(1, BILLS + 1)
    )
