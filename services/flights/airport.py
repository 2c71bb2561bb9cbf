"""Airports: departures joined with the weather, statistics for every hour of the schedule, and congestion alerts.

    movements      ──┐                ┌──►  departures-in-weather
    cancellations  ──┼──►  Airport  ──┼──►  hourly-statistics
    weather        ──┘                └──►  congestion-alerts

Events are handled in the order of event time. So the weather of an hour, whose event time is the beginning of the hour, is
there when the first departure of the hour is handled, whichever of the two was read first.

A flight belongs to the hour for which it was scheduled. It becomes known when it leaves. So a flight that leaves hours late may
belong to an hour that the watermark has passed. It then leads to a revision of that hour's statistics. So the last revision of
an hour does not depend on the watermark. An alert is not revised: it contains what was known at the time.
"""

import msgspec

import tailrace as tr
from schemas.flights import (
    HOUR_MS,
    Cancellation,
    CongestionAlert,
    DepartureInWeather,
    HourlyStatistics,
    Movement,
    Weather,
)

DELAYED_MINUTES = 15
"""A flight with at least this delay counts as delayed, as in the statistics of the industry."""
CONGESTED_MINUTES = 45
"""An hour is congested if its departures are at least this late on average."""
CONGESTED_DEPARTURES = 10
"""An hour with fewer departures does not count as congested."""
CONGESTED_HOURS = 4
"""An airport is congested after this many congested hours in a row."""

app = tr.App("airport")
# Declared first: the weather of an hour comes before departures of the same instant. There are gaps, and the observations end a
# day before the flights: then an airport no longer waits for them.
weather = app.topic("weather", Weather, idle_after="5s", late="handle")
# Many tasks write this topic, each at its own pace: the watermark that they publish covers all of them.
movements = app.topic("movements", Movement, out_of_order="3h", watermark="upstream", late="handle")
# Rare: after 5 s without one, an airport no longer waits for them. One that comes later leads to a revision.
cancellations = app.topic("cancellations", Cancellation, idle_after="5s", late="handle")
departures_in_weather = app.topic("departures-in-weather", DepartureInWeather)
hourly_statistics = app.topic("hourly-statistics", HourlyStatistics)
congestion_alerts = app.topic("congestion-alerts", CongestionAlert)


class Hour(msgspec.Struct):
    """The data of an hour so far."""

    weather: Weather | None = None
    departures: int = 0
    cancelled: int = 0
    delayed: int = 0
    delay_minutes: int = 0
    handed_minutes: int = 0
    longest_delay_minutes: int | None = None
    revision: int = 0


class Congestion(msgspec.Struct):
    """A run of congested hours."""

    since_ms: int
    hours: int = 0
    departures: int = 0
    delay_minutes: int = 0


class Hours(tr.Actor):
    """The hours of an airport, and a run of congested ones: what the versions of this service share.

    An hour expires when all of its flights must have left.
    """

    hours: tr.MapState[int, Hour] = tr.field(ttl="3d")  # by their beginning
    congestion: Congestion | None = None

    def count(self, movement: Movement, ctx: tr.Context[str]) -> DepartureInWeather:
        """Count a departure in its hour. Returns it joined with the weather, if there is an observation."""
        hour = self.hour(movement.scheduled_ms - movement.scheduled_ms % HOUR_MS, ctx)
        delay = movement.delay_minutes
        hour.departures += 1
        hour.delayed += delay >= DELAYED_MINUTES
        hour.delay_minutes += delay
        hour.handed_minutes += movement.handed_minutes
        longest = hour.longest_delay_minutes
        hour.longest_delay_minutes = delay if longest is None else max(longest, delay)
        return in_weather(movement, hour.weather)

    def count_cancelled(self, cancellation: Cancellation, ctx: tr.Context[str]) -> None:
        """Count a cancelled flight in the hour for which it was scheduled."""
        self.hour(cancellation.scheduled_ms - cancellation.scheduled_ms % HOUR_MS, ctx).cancelled += 1

    def revise(self, ctx: tr.Context[str]) -> HourlyStatistics | None:
        """The next revision of the hour of this timer. None if no flight was scheduled for it."""
        hour_ms = ctx.event_time + 1 - HOUR_MS
        hour = self.hours.get(hour_ms)
        if hour is None:
            return None
        hour.revision += 1
        if hour.revision == 1:
            self._watch(hour_ms, hour, ctx)
        if not hour.departures and not hour.cancelled:
            return None
        return HourlyStatistics(
            airport=ctx.key,
            hour_ms=hour_ms,
            revision=hour.revision,
            departures=hour.departures,
            cancelled=hour.cancelled,
            delayed=hour.delayed,
            delay_minutes=hour.delay_minutes,
            handed_minutes=hour.handed_minutes,
            longest_delay_minutes=hour.longest_delay_minutes,
            weather=hour.weather,
        )

    def alert(self, ctx: tr.Context[str]) -> CongestionAlert | None:
        """An alert, if the run of hours that has ended here is long enough."""
        run = self.congestion
        assert run is not None
        if run.hours < CONGESTED_HOURS:
            return None
        return CongestionAlert(ctx.key, run.since_ms, run.hours, run.departures, run.delay_minutes)

    @staticmethod
    def is_congested(hour: Hour) -> bool:
        """Whether enough flights of an hour have left, and late on average."""
        late = hour.delay_minutes >= CONGESTED_MINUTES * hour.departures
        return hour.departures >= CONGESTED_DEPARTURES and late

    def hour(self, hour_ms: int, ctx: tr.Context[str]) -> Hour:
        """The hour, created if necessary. Sets the timer that emits its statistics, for the first time or again."""
        hour = self.hours.get(hour_ms)
        if hour is None:
            hour = self.hours[hour_ms] = Hour()
            ctx.set_timer(hour_ms + HOUR_MS - 1)
        elif hour.revision:
            ctx.set_timer(hour_ms + HOUR_MS - 1)  # in the past: it fires right after this handler
        return hour

    def _watch(self, hour_ms: int, hour: Hour, ctx: tr.Context[str]) -> None:
        """Begin, continue or end a run of congested hours."""
        if not self.is_congested(hour):
            self.congestion = None
            ctx.cancel_timer("congested")
            return
        if self.congestion is None:
            self.congestion = Congestion(hour_ms)
            ctx.set_timer(hour_ms + CONGESTED_HOURS * HOUR_MS, "congested")
        self.congestion.hours += 1
        self.congestion.departures += hour.departures
        self.congestion.delay_minutes += hour.delay_minutes


@app.actor
class Airport(Hours, order="event-time"):
    """One airport."""

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


def in_weather(movement: Movement, weather: Weather | None) -> DepartureInWeather:
    """A departure joined with the weather of its hour."""
    return DepartureInWeather(
        movement.airport,
        movement.carrier,
        movement.flight,
        movement.scheduled_ms,
        movement.delay_minutes,
        weather,
    )
