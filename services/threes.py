"""Threes: the mean of every three readings of a sensor. No time is involved.

readings  ──►  threes  ──►  means
"""

import msgspec

import tailrace as tr
from schemas.sensors import Reading
from tailrace import agg, windows


class MeanOfThree(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The mean of three readings, from the earliest to the latest of them."""

    sensor: tr.Key[str]
    start: int
    end: int
    value: float


app = tr.App("threes")
readings = app.topic("readings", Reading)
means = app.topic("means", MeanOfThree)

threes = app.window("threes", readings, windows.count(3), agg.mean(lambda r: r.celsius), into=means)
