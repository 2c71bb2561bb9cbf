"""An app of two actors, one ordered and one that takes messages as they arrive, and events for it that come out of order."""

from __future__ import annotations

from random import Random

import msgspec

import tailrace as tr
from tailrace.core.records import Output


class Ride(msgspec.Struct):
    """A ride on a bike."""

    bike: str
    at: int
    rider: str
    km: int


class Ridden(msgspec.Struct):
    """What a rider hears of it."""

    km: int
    at: int


class Due(msgspec.Struct):
    """A bike that is to be looked at."""

    bike: str
    km: int


app = tr.App("riding", partitions=3)
rides = app.topic("rides", Ride, key="bike", event_time="at", out_of_order=40)
due = app.topic("due", Due, key="bike")


@app.actor
class Bike(tr.Actor, order="event-time"):
    """Sums up, and tells its riders."""

    km: int = 0
    fees: int = 0

    @tr.process(rides)
    def ride(self, event: Ride, ctx: tr.Context[str]) -> None:
        """Take a ride."""
        self.km += event.km
        self.fees += event.km
        ctx.send(Rider, event.rider, Ridden(event.km, event.at))
        if self.km % 100 > 80:
            ctx.emit(due, Due(event.bike, self.km))


@app.actor
class Rider(tr.Actor):
    """Counts."""

    km: int = 0
    rides: int = 0

    @tr.on_message
    def ridden(self, message: Ridden, ctx: tr.Context[str]) -> None:
        """Take a message."""
        self.km += message.km
        self.rides += 1


def some_rides(seed: int, count: int = 300) -> list[Ride]:
    """Rides in the order in which they come: each has a time of its own, and is at most 40 ms late."""
    random = Random(seed)
    found = [
        Ride(f"bike-{random.randrange(40)}", 10 * one, f"rider-{random.randrange(20)}", random.randint(1, 40))
        for one in range(1, count + 1)
    ]
    return sorted(found, key=lambda one: one.at + random.randrange(40))


def outputs(some: list[Ride]) -> list[Output]:
    """Rides as records."""
    return [Output("rides", one.bike.encode(), msgspec.json.encode(one), one.at) for one in some]
