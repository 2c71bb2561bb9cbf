"""Aircraft: the legs of every aircraft, the delay it carries from one leg to the next, and whether it is overdue.

    airframes   ──┐
    departures  ──┼──►  Aircraft  ──┬──►  movements          for the airports
    arrivals    ──┘                 ├──►  legs-finished
                                    └──►  aircraft-overdue

Events are handled in the order of event time, and timers between them, so the handlers are written as if things were read in
the order in which they happened. An aircraft that arrives after its overdue time was reported as overdue before its arrival is
handled.
"""

import msgspec

import tailrace as tr
from schemas.flights import (
    HOUR_MS,
    MINUTE_MS,
    AircraftOverdue,
    Airframe,
    Arrival,
    Departure,
    LegFinished,
    Movement,
)

GRACE_MS = HOUR_MS
"""An aircraft is overdue this long after its expected arrival."""
TAXI_OUT_MS = 21 * MINUTE_MS
"""An aircraft has taken off this long after it has left its gate."""
ROTATION_MS = 12 * HOUR_MS
"""A delay is carried to the next leg if that is scheduled to begin within this time after the scheduled end of the last."""

app = tr.App("aircraft")
# The registry, loaded before everything else: after 1 s without an entry it holds no aircraft back.
airframes = app.topic("airframes", Airframe, idle_after="1s", late="handle")
# A departure is known at take-off. Few aircraft taxi for more than an hour; those are late, and handled.
departures = app.topic("departures", Departure, out_of_order="1h", late="handle")
arrivals = app.topic("arrivals", Arrival, late="handle")
# Airports work by hours of the schedule, and departures are behind the schedule: airports wait this long for them.
movements = app.topic("movements", Movement, out_of_order="3h")
legs_finished = app.topic("legs-finished", LegFinished)
aircraft_overdue = app.topic("aircraft-overdue", AircraftOverdue)


class Leg(msgspec.Struct):
    """A leg that has begun."""

    departure: Departure
    handed_minutes: int
    overdue: bool = False

    @property
    def due_ms(self) -> int:
        """Event time at which the leg is overdue, unless it has ended."""
        return self.departure.expected_ms + GRACE_MS


class Finished(msgspec.Struct, frozen=True):
    """The facts about the last leg that the next leg needs."""

    scheduled_ms: int
    scheduled_arrival_ms: int
    delay_minutes: int


@app.actor
class Aircraft(tr.Actor, order="event-time"):
    """One aircraft. Several legs are open if the end of an earlier one is not known."""

    airframe: Airframe | None = None
    open: dict[str, Leg] = tr.field(default_factory=dict)  # by their names
    last: Finished | None = None
    legs: int = 0
    overdue: int = 0
    lost: int = 0

    @tr.process(airframes)
    def registered(self, airframe: Airframe, ctx: tr.Context[str]) -> None:
        """Store the entry of the registry."""
        self.airframe = airframe

    @tr.process(departures)
    def departed(self, departure: Departure, ctx: tr.Context[str]) -> None:
        """Begin a leg, emit the movement to the airport, and set a timer for the overdue time."""
        if any(leg.due_ms < departure.departed_ms for leg in self.open.values()):
            ctx.set_timer(departure.departed_ms + TAXI_OUT_MS, "airborne")
        leg = Leg(departure, self._handed(departure))
        self.open[departure.leg] = leg
        ctx.set_timer(leg.due_ms, f"overdue:{departure.leg}")
        ctx.emit(
            movements,
            Movement(
                airport=departure.origin,
                tail=departure.tail,
                carrier=departure.carrier,
                flight=departure.flight,
                scheduled_ms=departure.scheduled_ms,
                delay_minutes=departure.delay_minutes,
                handed_minutes=leg.handed_minutes,
            ),
        )

    @tr.process(arrivals)
    def arrived(self, arrival: Arrival, ctx: tr.Context[str]) -> None:
        """End the leg, and emit it as finished."""
        leg = self.open.pop(arrival.leg, None)
        if leg is None:
            ctx.metrics.count("arrivals-without-departure")
            return
        ctx.cancel_timer(f"overdue:{arrival.leg}")
        departure = leg.departure
        delay_minutes = (arrival.arrived_ms - departure.scheduled_arrival_ms) // MINUTE_MS
        self.legs += 1
        if self.last is None or self.last.scheduled_ms < departure.scheduled_ms:
            self.last = Finished(departure.scheduled_ms, departure.scheduled_arrival_ms, delay_minutes)
        ctx.emit(
            legs_finished,
            LegFinished(
                tail=departure.tail,
                number=self.legs,
                carrier=departure.carrier,
                flight=departure.flight,
                origin=departure.origin,
                destination=departure.destination,
                departed_ms=departure.departed_ms,
                arrived_ms=arrival.arrived_ms,
                departure_delay_minutes=departure.delay_minutes,
                arrival_delay_minutes=delay_minutes,
                handed_minutes=leg.handed_minutes,
                seats=None if self.airframe is None else self.airframe.seats,
                diverted=arrival.diverted,
            ),
        )

    @tr.on_timer("overdue")
    def missed(self, ctx: tr.Context[str]) -> None:
        """The aircraft has not arrived within the grace period: emit that it is overdue."""
        assert ctx.timer_name is not None
        leg = self.open[ctx.timer_name.partition(":")[2]]
        leg.overdue = True
        self.overdue += 1
        departure = leg.departure
        ctx.emit(
            aircraft_overdue,
            AircraftOverdue(
                tail=departure.tail,
                carrier=departure.carrier,
                flight=departure.flight,
                origin=departure.origin,
                destination=departure.destination,
                departed_ms=departure.departed_ms,
                expected_ms=departure.expected_ms,
            ),
        )

    @tr.on_timer("airborne")
    def give_up(self, ctx: tr.Context[str]) -> None:
        """Close the legs that were overdue at a departure: an aircraft that takes off again must have arrived before."""
        for name, leg in list(self.open.items()):
            if leg.due_ms < ctx.event_time - TAXI_OUT_MS:
                del self.open[name]
                self.lost += 1

    @tr.query
    def status(self) -> str:
        """The position of the aircraft, in words."""
        if not self.open:
            return f"on the ground after {self.legs} legs"
        leg = max(self.open.values(), key=lambda leg: leg.departure.departed_ms)
        word = "overdue" if leg.overdue else "on its way"
        return f"{word} from {leg.departure.origin} to {leg.departure.destination}"

    def _handed(self, departure: Departure) -> int:
        """The part of a departure's delay that may come from the leg before: at most the delay of that arrival."""
        last = self.last
        if last is None or not 0 <= departure.scheduled_ms - last.scheduled_arrival_ms <= ROTATION_MS:
            return 0
        return max(0, min(last.delay_minutes, departure.delay_minutes))
