"""What docs/flights.md says of the history, on the whole of it; and how instants come out of clocks, by example."""

from collections import Counter
from datetime import UTC, date, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from schemas.flights import HOUR_MS, MINUTE_MS, Arrival, Cancellation, Departure
from services.flights import history
from services.flights.history import (
    NEW_YORK,
    ZONES_NOT_IN_TABLE,
    airframes,
    airport_zones,
    clock_ms,
    facts,
    facts_of,
    flights,
    in_order,
    instant_ms,
    observations,
)
from services.flights.load import TOPIC_OF, records, timed_records

DOCS = Path(__file__).resolve().parents[2] / "docs" / "flights.md"
BEGINNING_MS = instant_ms(2013, 1, 1, 0, NEW_YORK)


@cache
def year():
    return list(flights())


@cache
def year_of_facts():
    return in_order(airframes(BEGINNING_MS), observations(), year())


def clock(at_ms, zone):
    at = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(zone)
    return at.hour * 100 + at.minute


def hour_of(at_ms):
    return at_ms - at_ms % HOUR_MS


def counts():
    """What the page's table says, worked out from the data."""
    flown = [one for one in year() if one.departed_ms is not None]
    known_tails = {one.tail for one in airframes(0)}
    tails = {one.tail for one in year() if one.tail is not None}
    hours = {(one.airport, one.hour_ms) for one in observations()}
    unobserved = [one for one in year() if (one.origin, hour_of(one.scheduled_ms)) not in hours]
    zones = {name: ZoneInfo(zone) for name, zone in airport_zones().items()}
    days = [
        (
            datetime.fromtimestamp(one.scheduled_ms / 1_000, UTC).astimezone(NEW_YORK).date(),
            datetime.fromtimestamp(one.arrived_ms / 1_000, UTC).astimezone(zones[one.destination]).date(),
        )
        for one in flown
        if one.arrived_ms is not None
    ]
    latest_ms = behind = 0
    for _, event in year_of_facts():
        if isinstance(event, Departure):
            behind += event.departed_ms < latest_ms
            latest_ms = max(latest_ms, event.departed_ms)
    return {
        "flights": len(year()),
        "cancelled": len(year()) - len(flown),
        "without tail number": sum(one.tail is None for one in year()),
        "departed": len(flown),
        "arrived": len(days),
        "diverted": sum(one.diverted for one in flown),
        "diverted, and arrived at last": sum(one.diverted and one.arrived_ms is not None for one in flown),
        "never arrived": sum(one.arrived_ms is None for one in flown),
        "arrived on a later day than scheduled to depart": sum(there > here for here, there in days),
        "to an airport whose zone is not in the table": sum(
            one.destination in ZONES_NOT_IN_TABLE for one in year()
        ),
        "without weather for their hour": len(unobserved),
        "of these cancelled": sum(one.departed_ms is None for one in unobserved),
        "tail numbers": len(tails),
        "tail numbers not in the registry": len(tails - known_tails),
        "aircraft in the registry": len(known_tails),
        "observations of the weather": sum(1 for _ in observations()),
        "known after one that departed later": behind,
        "facts": len(year_of_facts()),
    }


def test_the_counts_on_the_page_are_those_of_the_data():
    page = DOCS.read_text("utf-8")
    found = counts()
    missing = [f"| {what} | {count:,} |" for what, count in found.items()]
    assert [line for line in missing if line not in page] == []
    assert found["flights"] == 336_776
    assert found["cancelled"] == 8_255
    assert found["without tail number"] == 2_512
    assert (found["tail numbers not in the registry"], found["tail numbers"]) == (721, 4_043)
    assert found["without weather for their hour"] == 1_556


def test_every_instant_shows_the_clock_time_of_the_table():
    zones = {name: ZoneInfo(zone) for name, zone in airport_zones().items()}
    rows = history.rows("flights.csv.zip", history.FLIGHT_COLUMNS)
    differ = []
    for row, flight in zip(rows, year(), strict=True):
        zone = zones[flight.destination]
        assert clock(flight.scheduled_ms, NEW_YORK) == int(row[4])
        assert clock(flight.scheduled_arrival_ms, zone) == int(row[7]) % 2400
        assert flight.departed_ms is None or clock(flight.departed_ms, NEW_YORK) == int(row[3]) % 2400
        if flight.arrived_ms is not None and clock(flight.arrived_ms, zone) != int(row[6]) % 2400:
            differ.append((row[6], clock(flight.arrived_ms, zone)))
    # Its clock was not put forward: there was no 2:03 in that night.
    assert differ == [("203", 303)]


