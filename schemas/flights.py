"""Flights: what becomes known of departures, arrivals, weather and aircraft, and what the services make of it.

All instants are milliseconds since the epoch, UTC. A leg is one flight of one aircraft; the flight and its scheduled
departure name it. How the instants come out of the published history: docs/flights.md.
"""

import msgspec

import tailrace as tr

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def leg_name(carrier: str, flight: int, scheduled_ms: int) -> str:
    """What tells the legs of an aircraft apart; a few are scheduled for the same minute."""
    return f"{carrier}{flight}@{scheduled_ms}"


# --- what becomes known


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
        """How late it left, negative if early."""
        return (self.departed_ms - self.scheduled_ms) // MINUTE_MS

    @property
    def expected_ms(self) -> int:
        """When it will be there if it takes as long as scheduled from now on."""
        return self.departed_ms + self.scheduled_arrival_ms - self.scheduled_ms


class Arrival(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft is at the gate of its destination, if by a detour."""

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
    """An aircraft as the registry has it."""

    tail: tr.Key[str]
    since_ms: tr.EventTime[int]
    """Since when the registry is taken to say so."""
    manufacturer: str
    model: str
    seats: int
    built: int | None


# --- what is said of aircraft


class Movement(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """An aircraft has left an airport: what the airport wants to know of a departure."""

    airport: tr.Key[str]
    tail: str
    carrier: str
    flight: int
    scheduled_ms: tr.EventTime[int]
    delay_minutes: int
    handed_minutes: int
    """How much of the delay the aircraft may have brought from its leg before."""


class LegFinished(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """A leg from gate to gate."""

    tail: tr.Key[str]
    number: int
    """How many the aircraft has finished, this one included."""
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
    """An aircraft had not arrived when it should have been there for an hour."""

    tail: tr.Key[str]
    carrier: str
    flight: int
    origin: str
    destination: str
    departed_ms: int
    expected_ms: int


# --- what is said of airports


class DepartureInWeather(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """A departure, and the weather of the hour it was scheduled in; None if that was never observed."""

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
    """1 for the first; each flight that becomes known later makes another."""
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
    """An airport's departures have been badly late for hours on end."""

    airport: tr.Key[str]
    since_ms: int
    hours: int
    departures: int
    delay_minutes: int
