"""Thermometers: their readings, averages and alerts, and the openings of a gate for readings."""

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
    """A sensor's mean temperature over a window; its time is the window's end, which is not part of the window."""

    sensor: tr.Key[str]
    window_end_ms: tr.EventTime[int]
    celsius: float
    readings: int


class RisingAlert(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A sensor's temperature has risen for the configured time without a fall."""

    sensor: tr.Key[str]
    since_ms: int
    fahrenheit: float


class Opening(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A sensor's readings pass from ``at_ms``, for ``for_ms`` milliseconds."""

    sensor: tr.Key[str]
    at_ms: tr.EventTime[int]
    for_ms: int
