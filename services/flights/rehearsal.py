"""Runs both services over a part of the history, in one process, with the harness: without a server and without waiting.

The two get the history in turns of a few hours. After each turn, the outputs and the watermark of the aircraft service are
passed to the airport service, as a log would do it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import groupby
from types import TracebackType
from typing import Any, Self

from schemas.flights import HOUR_MS
from services.flights import aircraft, airport
from services.flights.history import Fact
from services.flights.load import Record, timed_records
from services.flights.results import Results
from tailrace.core.records import Output
from tailrace.testing import Emitted, Harness

TURN_MS = 6 * HOUR_MS
BEHIND_MS = 3 * HOUR_MS
"""How far departures may be behind the schedule: the topic's ``out_of_order``."""


class Rehearsal:
    """Two harnesses; the second reads the outputs of the first. A context manager."""

    def __init__(self, **how: Any) -> None:
        """``how`` are the options for both harnesses."""
        self._stack = ExitStack()
        self.aircraft = self._stack.enter_context(Harness(aircraft.app, **how))
        self.airport = self._stack.enter_context(Harness(airport.app, **how))

    def play(self, history: Iterable[Fact], turn_ms: int = TURN_MS) -> Results:
        """Feed the whole history, then end all inputs. Returns the results."""
        own = {one.name for one in aircraft.app.plan().inputs}
        for _, group in groupby(timed_records(history), lambda record: record.known_ms // turn_ms):
            records = list(group)
            append(self.aircraft, (one for one in records if one.topic.name in own))
            append(self.airport, (one for one in records if one.topic.name not in own))
            # The registry comes first. After that, nothing holds the aircraft back.
            self._pass_on(self.aircraft.fall_idle(aircraft.airframes))
        self._pass_on(self.aircraft.end_of_input())
        self.airport.end_of_input()
        return self.results()

    def _pass_on(self, emitted: Emitted) -> None:
        append(
            self.airport,
            (
                Record(airport.movements, out.event, out.timestamp_ms)
                for out in emitted
                if out.topic == airport.movements.name
            ),
        )
        self.airport.advance_watermark(max(0, self.watermark - BEHIND_MS))

    @property
    def watermark(self) -> int:
        """The watermark of all aircraft tasks together."""
        return min(self.aircraft.watermark(number) for number in range(self.aircraft.plan.partitions))

    def results(self) -> Results:
        """The results so far."""
        return Results.of(
            [
                *self.airport.emitted(airport.hourly_statistics),
                *self.airport.emitted(airport.congestion_alerts),
                *self.aircraft.emitted(aircraft.aircraft_overdue),
            ]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def append(h: Harness, records: Iterable[Record]) -> None:
    """Append records to a harness' log at once, so that the inputs are merged as in a worker."""
    h.log.append_all(
        [Output(topic.name, topic.encode_key(event), topic.encode(event), at) for topic, event, at in records]
    )
