"""The apps that processes of these tests run: ``app`` counts, ``naps`` takes its time, and the versions of an app that counts visits."""

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
    """How often, when it was quiet."""

    key: tr.Key[str]
    count: int


app = tr.App("totals", on_error="dead-letter")
seen = app.topic("seen", Seen)
totals = app.topic("totals", Total)


@app.actor
class Counter(tr.Actor):
    """Counts of a key, with a timer."""

    count: int = 0

    @tr.process(seen)
    def counted(self, event: Seen, ctx: tr.Context[str]) -> None:
        """Count, and look later."""
        self.count += 1
        ctx.set_timer(ctx.event_time + QUIET_MS, name="quiet")

    @tr.on_timer("quiet")
    def quiet(self, ctx: tr.Context[str]) -> None:
        """Emit the count."""
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
    """Sleeps."""

    count: int = 0

    @tr.process(taken)
    def nap(self, event: Nap, ctx: tr.Context[str]) -> None:
        """Take as long as the event says."""
        time.sleep(event.seconds)
        self.count += 1
        ctx.emit(rested, Total(ctx.key, self.count))


# --- versions of an app, and another service that was given its name by mistake


class Visited(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often, and by which version of the code."""

    key: tr.Key[str]
    count: int
    version: int


first, second, broken, unrelated = (tr.App("visits") for _ in range(4))


@first.actor(name="Counter")
class First(tr.Actor):
    """Version 1."""

    count: int = 0

    @tr.process(first.topic("came", Seen))
    def counted(self, _event: Seen, ctx: tr.Context[str]) -> None:
        """Count."""
        self.count += 1
        ctx.emit(_visited_1, Visited(ctx.key, self.count, 1))


_visited_1 = first.topic("visited", Visited)


@second.actor(name="Counter")
class Second(tr.Actor):
    """Version 2: the state has one field more. ``App(version=)`` was forgotten."""

    count: int = 0
    latest_ms: int = 0

    @tr.process(second.topic("came", Seen))
    def counted(self, event: Seen, ctx: tr.Context[str]) -> None:
        """Count."""
        self.count += 1
        self.latest_ms = event.at_ms
        ctx.emit(_visited_2, Visited(ctx.key, self.count, 2))


_visited_2 = second.topic("visited", Visited)


@broken.actor(name="Counter")
class Broken(tr.Actor):
    """A version that fails at every tenth event of a key."""

    count: int = 0
    latest_ms: int = 0

    @tr.process(broken.topic("came", Seen))
    def counted(self, _event: Seen, ctx: tr.Context[str]) -> None:
        """Count, and fail."""
        self.count += 1
        if self.count % 10 == 0:
            raise ValueError("the tenth")
        ctx.emit(_visited_3, Visited(ctx.key, self.count, 3))


_visited_3 = broken.topic("visited", Visited)


@unrelated.actor
class Parcel(tr.Actor):
    """Another service."""

    seen: int = 0

    @tr.process(unrelated.topic("parcels", Seen))
    def scanned(self, _event: Seen, _ctx: tr.Context[str]) -> None:
        """Count."""
        self.seen += 1


# --- an app that another producer writes for, with the ways to go on after its error


class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Something was ordered."""

    key: tr.Key[str]
    at_ms: tr.EventTime[int]


def _counts(order: Any = "arrival", **options: Any) -> tr.App:
    made = tr.App("counts", partitions=3)
    orders = made.topic("orders", Order, **options)
    counted = made.topic("totals", Total)

    @made.actor(name="Counter")
    class Orders(tr.Actor, order=order):
        count: int = 0

        @tr.process(orders)
        def ordered(self, _event: Order, ctx: tr.Context[str]) -> None:
            self.count += 1
            ctx.emit(counted, Total(ctx.key, self.count))

    return made


counts, repartitioned = _counts(), _counts(repartition=True)
ordered, dead_lettering = _counts("event-time"), _counts("event-time", on_error="dead-letter")
