"""Forwarder: readings pass while a control event keeps their sensor's gate open, whichever of the two arrives first.

    openings  ──┐
                ├──►  Gate  ──►  forwarded       readings measured while the gate was open
    readings  ──┘
       └──────────────────────►  late-readings   readings that arrived after the watermark had passed them

A reading may arrive before the opening that lets it pass. So it waits until the watermark has reached its time. Then all
openings that affect it have arrived, and the result depends only on event times. Readings leave in the order of their times.
"""

import tailrace as tr
from schemas.sensors import Opening, Reading

app = tr.App("forwarder")
late_readings = app.topic("late-readings", Reading)
readings = app.topic("readings", Reading, out_of_order="1s", late=late_readings)
# Openings are rare: after 5 s without one, the readings no longer wait for them.
openings = app.topic("openings", Opening, out_of_order="1s", idle_after="5s")
forwarded = app.topic("forwarded", Reading)


@app.actor
class Gate(tr.Actor):
    """A sensor's gate, and the readings that wait at it."""

    known: list[Opening] = tr.field(default_factory=list)
    waiting: tr.MapState[int, list[Reading]]  # by their time

    @tr.process(openings)
    def opened(self, opening: Opening, ctx: tr.Context[str]) -> None:
        """Store the opening, and drop those that ended before the watermark."""
        self.known = [one for one in self.known if one.at_ms + one.for_ms > ctx.watermark]
        self.known.append(opening)

    @tr.process(readings)
    def measured(self, reading: Reading, ctx: tr.Context[str]) -> None:
        """Store the reading until the watermark reaches its time."""
        waiting = self.waiting.get(reading.at_ms)
        if waiting is None:
            waiting = self.waiting[reading.at_ms] = []
            ctx.set_timer(reading.at_ms)
        waiting.append(reading)

    @tr.on_timer
    def judged(self, ctx: tr.Context[str]) -> None:
        """All events up to this time have arrived: forward the readings of this time if the gate was open."""
        now_ms = ctx.event_time
        waiting = self.waiting.pop(now_ms)
        if any(one.at_ms <= now_ms < one.at_ms + one.for_ms for one in self.known):
            for reading in waiting:
                ctx.emit(forwarded, reading)
