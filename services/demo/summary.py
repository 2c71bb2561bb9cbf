"""The summary of a year at New York's airports, from the results of the services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from schemas.flights import HourlyStatistics
from services.flights.picture import in_new_york
from services.flights.results import Results

WORST = 5
FEWEST = 10
"""Number of departures that an hour needs to be listed among the worst."""


def summary(results: Results) -> Iterator[str]:
    """The summary as lines of text."""
    hours = results.hours
    departures = sum(hour.departures for hour in hours)
    minutes = sum(hour.delay_minutes for hour in hours)
    delayed = sum(hour.delayed for hour in hours)
    handed = sum(hour.handed_minutes for hour in hours)
    cancelled = sum(hour.cancelled for hour in hours)
    yield row("departures", f"{departures:,}, and {cancelled:,} flights cancelled")
    if departures:
        yield row(
            "delays",
            f"{minutes / departures:.1f} minutes on average; {delayed:,} of 15 minutes or more ({delayed / departures:.0%})",
        )
        yield row("handed on", f"up to {handed:,} minutes of delay came from the aircraft's previous leg")
    days = Counter(f"{in_new_york(one.departed_ms):%d %B}".lstrip("0") for one in results.overdue)
    worst_days = ", ".join(f"{day} ({count})" for day, count in days.most_common(3))
    tails = len({one.tail for one in results.overdue})
    yield row(
        "overdue", f"{len(results.overdue):,} times, for {tails:,} aircraft; most on {worst_days or 'no day'}"
    )
    yield row(
        "congestion", f"{len(results.alerts):,} alerts: four hours in a row with a mean delay of 45 minutes"
    )
    worst = sorted(
        (hour for hour in hours if hour.departures >= FEWEST), key=lambda hour: (-mean(hour), hour.hour_ms)
    )[:WORST]
    if worst:
        yield ""
        yield f"   the worst hours with {FEWEST} departures or more, and their mean delay"
        yield from map(hour_line, worst)


def hour_line(hour: HourlyStatistics) -> str:
    """One hour of one airport."""
    at = in_new_york(hour.hour_ms)
    return (
        f"   {at:%a} {at.day:2} {at:%b %H:00}  {hour.airport}  {mean(hour):4.0f} min"
        f"   {hour.departures:3} left {hour.cancelled:3} cancelled   {weather_of(hour)}"
    ).rstrip()


def mean(hour: HourlyStatistics) -> float:
    """The mean delay, in minutes."""
    return hour.mean_delay_minutes or 0.0


def weather_of(hour: HourlyStatistics) -> str:
    """The weather in a few words."""
    weather = hour.weather
    if weather is None:
        return "no observation"
    words: list[str] = []
    if weather.temperature_f is not None:
        words.append(f"{weather.temperature_f:.0f} °F")
    if weather.wind_mph is not None:
        words.append(f"wind {weather.wind_mph:.0f} mph")
    if weather.precipitation_in:
        words.append(f"{weather.precipitation_in:.2f} in of rain")
    if weather.visibility_miles < 3:
        words.append(f"{weather.visibility_miles:.1f} miles visibility")
    return ", ".join(words)


def row(name: str, words: str) -> str:
    """A line with a name."""
    return f"   {name:12}{words}"
