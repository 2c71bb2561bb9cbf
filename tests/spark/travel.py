"""An app and a log for the tests of this folder: trips of planes, some hops of which are odd."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

import tailrace as tr
from tailrace.core.declare.plan import Plan
from tailrace.core.records import Output
from tailrace.history.snapshots.taking import TakingOptions, take_snapshot
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import TopicSettings
from tailrace.runtime.preparing import prepare_log
from tailrace.runtime.slices import PartitionSettings
from tailrace.runtime.worker import Worker, WorkerHooks, WorkerSettings
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Manifest, Snapshot, Snapshots

DAY = datetime(2013, 1, 1, tzinfo=UTC)
NOTES = 3
"""So many are remembered: the lists do not begin at their first place."""
PLANES = tuple(f"N{number}" for number in range(100, 120))


class Cabin(Enum):
    ECONOMY = "eco"
    FIRST = "first"


class Seat(msgspec.Struct, frozen=True):
    row: int
    letter: str


class Trip(msgspec.Struct):
    tail: str
    at: datetime
    miles: int
    cabin: Cabin = Cabin.ECONOMY
    price: Decimal = Decimal("9.90")
    delay: timedelta = timedelta(0)
    seats: list[Seat] = []
    meals: dict[str, int] = {}
    note: str | None = None


class Left(msgspec.Struct, tag="left"):
    tail: str
    gate: int


class Landed(msgspec.Struct, tag="landed"):
    tail: str
    gate: str


app = tr.App("travel", partitions=4)
trips = app.topic("trips", Trip, key="tail", event_time="at", out_of_order="1h")
moves = app.topic("moves", Left | Landed, key="tail", format="msgpack")


@app.actor
class Plane(tr.Actor):
    miles: int = 0
    last: Trip | None = None
    cabins: tr.MapState[Cabin, int]
    notes: tr.ListState[str]

    @tr.process(trips)
    def flew(self, trip: Trip, ctx: tr.Context[str]) -> None:
        self.miles += trip.miles
        self.last = trip
        self.cabins[trip.cabin] = self.cabins.get(trip.cabin, 0) + 1
        if trip.note is not None:
            self.notes.append(trip.note)
            if len(self.notes) > NOTES:
                self.notes.popleft()
        ctx.set_timer(trip.at + timedelta(hours=6), "rested")

    @tr.on_timer("rested")
    def rested(self, ctx: tr.Context[str]) -> None:
        self.last = None


other = tr.App("travel", partitions=4)
"""The app with another declaration of its actor."""
other_trips = other.topic("trips", Trip, key="tail", event_time="at", out_of_order="1h")


@other.actor(name="Plane")
class OtherPlane(tr.Actor):
    miles: int = 0
    hops: int = 0

    @tr.process(other_trips)
    def flew(self, trip: Trip, ctx: tr.Context[str]) -> None:
        self.miles += trip.miles


def trip(number: int) -> Trip:
    """The trip of this number: each a minute after the one before."""
    return Trip(
        PLANES[number * 7 % len(PLANES)], DAY + timedelta(minutes=number), number,
        Cabin.FIRST if number % 3 == 0 else Cabin.ECONOMY, Decimal(number) / 4,
        timedelta(seconds=number), [Seat(number, "A")] * (number % 3),
        {"soup": number} if number % 2 else {}, f"note {number}" if number % 5 == 0 else None,
    )  # fmt: skip


def output(topic: Any, event: Any, timestamp_ms: int) -> Output:
    """A record of a topic as a task writes it."""
    return Output(
        topic.name, topic.encode_key(event), topic.encode(event), timestamp_ms, (("from", b"\0test"),)
    )


def ms(instant: datetime) -> int:
    return int(instant.timestamp() * 1000)


def filled(folder: Path, count: int, *, at_once: int = 50, more: tuple[Output, ...] = ()) -> EmbeddedLog:
    """A log with this many trips, committed some at a time; ``more`` comes last."""
    log = EmbeddedLog(folder)
    for one in (trips, moves):
        log.create_topic(one.name, TopicSettings(4))
    writer = log.writer("test")
    for start in range(0, count, at_once):
        some = [trip(number) for number in range(start, min(start + at_once, count))]
        writer.append([output(trips, one, ms(one.at)) for one in some])
        writer.commit()
    if more:
        writer.append(more)
        writer.commit()
    writer.close()
    return log


class Lived:
    """The service has lived on a log of this folder; its states, and snapshots of it beside the log."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.uri = str(folder / "snapshots")
        self.log = filled(folder / "log", count)
        self.states = [MemoryStore() for _ in range(4)]
        prepare_log(self.log, app.plan(), create_declared=True)

    def run(self) -> None:
        """Until there is nothing to read."""
        live(app.plan(), self.log, self.states)

    def take(self, **options: Any) -> Manifest:
        return take_snapshot(app.plan(), self.log, Snapshots(self.uri, "travel"), TakingOptions(**options))

    def snapshot(self, which: str = "latest") -> Snapshot:
        return Snapshots(self.uri, "travel").open(which)


def live(plan: Plan, log: EmbeddedLog, states: list[MemoryStore], begin: Any = None) -> None:
    """The service lives until there is nothing to read; ``begin`` fills a store that is empty."""
    often = WorkerSettings(slice_records=50, bounded=True, partition=PartitionSettings(commit_interval_ms=1))
    hooks = WorkerHooks() if begin is None else WorkerHooks(begin=begin)
    worker = Worker(plan, log, range(4), states.__getitem__, settings=often, hooks=hooks)
    worker.start()
    while worker.turn() or not worker.quiet:
        pass
    worker.leave()
