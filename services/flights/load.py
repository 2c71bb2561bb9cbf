"""Converts the history to records: the facts with their topics, in the order in which they became known.

for topic, event in records(): ...
load(log, facts())
python -m services.flights.load --log kafka://localhost:9092/flights.    # the year, if the log has nothing of it yet
"""

from __future__ import annotations

import argparse
import sys
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
from tailrace.history.reading.stretches import scan
from tailrace.log import Log
from tailrace.log.interface import StoredLog
from tailrace.log.opening import open_log

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


def load(log: StoredLog, history: Iterable[Fact], on_progress: Callable[[int], None] = lambda _: None) -> int:
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


def main(arguments: list[str]) -> int:
    """Append the history to a log that has nothing of it. Returns the exit code: 1 if only a part of it is there."""
    parser = argparse.ArgumentParser(prog="services.flights.load", description="Load the flights of 2013.")
    parser.add_argument("--log", default="data/log", help="folder, or URL of a log on Kafka")
    parser.add_argument("--since", type=date.fromisoformat, default=date(2013, 1, 1), help="the first day")
    parser.add_argument(
        "--until", type=date.fromisoformat, default=date(2014, 1, 1), help="the day after the last"
    )
    given = parser.parse_args(arguments)
    log = open_log(given.log, create=True)
    try:
        for app in (aircraft.app, airport.app):
            prepare_topics(log, app.plan(), create_declared=True)
        there = sum(_records_of(log, topic.name) for topic in TOPIC_OF.values())
        history = facts(given.since, given.until)
        if there in (0, len(history)):
            loaded = 0 if there else load(log, history)
            sys.stdout.write(f"{loaded:,} records loaded, {there:,} were there\n")
            return 0
    finally:
        log.close()
    said = f"{there:,} of {len(history):,} records are there: delete the topics and load them again\n"
    sys.stderr.write(said)
    return 1


def _records_of(log: Log, topic: str) -> int:
    """Number of records. Offsets do not say it: on Kafka, markers of transactions have some."""
    return sum(len(list(scan(log, topic, number))) for number in range(log.partitions(topic)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
