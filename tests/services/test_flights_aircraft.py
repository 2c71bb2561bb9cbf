import pytest

from schemas.flights import HOUR_MS, MINUTE_MS, AircraftOverdue, Airframe, Arrival, Departure, LegFinished
from services.flights import aircraft
from tailrace.testing import Harness

BLOCK_MS = 2 * HOUR_MS
NOON_MS = 12 * HOUR_MS


def departure(flight, scheduled_ms, late=0, tail="N1"):
    """A flight of two hours."""
    departed_ms = scheduled_ms + late * MINUTE_MS
    return Departure(tail, "UA", flight, "EWR", "ORD", scheduled_ms, departed_ms, scheduled_ms + BLOCK_MS)


def arrival(begun, late):
    """It is there, so many minutes after it was scheduled to be."""
    arrived_ms = begun.scheduled_arrival_ms + late * MINUTE_MS
    return Arrival(begun.tail, begun.carrier, begun.flight, begun.scheduled_ms, arrived_ms)


def overdue(begun):
    return AircraftOverdue(begun.tail, "UA", begun.flight, "EWR", "ORD", begun.departed_ms, begun.expected_ms)


FIRST = departure(1, NOON_MS, late=10)
SECOND = departure(2, NOON_MS + 5 * HOUR_MS, late=40)
DUE_MS = FIRST.expected_ms + aircraft.GRACE_MS


def test_a_leg_is_finished_from_gate_to_gate():
    with Harness(aircraft.app) as h:
        h.send(aircraft.airframes, Airframe("N1", 0, "BOEING", "737", 149, 1998))
        h.send(aircraft.departures, FIRST)
        h.send(aircraft.arrivals, arrival(FIRST, 25))
        h.end_of_input()
        assert h.emitted(aircraft.legs_finished) == [
            LegFinished(
                "N1",
                number=1,
                carrier="UA",
                flight=1,
                origin="EWR",
                destination="ORD",
                departed_ms=FIRST.departed_ms,
                arrived_ms=FIRST.scheduled_arrival_ms + 25 * MINUTE_MS,
                departure_delay_minutes=10,
                arrival_delay_minutes=25,
                handed_minutes=0,
                seats=149,
                diverted=False,
            )
        ]
        h.replay()


@pytest.mark.parametrize(
    ("arrived_late", "next_late", "hours_between", "handed"),
    [
        (25, 40, 3, 25),  # the rest is the second leg's own
        (50, 40, 3, 40),  # some of it was made good
        (-5, 40, 3, 0),
        (25, -5, 3, 0),
        (25, 40, 12, 25),
        (25, 40, 13, 0),  # a night in between
    ],
)
def test_a_leg_begins_with_no_more_delay_than_the_one_before_ended_with(
    arrived_late, next_late, hours_between, handed
):
    following = departure(2, FIRST.scheduled_arrival_ms + hours_between * HOUR_MS, late=next_late)
    with Harness(aircraft.app) as h:
        h.send(aircraft.departures, FIRST, following)
        h.send(aircraft.arrivals, arrival(FIRST, arrived_late))
        assert [one.handed_minutes for one in h.end_of_input().to(aircraft.movements)] == [0, handed]


def test_an_aircraft_is_overdue_an_hour_after_it_was_expected():
    with Harness(aircraft.app) as h:
        h.send(aircraft.departures, FIRST)
        h.advance_watermark(FIRST.departed_ms)
        assert h.timers(aircraft.Aircraft, "N1") == {("event", f"overdue:{FIRST.leg}"): DUE_MS}
        assert h.query(aircraft.Aircraft, "N1", "status") == "on its way from EWR to ORD"
        assert h.advance_watermark(DUE_MS - 1).to(aircraft.aircraft_overdue) == []
        assert h.advance_watermark(DUE_MS).to(aircraft.aircraft_overdue) == [overdue(FIRST)]
        assert h.query(aircraft.Aircraft, "N1", "status") == "overdue from EWR to ORD"
        h.send(aircraft.arrivals, arrival(FIRST, 300))
        h.end_of_input()
        assert h.query(aircraft.Aircraft, "N1", "status") == "on the ground after 1 legs"
        assert h.emitted(aircraft.aircraft_overdue) == [overdue(FIRST)]
        h.replay()


