"""Forecast: when an aircraft takes off, the delay with which it will arrive, by a model that was trained on this actor's past states.

departures  ──┐
arrivals    ──┴──►  Aircraft  ──►  forecasts
"""

from pathlib import Path

import msgspec

import tailrace as tr
from schemas.flights import MINUTE_MS, Arrival, Departure
from services.lab.model import pinned

MODEL = pinned(Path(__file__).with_name("arrival-delay-1.json"), digest="8efe5f53dc7495e2")
"""Training gives another file and its digest. History is replayed with the one that it was made with."""


class Forecast(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """The expected delay of an arrival."""

    tail: tr.Key[str]
    carrier: str
    flight: int
    departed_ms: tr.EventTime[int]
    arrival_delay: float
    """In minutes."""
    model: str


app = tr.App("forecast")
departures = app.topic("departures", Departure, out_of_order="1h", late="handle")
arrivals = app.topic("arrivals", Arrival, late="handle")
forecasts = app.topic("forecasts", Forecast)


@app.actor
class Aircraft(tr.Actor, order="event-time"):
    """The features of an aircraft: what is known about it before it departs."""

    legs: int = 0
    caught_up: int = 0
    """Minutes that its last leg made up for in the air."""
    last_delay: int = 0
    """Minutes by which it was late at its last arrival."""
    on_its_way: dict[str, Departure] = tr.field(default_factory=dict)

    @tr.process(departures)
    def departed(self, departure: Departure, ctx: tr.Context[str]) -> None:
        """Predict the delay of the arrival."""
        duration = (departure.scheduled_arrival_ms - departure.scheduled_ms) // MINUTE_MS
        delay = MODEL.predict([departure.delay_minutes, duration, self.last_delay, self.caught_up])
        ctx.emit(
            forecasts,
            Forecast(
                departure.tail,
                departure.carrier,
                departure.flight,
                departure.departed_ms,
                delay,
                MODEL.version,
            ),
        )
        self.on_its_way[departure.leg] = departure

    @tr.process(arrivals)
    def arrived(self, arrival: Arrival, ctx: tr.Context[str]) -> None:
        """Keep what the leg says about the aircraft."""
        departure = self.on_its_way.pop(arrival.leg, None)
        if departure is not None:
            self.legs += 1
            self.last_delay = (arrival.arrived_ms - departure.scheduled_arrival_ms) // MINUTE_MS
            self.caught_up = departure.delay_minutes - self.last_delay
