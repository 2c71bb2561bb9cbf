"""Converts the history to records: the facts with their topics, in the order in which they became known.

for topic, event in records(): ...
load(log, facts())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from itertools import islice
from typing import Any, Final, NamedTuple

import tailrace as tr
from schemas.flights import Airframe, Arrival, Cancellation, Departure, Weather
from services.flights import aircraft, airport
from services.flights.history import Event, Fact, facts
from tailrace.core.records import Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.kafka import KafkaLog

Topic = tr.Topic[Any, str]

TOPIC_OF: Final[Mapping[type[Event], Topic]] = {
    Airframe: aircraft.airframes,
    Departure: aircraft.departures,
    Arrival: aircraft.arrivals,
    Weather: airport.weather,
    Cancellation: airport.cancellations,
}

BATCH: Final = 20_000
"""Number of records appended at once."""


class Record(NamedTuple):
    """An event, the topic it goes to, and the record's timestamp: when the event became known."""

    topic: Topic
    event: Event
    known_ms: int


def records(since: date = date(2013, 1, 1), until: date = date(2014, 1, 1)) -> Iterator[tuple[Topic, Event]]:
    """The history of these days as (topic, event); ``until`` is exclusive."""
    for topic, event, _ in timed_records(facts(since, until)):
        yield topic, event


def timed_records(history: Iterable[Fact]) -> Iterator[Record]:
    """The facts as records of their topics. Movements are not among them: the services emit them."""
    for known_ms, event in history:
        yield Record(TOPIC_OF[type(event)], event, known_ms)


def load(
    log: EmbeddedLog | KafkaLog, history: Iterable[Fact], on_progress: Callable[[int], None] = lambda _: None
) -> int:
    """Append the history to a log, and create its topics. Returns the number of records, also passed to ``on_progress``."""
    for app in (aircraft.app, airport.app):
        prepare_topics(log, app.plan(), create_declared=True)
    outputs = (
        Output(topic.name, topic.encode_key(event), topic.encode(event), known_ms)
        for topic, event, known_ms in timed_records(history)
    )
    loaded = 0
    while batch := list(islice(outputs, BATCH)):
        log.append_all(batch)
        loaded += len(batch)
        on_progress(loaded)
    return loaded
