"""Flights: departures, arrivals, weather and aircraft as they become known, and the results of the services.

All instants are milliseconds since the epoch, UTC. A leg is one flight of one aircraft; the flight and its scheduled
departure identify it. docs/flights.md explains how the instants are derived from the published history.
"""

import msgspec

import tailrace as tr

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def leg_name(carrier: str, flight: int, scheduled_ms: int) -> str:
    """The name of a leg, unique for its aircraft: some legs are scheduled for the same minute."""
    return f"{carrier}{flight}@{scheduled_ms}"


# --- inputs: facts as they become known


class Departure(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft has left its gate; known when it has left the ground."""

    tail: tr.Key[str]
    carrier: str
    flight: int
    origin: str
    destination: str
    scheduled_ms: int
    departed_ms: tr.EventTime[int]
    scheduled_arrival_ms: int

    @property
    def leg(self) -> str:
        """The name of the leg, for the aircraft."""
        return leg_name(self.carrier, self.flight, self.scheduled_ms)

    @property
    def delay_minutes(self) -> int:
        """The delay of the departure, negative if it was early."""
        return (self.departed_ms - self.scheduled_ms) // MINUTE_MS

    @property
    def expected_ms(self) -> int:
        """The expected arrival, if the flight takes as long as scheduled."""
        return self.departed_ms + self.scheduled_arrival_ms - self.scheduled_ms


class Arrival(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft is at the gate of its destination, perhaps after a diversion."""

    tail: tr.Key[str]
    carrier: str
    flight: int
    scheduled_ms: int
    """The scheduled departure."""
    arrived_ms: tr.EventTime[int]
    diverted: bool = False

    @property
    def leg(self) -> str:
        """The name of the leg, for the aircraft."""
        return leg_name(self.carrier, self.flight, self.scheduled_ms)


class Cancellation(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """A flight will not depart. Often no aircraft had been chosen for it."""

    airport: tr.Key[str]
    carrier: str
    flight: int
    destination: str
    scheduled_ms: tr.EventTime[int]
    tail: str | None = None


class Weather(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An airport's weather in the hour that begins at ``hour_ms``; None where it was not measured."""

    airport: tr.Key[str]
    hour_ms: tr.EventTime[int]
    temperature_f: float | None
    wind_mph: float | None
    gust_mph: float | None
    precipitation_in: float
    visibility_miles: float


class Airframe(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft, as the registry describes it."""

    tail: tr.Key[str]
    since_ms: tr.EventTime[int]
    """The time from which this entry counts."""
    manufacturer: str
    model: str
    seats: int
    built: int | None


# --- outputs of the service aircraft


class Movement(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft has left an airport: the part of a departure that the airport needs."""

    airport: tr.Key[str]
    tail: str
    carrier: str
    flight: int
    scheduled_ms: tr.EventTime[int]
    delay_minutes: int
    handed_minutes: int
    """The part of the delay that may come from the aircraft's previous leg."""


class LegFinished(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """A leg from gate to gate."""

    tail: tr.Key[str]
    number: int
    """The number of legs that the aircraft has finished, including this one."""
    carrier: str
    flight: int
    origin: str
    destination: str
    departed_ms: int
    arrived_ms: tr.EventTime[int]
    departure_delay_minutes: int
    arrival_delay_minutes: int
    handed_minutes: int
    seats: int | None
    """None for an aircraft that the registry does not know."""
    diverted: bool


class AircraftOverdue(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft has not arrived an hour after its expected arrival."""

    tail: tr.Key[str]
    carrier: str
    flight: int
    origin: str
    destination: str
    departed_ms: int
    expected_ms: int


# --- outputs of the service airport


class DepartureInWeather(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """A departure, and the weather in its scheduled hour; None if there is no observation."""

    airport: tr.Key[str]
    carrier: str
    flight: int
    scheduled_ms: int
    delay_minutes: int
    weather: Weather | None


class HourlyStatistics(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """The flights of an airport that were scheduled in one hour. A later revision replaces an earlier one."""

    airport: tr.Key[str]
    hour_ms: int
    revision: int
    """1 for the first; each flight that becomes known later leads to another revision."""
    departures: int
    cancelled: int
    delayed: int
    """Departures 15 minutes late or more."""
    delay_minutes: int
    """The sum over all departures; one that left early counts as negative."""
    handed_minutes: int
    longest_delay_minutes: int | None
    weather: Weather | None

    @property
    def mean_delay_minutes(self) -> float | None:
        """The mean delay of the departures, None if there were none."""
        return self.delay_minutes / self.departures if self.departures else None


class CongestionAlert(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An airport's departures have had long delays for several hours in a row."""

    airport: tr.Key[str]
    since_ms: int
    hours: int
    departures: int
    delay_minutes: int
