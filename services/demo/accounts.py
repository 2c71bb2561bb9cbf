"""Accounts: compares the outputs of the services with the history itself, without a replay.

A replay shows that every result can be reproduced. Only the history shows that the results are right: the kill must not have
lost a flight, or counted one twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tailrace as tr
from schemas.flights import Arrival, Cancellation, Departure, DepartureInWeather, Movement
from services.flights import aircraft, airport
from services.flights.history import Fact
from services.flights.results import Results
from tailrace.log import Log, TopicPartition

E = TypeVar("E")
Leg: TypeAlias = tuple[str, str, int, int, int]
"""Airport, carrier, flight, scheduled departure, delay."""
Landing: TypeAlias = tuple[str, str, int, int]
"""Aircraft, carrier, flight, arrival."""


class Accounts(NamedTuple):
    """The expected outputs. Faults during the run must not change them."""

    departures: Counter[Leg]
    arrivals: Counter[Landing]
    cancellations: int

    @classmethod
    def of(cls, history: Iterable[Fact]) -> Accounts:
        """The outputs that a history must lead to."""
        departures: Counter[Leg] = Counter()
        arrivals: Counter[Landing] = Counter()
        cancellations = 0
        for _, event in history:
            match event:
                case Departure():
                    departures[
                        event.origin, event.carrier, event.flight, event.scheduled_ms, event.delay_minutes
                    ] += 1
                case Arrival():
                    arrivals[event.tail, event.carrier, event.flight, event.arrived_ms] += 1
                case Cancellation():
                    cancellations += 1
                case _:
                    pass
        return cls(departures, arrivals, cancellations)

    def errors(self, log: Log, results: Results) -> list[str]:
        """The errors in the outputs of the services; an empty list if they are right."""
        found = list(_compared("movements", self.departures, map(leg_of, read(log, aircraft.movements))))
        joined = map(leg_of, read(log, airport.departures_in_weather))
        found += _compared("departures-in-weather", self.departures, joined)
        landed = Counter(
            (one.tail, one.carrier, one.flight, one.arrived_ms) for one in read(log, aircraft.legs_finished)
        )
        if more := landed - self.arrivals:
            # A missing one is not an error: the leg of an arrival may have been closed as lost.
            found.append(f"legs-finished: {more.total():,} too many, such as {next(iter(more))}")
        for what, said, due in (
            ("departures", sum(hour.departures for hour in results.hours), self.departures.total()),
            ("cancellations", sum(hour.cancelled for hour in results.hours), self.cancellations),
        ):
            if said != due:
                found.append(f"hourly-statistics: {said:,} {what}, not {due:,}")
        return found


def leg_of(event: Movement | DepartureInWeather) -> Leg:
    """The departure, in the form in which both events describe it."""
    return event.airport, event.carrier, event.flight, event.scheduled_ms, event.delay_minutes


def read(log: Log, topic: tr.Topic[E, Any]) -> Iterator[E]:
    """All events of a topic, one partition after the other."""
    for number in range(log.partitions(topic.name)):
        reader = log.reader({TopicPartition(topic.name, number): 0})
        while records := reader.fetch(topic.name, number, 20_000).records:
            for record in records:
                yield topic.decode(record.value or b"")
        reader.close()


def results_of(log: Log) -> Results:
    """The final results of the services."""
    events: list[Any] = [*read(log, airport.hourly_statistics), *read(log, airport.congestion_alerts)]
    events += read(log, aircraft.aircraft_overdue)
    return Results.of(events)


def _compared(name: str, due: Counter[Leg], said: Iterable[Leg]) -> Iterator[str]:
    found = Counter(said)
    for word, wrong in (("missing", due - found), ("too many", found - due)):
        if wrong:
            yield f"{name}: {wrong.total():,} {word}, such as {next(iter(wrong))}"