def test_what_happens_takes_time():
    for flight in year():
        assert flight.scheduled_arrival_ms - flight.scheduled_ms >= 30 * MINUTE_MS
        if flight.departed_ms is not None and flight.took_off_ms is not None:
            assert flight.took_off_ms >= flight.departed_ms
            assert flight.arrived_ms is None or flight.arrived_ms > flight.took_off_ms


def test_a_flight_that_departed_has_an_aircraft_and_a_leg_has_one_name():
    legs = Counter((one.tail, one.leg) for _, one in year_of_facts() if isinstance(one, Departure))
    assert max(legs.values()) == 1
    assert legs.keys() >= {(one.tail, one.leg) for _, one in year_of_facts() if isinstance(one, Arrival)}


def test_facts_come_in_the_order_in_which_they_became_known():
    times = [known_ms for known_ms, _ in year_of_facts()]
    assert times == sorted(times)
    departed: set[str] = set()
    for _, event in year_of_facts():
        if isinstance(event, Departure):
            departed.add(event.leg)
        elif isinstance(event, Arrival):
            assert event.leg in departed


def test_a_stretch_of_days_has_the_flights_that_were_scheduled_in_it_and_all_that_came_of_them():
    some = facts(date(2013, 7, 10), date(2013, 7, 12))
    whole = [event for _, event in year_of_facts()]
    since, until = (instant_ms(2013, 7, day, 0, NEW_YORK) for day in (10, 12))
    expected = [
        event
        for event in whole
        if isinstance(event, (Departure, Cancellation, Arrival)) and since <= event.scheduled_ms < until
    ]
    assert [e for _, e in some if isinstance(e, (Departure, Cancellation, Arrival))] == expected
    assert len(expected) > 3_000


def test_every_fact_has_a_topic_whose_key_and_time_it_has():
    known: Counter[str] = Counter()
    for topic, event, known_ms in timed_records(facts(date(2013, 3, 9), date(2013, 3, 11))):
        assert topic is TOPIC_OF[type(event)]
        assert topic.encode_key(event) is not None
        assert known_ms >= instant_ms(2013, 3, 9, 0, NEW_YORK)
        known[topic.name] += 1
    assert set(known) == {"airframes", "departures", "arrivals", "weather", "cancellations"}
    assert sum(1 for _ in records(date(2013, 3, 9), date(2013, 3, 11))) == known.total()


# --- by example


def test_an_hour_that_is_left_out_is_taken_as_if_clocks_had_not_changed_and_of_one_that_comes_twice_the_first():
    three = clock_ms(2013, 3, 10, 300, NEW_YORK)
    assert clock_ms(2013, 3, 10, 159, NEW_YORK) == three - MINUTE_MS
    assert clock_ms(2013, 3, 10, 203, NEW_YORK) == three + 3 * MINUTE_MS
    assert clock_ms(2013, 11, 3, 130, NEW_YORK) == clock_ms(2013, 11, 3, 30, NEW_YORK) + HOUR_MS
    assert clock_ms(2013, 11, 3, 230, NEW_YORK) == clock_ms(2013, 11, 3, 30, NEW_YORK) + 3 * HOUR_MS


def test_a_flight_becomes_known_at_take_off_and_at_the_gate_or_when_it_should_have_left():
    flight = next(one for one in year() if one.departed_ms is not None and one.arrived_ms is not None)
    (off, departure), (there, arrival) = facts_of(flight)
    assert (off, there) == (flight.took_off_ms, flight.arrived_ms)
    assert isinstance(departure, Departure)
    assert isinstance(arrival, Arrival)
    assert departure.leg == arrival.leg
    ((known_ms, cancelled),) = facts_of(replace(flight, departed_ms=None, took_off_ms=None, tail=None))
    assert (known_ms, type(cancelled)) == (flight.scheduled_ms, Cancellation)


def test_a_departure_without_an_aircraft_is_refused():
    flight = next(one for one in year() if one.departed_ms is not None)
    with pytest.raises(ValueError, match="in no aircraft"):
        list(facts_of(replace(flight, tail=None)))


def test_a_table_with_other_columns_is_refused():
    with pytest.raises(ValueError, match="has the columns"):
        next(history.rows("planes.csv", history.AIRPORT_COLUMNS))


def test_a_history_that_is_not_installed_is_named_with_the_mend(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(history, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"requirements/data\.txt"):
        next(airframes(0))
