"""Sensors: averages over windows of event time, and an alert in processing time.

    readings ──┬──►  Windows  ──►  averages       °C per sensor and 5 s of event time
               │         └────►  late-readings    readings whose window was closed
               └──►  Rise     ──►  rising-alerts   a sensor has been rising for 1 s

The window is written by hand here, with a map and a timer, to show that a window needs nothing else.
"""

import msgspec

import tailrace as tr
from schemas.sensors import Average, Reading, RisingAlert

WINDOW_MS = 5_000
RISING_MS = 1_000

app = tr.App("sensors")
readings = app.topic("readings", Reading, out_of_order="1s")
averages = app.topic("averages", Average)
late_readings = app.topic("late-readings", Reading)
rising_alerts = app.topic("rising-alerts", RisingAlert)


class Sum(msgspec.Struct):
    """Sum and number of the readings in a window."""

    celsius: float = 0.0
    readings: int = 0


@app.actor
class Windows(tr.Actor):
    """The open windows of a sensor. There may be several, as readings arrive out of order."""

    open: tr.MapState[int, Sum]  # by the end of the window

    @tr.process(readings)
    def measured(self, reading: Reading, ctx: tr.Context[str]) -> None:
        """Add the reading to its window, unless the window is closed."""
        end_ms = reading.at_ms - reading.at_ms % WINDOW_MS + WINDOW_MS
        last_ms = end_ms - 1
        if ctx.watermark >= last_ms:
            ctx.emit(late_readings, reading)
            return
        window = self.open.get(end_ms)
        if window is None:
            window = self.open[end_ms] = Sum()
            ctx.set_timer(last_ms)
        window.celsius += reading.celsius
        window.readings += 1

    @tr.on_timer
    def complete(self, ctx: tr.Context[str]) -> None:
        """The watermark has reached the window's last millisecond: emit its average, and close it."""
        end_ms = ctx.event_time + 1
        window = self.open.pop(end_ms)
        ctx.emit(averages, Average(ctx.key, end_ms, window.celsius / window.readings, window.readings))


@app.actor
class Rise(tr.Actor):
    """Whether a sensor is rising. This depends on the order of arrival, as the alert is for people who wait for it now."""

    last: float | None = None
    since_ms: int | None = None  # start of the rise, in processing time

    @tr.process(readings)
    def measured(self, reading: Reading, ctx: tr.Context[str]) -> None:
        """Start the timer at a rise, and cancel it at a fall. An equal reading changes nothing."""
        before, self.last = self.last, reading.fahrenheit
        if before is None:
            return
        if reading.fahrenheit < before:
            self.since_ms = None
            ctx.cancel_processing_timer("risen")
        elif reading.fahrenheit > before and self.since_ms is None:
            self.since_ms = ctx.now
            ctx.set_processing_timer(ctx.now + RISING_MS, "risen")

    @tr.on_processing_timer("risen")
    def risen(self, ctx: tr.Context[str]) -> None:
        """There was no fall: emit an alert. The next rise starts the timer again."""
        assert self.last is not None
        assert self.since_ms is not None
        ctx.emit(rising_alerts, RisingAlert(ctx.key, self.since_ms, self.last))
        self.since_ms = None
