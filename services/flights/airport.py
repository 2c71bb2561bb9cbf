"""Airports: departures joined with the weather, statistics of every hour of the schedule, and alerts of congestion.

    movements      ──┐                ┌──►  departures-in-weather
    cancellations  ──┼──►  Airport  ──┼──►  hourly-statistics
    weather        ──┘                └──►  congestion-alerts

An hour is what was scheduled in it. A flight becomes known when it leaves, so one that leaves hours late belongs to an
hour that event time may have passed: it is late in both senses, and makes a revision of that hour's statistics. The
last revision of an hour is therefore the same however far event time had come. An alert is not revised: it says
what was known.
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
"""From here on a flight counts as delayed, as in the industry's own statistics."""
CONGESTED_MINUTES = 45
"""An hour is congested whose departures are this late on average."""
CONGESTED_DEPARTURES = 10
"""An hour with fewer departures says nothing about congestion."""
CONGESTED_HOURS = 4
"""An airport is congested after so many congested hours on end."""

app = tr.App("airport")
# Many tasks write this topic, each at its own pace: what they publish says how far all of them are.
movements = app.topic("movements", Movement, out_of_order="3h", watermark="upstream")
# Rare, so nobody waits for one; one that comes after its hour makes a revision like any other.
cancellations = app.topic("cancellations", Cancellation, watermark=False)
# There are gaps, and the observations end a day before the flights: then an airport waits for them no longer.
weather = app.topic("weather", Weather, idle_after="5s")
departures_in_weather = app.topic("departures-in-weather", DepartureInWeather)
hourly_statistics = app.topic("hourly-statistics", HourlyStatistics)
congestion_alerts = app.topic("congestion-alerts", CongestionAlert)


class Hour(msgspec.Struct):
    """What is known of an hour so far."""

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


@app.actor
class Airport(tr.Actor):
    """One airport: its hours, which are forgotten when no flight of them can still be on the ground."""

    hours: tr.MapState[int, Hour] = tr.field(ttl="3d")  # by their beginning
    waiting: tr.MapState[tuple[int, int], Movement]  # for the weather: by hour and running number
    seen: int = 0
    congestion: Congestion | None = None

    @tr.process(weather)
    def observed(self, weather: Weather, ctx: tr.Context[str]) -> None:
        """Keep the weather for its hour, and join those that have waited for it."""
        hour = self._hour(weather.hour_ms, ctx)
        hour.weather = weather
        self._join(weather.hour_ms, weather, ctx)

    @tr.process(movements)
    def departed(self, movement: Movement, ctx: tr.Context[str]) -> None:
        """Count a departure in its hour, and join it with the weather, now or when that is known."""
        hour_ms = movement.scheduled_ms - movement.scheduled_ms % HOUR_MS
        hour = self._hour(hour_ms, ctx)
        delay = movement.delay_minutes
        hour.departures += 1
        hour.delayed += delay >= DELAYED_MINUTES
        hour.delay_minutes += delay
        hour.handed_minutes += movement.handed_minutes
        longest = hour.longest_delay_minutes
        hour.longest_delay_minutes = delay if longest is None else max(longest, delay)
        if hour.weather is None and not hour.revision:
            self.seen += 1
            self.waiting[hour_ms, self.seen] = movement
        else:
            ctx.emit(departures_in_weather, in_weather(movement, hour.weather))

    @tr.process(cancellations)
    def cancelled(self, cancellation: Cancellation, ctx: tr.Context[str]) -> None:
        """Count a cancelled flight in the hour it was scheduled for."""
        hour = self._hour(cancellation.scheduled_ms - cancellation.scheduled_ms % HOUR_MS, ctx)
        hour.cancelled += 1

    @tr.on_timer
    def complete(self, ctx: tr.Context[str]) -> None:
        """Event time has passed an hour, or a flight of such an hour has become known: tell the statistics."""
        hour_ms = ctx.event_time + 1 - HOUR_MS
        hour = self.hours.get(hour_ms)
        if hour is None:
            return
        hour.revision += 1
        if hour.revision == 1:
            self._join(hour_ms, hour.weather, ctx)
            self._watch(hour_ms, hour, ctx)
        if hour.departures or hour.cancelled:
            ctx.emit(
                hourly_statistics,
                HourlyStatistics(
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
                ),
            )

    @tr.on_timer("congested")
    def congested(self, ctx: tr.Context[str]) -> None:
        """There was no better hour to stop this timer: alert, once until there is."""
        run = self.congestion
        assert run is not None
        if run.hours >= CONGESTED_HOURS:
            ctx.emit(
                congestion_alerts,
                CongestionAlert(ctx.key, run.since_ms, run.hours, run.departures, run.delay_minutes),
            )

    def _hour(self, hour_ms: int, ctx: tr.Context[str]) -> Hour:
        """The hour, begun if need be. Its statistics will be told when it is complete, or, if they were, again."""
        hour = self.hours.get(hour_ms)
        if hour is None:
            hour = self.hours[hour_ms] = Hour()
            ctx.set_timer(hour_ms + HOUR_MS - 1)
        elif hour.revision:
            ctx.set_timer(hour_ms + HOUR_MS - 1)  # in the past: it fires as soon as this is done
        return hour

    def _join(self, hour_ms: int, weather: Weather | None, ctx: tr.Context[str]) -> None:
        """Let go of the departures that have waited for the weather of an hour."""
        for place in list(self.waiting.keys((hour_ms, 0), (hour_ms + 1, 0))):
            ctx.emit(departures_in_weather, in_weather(self.waiting.pop(place), weather))

    def _watch(self, hour_ms: int, hour: Hour, ctx: tr.Context[str]) -> None:
        """Begin, go on with or end a run of congested hours."""
        late = hour.delay_minutes >= CONGESTED_MINUTES * hour.departures
        if hour.departures < CONGESTED_DEPARTURES or not late:
            self.congestion = None
            ctx.cancel_timer("congested")
            return
        if self.congestion is None:
            self.congestion = Congestion(hour_ms)
            ctx.set_timer(hour_ms + CONGESTED_HOURS * HOUR_MS, "congested")
        self.congestion.hours += 1
        self.congestion.departures += hour.departures
        self.congestion.delay_minutes += hour.delay_minutes


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
