"""Rooms: a mean per sensor and minute, and from these a mean per room and hour.

    room-readings  ──►  minutes  ──►  sensor-means  ──►  hours  ──►  room-hours
    keyed by sensor                   keyed by room

The two windows are chained by a topic, since their keys differ. A result has the last instant of its window as event time, so a minute falls
into the hour that it belongs to.
"""

from typing import Any

import tailrace as tr
from schemas.rooms import RoomHour, RoomReading, SensorMean
from tailrace import agg, windows

app = tr.App("rooms")
readings = app.topic("room-readings", RoomReading, out_of_order="10s")
# A sensor that was silent may come back with a mean for an hour that is over: such a mean is left out, and counted.
sensor_means = app.topic("sensor-means", SensorMean, late="handle")
room_hours = app.topic("room-hours", RoomHour)
too_late = app.topic("late-room-readings", RoomReading)

minutes = app.window(
    "minutes",
    readings,
    windows.tumbling("1m"),
    agg.several(mean=agg.mean(lambda r: r.celsius), last=agg.latest(RoomReading)),
    late=too_late,
)


@app.process(minutes)
def by_room(minute: tr.Windowed[str, Any], ctx: tr.Context[str]) -> None:
    """Give the mean of a minute to the room in which the sensor was last."""
    room = minute.value.last.room
    ctx.emit(sensor_means, SensorMean(room, minute.key, minute.start, ctx.event_time, minute.value.mean))


hours = app.window(
    "hours",
    sensor_means,
    windows.tumbling("1h"),
    agg.several(celsius=agg.mean(lambda m: m.celsius), minutes=agg.count()),
    into=room_hours,
)
