"""Delays: the mean delay of departures, and how many there were, per airport and hour of the schedule.

    movements  ──►  delays  ──►  hourly-delays

A flight that leaves hours late belongs to an hour that is over. It is known only when it leaves: ``lateness`` lets it correct that hour.
The same table is one query in SQL over the log; the demo compares the two.
"""

import msgspec

import tailrace as tr
from schemas.flights import Movement
from tailrace import agg, windows


class HourlyDelay(msgspec.Struct, tr.Keyed[str], frozen=True, gc=False):
    """The departures of an airport in an hour of the schedule. A later one for the same hour replaces it."""

    airport: tr.Key[str]
    start: tr.EventTime[int]
    end: int
    kind: str
    mean_delay: float
    departures: int


app = tr.App("delays")
movements = app.topic("movements", Movement, out_of_order="3h", watermark="upstream", late="handle")
hourly_delays = app.topic("hourly-delays", HourlyDelay)

delays = app.window(
    "delays",
    movements,
    windows.tumbling("1h"),
    agg.several(mean_delay=agg.mean(lambda m: m.delay_minutes), departures=agg.count()),
    lateness="3d",
    into=hourly_delays,
)
