"""Airports, version 2: a cancelled flight counts towards congestion, as one that leaves three hours late.

Version 1 knows congestion by the flights that leave. In a storm most do not: an hour in which an airport cancelled all but a few
of its flights did not count as congested, and ended the run of hours around it. So the worst days had few alerts.

``tailrace ab`` shows what the rule changes over a year, and ``tailrace upgrade`` lets it take over: ``make demo`` does both.
"""

import tailrace as tr
from schemas.flights import (
    Cancellation,
    CongestionAlert,
    DepartureInWeather,
    HourlyStatistics,
    Movement,
    Weather,
)
from services.flights.airport import CONGESTED_DEPARTURES, CONGESTED_MINUTES, Hour, Hours

CANCELLED_MINUTES = 180
"""A cancelled flight counts as one with this delay: its passengers wait for another."""

app = tr.App("airport", version="2")
weather = app.topic("weather", Weather, idle_after="5s", late="handle")
movements = app.topic("movements", Movement, out_of_order="3h", watermark="upstream", late="handle")
cancellations = app.topic("cancellations", Cancellation, idle_after="5s", late="handle")
departures_in_weather = app.topic("departures-in-weather", DepartureInWeather)
hourly_statistics = app.topic("hourly-statistics", HourlyStatistics)
congestion_alerts = app.topic("congestion-alerts", CongestionAlert)


@app.actor
class Airport(Hours, order="event-time"):
    """One airport."""

    @staticmethod
    def is_congested(hour: Hour) -> bool:
        """Whether the flights of an hour are late on average, and enough to count, with the cancelled ones."""
        flights = hour.departures + hour.cancelled
        late_minutes = hour.delay_minutes + CANCELLED_MINUTES * hour.cancelled
        return flights >= CONGESTED_DEPARTURES and late_minutes >= CONGESTED_MINUTES * flights

    @tr.process(weather)
    def observed(self, weather: Weather, ctx: tr.Context[str]) -> None:
        """Store the weather of an hour."""
        self.hour(weather.hour_ms, ctx).weather = weather

    @tr.process(movements)
    def departed(self, movement: Movement, ctx: tr.Context[str]) -> None:
        """Count a departure in its hour, and join it with the weather."""
        ctx.emit(departures_in_weather, self.count(movement, ctx))

    @tr.process(cancellations)
    def cancelled(self, cancellation: Cancellation, ctx: tr.Context[str]) -> None:
        """Count a cancelled flight."""
        self.count_cancelled(cancellation, ctx)

    @tr.on_timer
    def complete(self, ctx: tr.Context[str]) -> None:
        """Emit the statistics of an hour: the watermark has passed it, or a flight of a past hour has become known."""
        statistics = self.revise(ctx)
        if statistics is not None:
            ctx.emit(hourly_statistics, statistics)

    @tr.on_timer("congested")
    def congested(self, ctx: tr.Context[str]) -> None:
        """No hour without congestion has cancelled this timer: emit one alert for the run of hours."""
        alert = self.alert(ctx)
        if alert is not None:
            ctx.emit(congestion_alerts, alert)
