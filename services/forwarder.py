"""Forwarder: readings pass while a control event keeps their sensor's gate open, whichever of the two arrives first.

    openings  ──┐
                ├──►  Gate  ──►  forwarded       readings measured while the gate was open
    readings  ──┘
       └──────────────────────►  late-readings   readings that arrived after the watermark had passed them

A reading may arrive before the opening that lets it pass. The gate handles both in the order of event time, so all openings
that affect a reading have been handled before it, and readings leave in the order of their times.
"""

import tailrace as tr
from schemas.sensors import Opening, Reading

app = tr.App("forwarder")
# Declared before the readings: at the same instant, an opening comes first. Openings are rare: after 5 s without one, the
# readings no longer wait for them.
openings = app.topic("openings", Opening, out_of_order="1s", idle_after="5s", late="handle")
late_readings = app.topic("late-readings", Reading)
readings = app.topic("readings", Reading, out_of_order="1s", late=late_readings)
forwarded = app.topic("forwarded", Reading)


@app.actor
class Gate(tr.Actor, order="event-time"):
    """A sensor's gate: the openings that it knows."""

    known: list[Opening] = tr.field(default_factory=list)

    @tr.process(openings)
    def opened(self, opening: Opening, ctx: tr.Context[str]) -> None:
        """Store the opening, and drop those that have ended."""
        self.known = [one for one in self.known if one.at_ms + one.for_ms > ctx.event_time]
        self.known.append(opening)

    @tr.process(readings)
    def measured(self, reading: Reading, ctx: tr.Context[str]) -> None:
        """Forward the reading if the gate is open."""
        if any(one.at_ms <= reading.at_ms < one.at_ms + one.for_ms for one in self.known):
            ctx.emit(forwarded, reading)
