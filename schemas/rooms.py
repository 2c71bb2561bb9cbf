"""Rooms: the readings of their sensors, and means over time."""

import msgspec

import tailrace as tr


class RoomReading(msgspec.Struct, tr.Keyed[str], frozen=True):
    """One measurement of a sensor in a room."""

    sensor: tr.Key[str]
    room: str
    at_ms: tr.EventTime[int]
    celsius: float


class SensorMean(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The mean of a sensor over a minute. It is keyed by the room, so that a room gets those of all its sensors."""

    room: tr.Key[str]
    sensor: str
    start: int
    """The beginning of the minute, in ms; its event time is the last instant of the minute."""
    at_ms: tr.EventTime[int]
    celsius: float


class RoomHour(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The mean of a room over an hour, and how many minutes of sensors it comes from."""

    room: tr.Key[str]
    start: int
    end: tr.EventTime[int]
    celsius: float
    minutes: int
