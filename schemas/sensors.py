"""Thermometers: what they measure, what is made of it, and the switch that lets readings pass."""

import msgspec

import tailrace as tr


class Reading(msgspec.Struct, tr.Keyed[str], frozen=True):
    """One measurement of one sensor."""

    sensor: tr.Key[str]
    at_ms: tr.EventTime[int]
    fahrenheit: float

    @property
    def celsius(self) -> float:
        """The temperature in degrees Celsius."""
        return (self.fahrenheit - 32.0) * 5.0 / 9.0


class Average(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A sensor's mean temperature over a window; its time is the window's end, which is no longer part of it."""

    sensor: tr.Key[str]
    window_end_ms: tr.EventTime[int]
    celsius: float
    readings: int


class RisingAlert(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A sensor's temperature has risen, without a fall, for as long as somebody should be told."""

    sensor: tr.Key[str]
    since_ms: int
    fahrenheit: float


class Opening(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A sensor's readings may pass from ``at_ms`` on, for ``for_ms``."""

    sensor: tr.Key[str]
    at_ms: tr.EventTime[int]
    for_ms: int
