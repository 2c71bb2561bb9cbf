"""The picture of a year: the delays of departures by month and hour of the day, and the overdue aircraft.

It is one SVG, written without a library. Any browser can show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from schemas.flights import HourlyStatistics
from services.flights.history import NEW_YORK
from services.flights.results import Results

WIDTH: Final = 960
LEFT: Final = 84
RIGHT: Final = 40
INNER: Final = WIDTH - LEFT - RIGHT
FIRST_HOUR: Final = 5
HOURS: Final = 24 - FIRST_HOUR
CELL: Final = INNER / HOURS
ROW: Final = 27
MAP_TOP: Final = 150
BARS_TOP: Final = 590
BARS_HEIGHT: Final = 120
FEWEST: Final = 20
"""Number of departures that a cell needs for a meaningful mean."""
AIRPORTS: Final = ("EWR", "JFK", "LGA")
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Minutes and colours; values in between are interpolated.
SCALE: Final = (
    (0.0, (247, 243, 232)),
    (10.0, (252, 217, 148)),
    (20.0, (243, 150, 84)),
    (30.0, (211, 79, 76)),
    (45.0, (122, 31, 84)),
    (60.0, (61, 12, 66)),
)
INK: Final = "#2b2833"
FAINT: Final = "#8b8794"


class Mean(NamedTuple):
    """The value of one cell of the map."""

    minutes: float
    departures: int


def draw(results: Results, file: Path) -> Path:
    """Write the picture of a run to a file, which should end in ``.svg``. Returns the file."""
    file.write_text(picture(results), encoding="utf-8")
    return file


def picture(results: Results) -> str:
    """The picture as SVG. The same results give the same text."""
    height = BARS_TOP + BARS_HEIGHT + 150
    fonts = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fffdf8"/>',
        *header(results),
        *heat_map(means(results.hours)),
        *overdue_bars(results),
        *alert_rows(results),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def means(hours: Iterable[HourlyStatistics]) -> dict[tuple[int, int], Mean]:
    """The mean delay of departures by month and scheduled hour of the day in New York, early ones counted as negative."""
    minutes: Counter[tuple[int, int]] = Counter()
    departures: Counter[tuple[int, int]] = Counter()
    for hour in hours:
        at = in_new_york(hour.hour_ms)
        minutes[at.month, at.hour] += hour.delay_minutes
        departures[at.month, at.hour] += hour.departures
    return {place: Mean(minutes[place] / n, n) for place, n in departures.items() if n}


# --- parts


def header(results: Results) -> Iterator[str]:
    """The title and the scale."""
    departures = sum(hour.departures for hour in results.hours)
    cancelled = sum(hour.cancelled for hour in results.hours)
    yield text(LEFT, 44, "How late New York departs", size=25, weight="bold")
    yield text(
        LEFT,
        68,
        f"{departures:,} departures from EWR, JFK and LGA in 2013, and {cancelled:,} cancelled: mean delay in minutes",
        colour=FAINT,
    )
    yield text(LEFT, 87, "by month and scheduled hour of the day", colour=FAINT)
    left, top, step = WIDTH - RIGHT - 180, 104, 3
    for minute in range(0, 60, step):
        yield box(left + minute * 3, top, 3 * step, 9, colour_of(minute + step / 2), corner=0)
    for minute in (0, 15, 30, 45, 60):
        yield text(left + minute * 3, top - 5, str(minute), size=10, colour=FAINT, anchor="middle")


def heat_map(cells: dict[tuple[int, int], Mean]) -> Iterator[str]:
    """The map of delays: months from top to bottom, hours from left to right."""
    for hour in range(FIRST_HOUR, 24):
        x = LEFT + (hour - FIRST_HOUR + 0.5) * CELL
        yield text(x, MAP_TOP - 10, str(hour), size=11, colour=FAINT, anchor="middle")
    for month in range(1, 13):
        y = MAP_TOP + (month - 1) * ROW
        yield text(LEFT - 14, y + ROW / 2 + 4, MONTHS[month - 1], anchor="end")
        for hour in range(FIRST_HOUR, 24):
            mean, x = cells.get((month, hour)), LEFT + (hour - FIRST_HOUR) * CELL
            if mean is None or mean.departures < FEWEST:
                yield box(x + 1, y + 1, CELL - 2, ROW - 2, "#f4f1ea")
                continue
            yield box(x + 1, y + 1, CELL - 2, ROW - 2, colour_of(mean.minutes))
            ink = "#ffffff" if mean.minutes > 24 else INK
            shown = f"{mean.minutes:.0f}".replace("-0", "0").replace("-", "\N{MINUS SIGN}")
            yield text(x + CELL / 2, y + ROW / 2 + 4, shown, size=11, colour=ink, anchor="middle")


def overdue_bars(results: Results) -> Iterator[str]:
    """A bar for each day. The worst days are labelled if there is space for the label."""
    days = Counter(in_new_york(one.departed_ms).date() for one in results.overdue)
    tails = len({one.tail for one in results.overdue})
    yield text(LEFT, BARS_TOP - 62, "Overdue aircraft", size=18, weight="bold")
    about = f"{len(results.overdue):,} times, of {tails:,} aircraft: not there an hour after they should have been; by day of departure"
    yield text(LEFT, BARS_TOP - 42, about, colour=FAINT)
    most, bottom = max(days.values(), default=1), BARS_TOP + BARS_HEIGHT
    for day, count in sorted(days.items()):
        tall = BARS_HEIGHT * count / most
        yield box(x_of(day), bottom - tall, INNER / 365 - 0.35, tall, "#7a1f54", corner=0)
    named: list[date] = []
    for day, count in sorted(days.items(), key=lambda one: (-one[1], one[0])):
        if len(named) < 4 and all(abs((day - other).days) > 25 for other in named):
            named.append(day)
            y = bottom - BARS_HEIGHT * count / most - 6
            yield text(
                x_of(day) + 1, y, f"{MONTHS[day.month - 1]} {day.day}: {count}", size=11, anchor="middle"
            )
    yield f'<line x1="{LEFT}" x2="{LEFT + INNER}" y1="{bottom}" y2="{bottom}" stroke="{FAINT}" stroke-width="0.8"/>'
    for month in range(1, 13):
        x = x_of(date(2013, month, 15))
        yield text(x, bottom + 17, MONTHS[month - 1], size=11, colour=FAINT, anchor="middle")


def alert_rows(results: Results) -> Iterator[str]:
    """A dot for each congestion alert, in a row for each airport."""
    top = BARS_TOP + BARS_HEIGHT + 78
    heading = (
        f"{len(results.alerts)} alerts: four hours on end with departures 45 minutes late or more on average"
    )
    yield text(LEFT, top - 22, heading, colour=FAINT)
    for row, airport in enumerate(AIRPORTS):
        y = top + row * 20
        yield text(LEFT - 14, y + 4, airport, size=11, anchor="end")
        yield f'<line x1="{LEFT}" x2="{LEFT + INNER}" y1="{y}" y2="{y}" stroke="#e9e4d8"/>'
        for alert in results.alerts:
            if alert.airport == airport:
                x = x_of(in_new_york(alert.since_ms).date())
                yield f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="#d34f4c" fill-opacity="0.65"/>'


# --- drawing


def in_new_york(at_ms: int) -> datetime:
    """The local time of an instant."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(NEW_YORK)


def x_of(day: date) -> float:
    """The x coordinate of a day of the year."""
    return LEFT + INNER * ((day - date(2013, 1, 1)) / timedelta(days=365))


def colour_of(minutes: float) -> str:
    """The colour of a delay."""
    for (low, below), (high, above) in pairwise(SCALE):
        if minutes < high:
            share = max(0.0, (minutes - low) / (high - low))
            mixed = [round(a + (b - a) * share) for a, b in zip(below, above, strict=True)]
            return "#{:02x}{:02x}{:02x}".format(*mixed)
    return "#{:02x}{:02x}{:02x}".format(*SCALE[-1][1])


def box(x: float, y: float, width: float, height: float, colour: str, corner: float = 3) -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" rx="{corner}" fill="{colour}"/>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    colour: str = INK,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
