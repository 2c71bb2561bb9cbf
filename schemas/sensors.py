"""Thermometers: what they measure, what is made of it, and the switch that lets readings pass."""

import msgspec


class Reading(msgspec.Struct, frozen=True):
    """One measurement of one sensor."""

    sensor: str
    at_ms: int
    fahrenheit: float

    @property
    def celsius(self) -> float:
        """The temperature in degrees Celsius."""
        return (self.fahrenheit - 32.0) * 5.0 / 9.0


class Average(msgspec.Struct, frozen=True):
    """A sensor's mean temperature over a window; its time is the window's end, which is no longer part of it."""

    sensor: str
    window_end_ms: int
    celsius: float
    readings: int


class RisingAlert(msgspec.Struct, frozen=True):
    """A sensor's temperature has risen, without a fall, for as long as somebody should be told."""

    sensor: str
    since_ms: int
    fahrenheit: float


class Opening(msgspec.Struct, frozen=True):
    """A sensor's readings may pass from ``at_ms`` on, for ``for_ms``."""

    sensor: str
    at_ms: int
    for_ms: int