@pytest.mark.parametrize(("minutes", "told"), [(70, []), (71, [overdue(FIRST)])])
def test_an_aircraft_is_overdue_if_it_arrives_later_than_ten_minutes_late_already_and_an_hours_grace(
    minutes, told
):
    with Harness(aircraft.app) as h:
        h.send(aircraft.departures, FIRST)
        h.send(aircraft.arrivals, arrival(FIRST, minutes))
        h.end_of_input()
        assert h.timers(aircraft.Aircraft, "N1") == {}
        assert h.emitted(aircraft.aircraft_overdue) == told


def test_an_arrival_that_is_read_before_its_departure_ends_its_leg():
    with Harness(aircraft.app) as h:
        h.send(aircraft.arrivals, arrival(FIRST, 0), arrival(SECOND, 0))
        h.send(aircraft.departures, FIRST, SECOND)
        h.send(aircraft.airframes, Airframe("N1", 0, "BOEING", "737", 149, None))
        told = h.end_of_input().to(aircraft.legs_finished)
        assert [(leg.flight, leg.seats) for leg in told] == [(1, 149), (2, 149)]
        h.replay()


def test_the_registry_is_waited_for_until_it_has_been_silent_for_a_second():
    with Harness(aircraft.app) as h:
        h.send(aircraft.departures, FIRST, departure(7, NOON_MS + 3 * HOUR_MS, tail="N1"))
        h.send(aircraft.arrivals, arrival(FIRST, 0))
        h.advance_clock_by("999ms")
        assert h.emitted(aircraft.movements) == []
        h.advance_clock_by("1ms")
        assert [one.flight for one in h.emitted(aircraft.movements)] == [1]


def test_an_aircraft_that_departs_again_is_lost_no_longer_and_was_overdue():
    with Harness(aircraft.app) as h:
        h.send(aircraft.departures, FIRST, SECOND)
        h.advance_watermark(SECOND.departed_ms + aircraft.TAXI_OUT_MS - 1)
        assert h.emitted(aircraft.aircraft_overdue) == [overdue(FIRST)]
        state = h.state(aircraft.Aircraft, "N1")
        assert state is not None
        assert (list(state.open), state.lost) == ([FIRST.leg, SECOND.leg], 0)
        h.advance_watermark(SECOND.departed_ms + aircraft.TAXI_OUT_MS)
        state = h.state(aircraft.Aircraft, "N1")
        assert state is not None
        assert (list(state.open), state.lost, state.overdue) == ([SECOND.leg], 1, 1)
        h.send(aircraft.arrivals, arrival(FIRST, 400))
        h.end_of_input()
        assert h.metrics["arrivals-without-departure"] == 1
        assert h.emitted(aircraft.legs_finished) == []
        h.replay()


def test_an_overdue_aircraft_that_arrives_before_it_takes_off_again_has_finished_its_leg():
    with Harness(aircraft.app) as h:
        h.send(aircraft.departures, FIRST, SECOND)
        h.send(
            aircraft.arrivals,
            arrival(
                FIRST, (SECOND.departed_ms + aircraft.TAXI_OUT_MS - FIRST.scheduled_arrival_ms) // MINUTE_MS
            ),
        )
        h.end_of_input()
        assert [leg.flight for leg in h.emitted(aircraft.legs_finished)] == [1]


def test_a_departure_that_becomes_known_after_event_time_has_passed_it_is_handled():
    other = departure(7, NOON_MS + 3 * HOUR_MS, tail="N2")
    with Harness(aircraft.app, partitions=1) as h:
        h.send(aircraft.departures, other, FIRST)
        h.send(aircraft.arrivals, arrival(FIRST, 0), arrival(other, 0))
        h.end_of_input()
        assert h.late == 1
        assert [leg.tail for leg in h.emitted(aircraft.legs_finished)] == ["N1", "N2"]
        assert h.emitted(aircraft.aircraft_overdue) == []
