"""The results of a run of both services: the last revision of every hour, the overdue aircraft, the alerts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from schemas.flights import AircraftOverdue, CongestionAlert, HourlyStatistics


class Results(NamedTuple):
    """Results sorted by time, so that two runs with the same outputs have equal results."""

    hours: list[HourlyStatistics]
    """The last revision of each hour of each airport."""
    overdue: list[AircraftOverdue]
    alerts: list[CongestionAlert]

    @classmethod
    def of(cls, events: Iterable[Any]) -> Self:
        """Select the results from events of any topics, in any order."""
        hours: dict[tuple[int, str], HourlyStatistics] = {}
        overdue: list[AircraftOverdue] = []
        alerts: list[CongestionAlert] = []
        for event in events:
            match event:
                case HourlyStatistics():
                    place = event.hour_ms, event.airport
                    if place not in hours or hours[place].revision < event.revision:
                        hours[place] = event
                case AircraftOverdue():
                    overdue.append(event)
                case CongestionAlert():
                    alerts.append(event)
                case _:
                    pass
        overdue.sort(key=lambda one: (one.departed_ms, one.tail))
        alerts.sort(key=lambda one: (one.since_ms, one.airport))
        return cls([hours[place] for place in sorted(hours)], overdue, alerts)
