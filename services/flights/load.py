"""From the history to records: what goes into which topic, in the order in which it became known.

for topic, event in records(): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final, NamedTuple

import tailrace as tr
from schemas.flights import Airframe, Arrival, Cancellation, Departure, Weather
from services.flights import aircraft, airport
from services.flights.history import Event, Fact, facts

Topic = tr.Topic[Any, str]

TOPIC_OF: Final[Mapping[type[Event], Topic]] = {
    Airframe: aircraft.airframes,
    Departure: aircraft.departures,
    Arrival: aircraft.arrivals,
    Weather: airport.weather,
    Cancellation: airport.cancellations,
}


class Record(NamedTuple):
    """An event, the topic it goes to, and the record's timestamp: when the event became known."""

    topic: Topic
    event: Event
    known_ms: int


def records(since: date = date(2013, 1, 1), until: date = date(2014, 1, 1)) -> Iterator[tuple[Topic, Event]]:
    """The history of these days as (topic, event); ``until`` is not part of it."""
    for topic, event, _ in timed_records(facts(since, until)):
        yield topic, event


def timed_records(history: Iterable[Fact]) -> Iterator[Record]:
    """The topic of each fact. The topics' own events (movements) come from the services."""
    for known_ms, event in history:
        yield Record(TOPIC_OF[type(event)], event, known_ms)
