"""The apps that processes of these tests run: ``app`` counts, ``naps`` takes its time, and versions of an app that counts visits."""

import time
from typing import Any

import msgspec

import tailrace as tr

QUIET_MS = 500


class Seen(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something happened."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


class Total(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often."""

    key: tr.Key[str]
    count: int


app = tr.App("totals", on_error="dead-letter")
seen = app.topic("seen", Seen)
totals = app.topic("totals", Total)


@app.actor
class Counter(tr.Actor):
    """Counts, and says so when it is quiet."""

    count: int = 0

    @tr.process(seen)
    def counted(self, event: Seen, ctx: tr.Context[str]) -> None:
        self.count += 1
        ctx.set_timer(ctx.event_time + QUIET_MS, name="quiet")

    @tr.on_timer("quiet")
    def quiet(self, ctx: tr.Context[str]) -> None:
        ctx.emit(totals, Total(ctx.key, self.count))


# --- an app whose handler takes as long as its event says


class Nap(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something that takes a while."""

    key: tr.Key[str]
    seconds: float
    at_ms: tr.EventTime[int]


naps = tr.App("naps", partitions=1)
taken = naps.topic("naps", Nap)
rested = naps.topic("rested", Total)


@naps.actor
class Sleeper(tr.Actor):
    count: int = 0

    @tr.process(taken)
    def nap(self, event: Nap, ctx: tr.Context[str]) -> None:
        time.sleep(event.seconds)
        self.count += 1
        ctx.emit(rested, Total(ctx.key, self.count))


# --- versions of an app, and another service that was given its name by mistake


class Visited(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often, and by which version of the code."""

    key: tr.Key[str]
    count: int
    version: int


def _visits(version: int = 1, *, fails: bool = False, order: Any = "arrival", **options: Any) -> tr.App:
    """From version 2 on, the state has one field more: ``App(version=)`` was forgotten. One that fails does so at every tenth event of a
    key.
    """
    made = tr.App("visits")
    came, visited = made.topic("came", Seen, **options), made.topic("visited", Visited)

    @made.actor(name="Counter")
    class Visits(tr.Actor, order=order):
        count: int = 0
        if version > 1:
            latest_ms: int = 0

        @tr.process(came)
        def counted(self, event: Seen, ctx: tr.Context[str]) -> None:
            self.count += 1
            if version > 1:
                self.latest_ms = event.at_ms
            if fails and self.count % 10 == 0:
                raise ValueError("the tenth")
            ctx.emit(visited, Visited(ctx.key, self.count, version))

    return made


first, second, broken, unrelated = _visits(), _visits(2), _visits(2, fails=True), tr.App("visits")
repartitioned, ordered = _visits(repartition=True), _visits(order="event-time")
dead_lettering = _visits(order="event-time", on_error="dead-letter")
"""For what another producer has written: the ways to go on after its error."""


@unrelated.actor
class Parcel(tr.Actor):
    seen: int = 0

    @tr.process(unrelated.topic("parcels", Seen))
    def scanned(self, _event: Seen, _ctx: tr.Context[str]) -> None:
        self.seen += 1
