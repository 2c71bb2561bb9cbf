from schemas.flights import (
    HOUR_MS,
    MINUTE_MS,
    Cancellation,
    CongestionAlert,
    DepartureInWeather,
    HourlyStatistics,
    Movement,
    Weather,
)
from services.flights.airport import (
    CONGESTED_DEPARTURES,
    Airport,
    app,
    cancellations,
    congestion_alerts,
    departures_in_weather,
    hourly_statistics,
    movements,
    weather,
)
from tailrace.testing import Harness

NOON_MS = 12 * HOUR_MS
RAIN = Weather("EWR", NOON_MS, 50.0, 12.0, None, 0.1, 4.0)


def movement(flight, minute, delay=0, handed=0, airport="EWR"):
    """A departure, scheduled so many minutes after noon."""
    return Movement(airport, "N1", "UA", flight, NOON_MS + minute * MINUTE_MS, delay, handed)


def joined(moved, weather=None):
    return DepartureInWeather(
        moved.airport, "UA", moved.flight, moved.scheduled_ms, moved.delay_minutes, weather
    )


def busy(hour, delay, flights=CONGESTED_DEPARTURES):
    return [movement(flight, 60 * hour + flight, delay) for flight in range(flights)]


def test_a_departure_is_joined_with_the_weather_of_its_hour_whichever_is_read_first():
    on_time, late = movement(1, 0), movement(2, 59, 90)
    with Harness(app) as h:
        h.send(movements, on_time, late)
        h.send(weather, RAIN)
        assert h.end_of_input().to(departures_in_weather) == [joined(on_time, RAIN), joined(late, RAIN)]
        h.replay()


def test_a_departure_goes_without_weather_if_there_is_none_of_its_hour():
    moved, following = movement(1, 59), movement(2, 60)
    fine = Weather("EWR", NOON_MS + HOUR_MS, 50.0, None, None, 0.0, 10.0)
    with Harness(app) as h:
        h.send(movements, moved, following)
        h.send(weather, fine)
        assert h.advance_watermark(moved.scheduled_ms - 1).to(departures_in_weather) == []
        assert h.advance_watermark(moved.scheduled_ms).to(departures_in_weather) == [joined(moved)]
        assert h.end_of_input().to(departures_in_weather) == [joined(following, fine)]


def test_an_hours_statistics_are_told_when_event_time_has_passed_it():
    with Harness(app) as h:
        h.send(weather, RAIN)
        h.send(movements, movement(1, 0, -4), movement(2, 30, 15, handed=10), movement(3, 59, 100))
        h.send(cancellations, Cancellation("EWR", "UA", 4, "ORD", NOON_MS))
        assert h.advance_watermark(NOON_MS + HOUR_MS - 2).to(hourly_statistics) == []
        told = h.advance_watermark(NOON_MS + HOUR_MS - 1).to(hourly_statistics)
        assert told == [
            HourlyStatistics(
                "EWR",
                NOON_MS,
                revision=1,
                departures=3,
                cancelled=1,
                delayed=2,
                delay_minutes=111,
                handed_minutes=10,
                longest_delay_minutes=100,
                weather=RAIN,
            )
        ]
        assert told[0].mean_delay_minutes == 37.0
        h.replay()


def test_every_flight_that_becomes_known_later_makes_a_revision():
    with Harness(app) as h:
        h.send(movements, movement(1, 0, 5))
        h.advance_watermark(NOON_MS + 9 * HOUR_MS)
        late = movement(2, 1, 600)
        assert h.send(movements, late) == []  # its turn comes right after the watermark
        out = h.advance_watermark(NOON_MS + 9 * HOUR_MS + 1)
        assert [(s.revision, s.departures, s.delay_minutes) for s in out.to(hourly_statistics)] == [
            (2, 2, 605)
        ]
        assert out.to(departures_in_weather) == [joined(late)]
        h.send(cancellations, Cancellation("EWR", "UA", 4, "ORD", NOON_MS))
        out = h.end_of_input()
        assert [(s.revision, s.cancelled) for s in out.to(hourly_statistics)] == [(3, 1)]
        h.replay()


def test_an_hour_is_forgotten_after_three_days():
    with Harness(app) as h:
        h.send(weather, RAIN)
        h.send(movements, movement(1, 0))
        h.advance_watermark(NOON_MS + HOUR_MS)
        h.advance_watermark(NOON_MS + 24 * HOUR_MS)
        state = h.state(Airport, "EWR")
        assert state is not None
        assert list(state.hours) == [NOON_MS]
        h.advance_watermark(NOON_MS + 75 * HOUR_MS)
        assert h.state(Airport, "EWR") is None


def test_four_congested_hours_on_end_are_an_alert_and_a_fifth_is_not_another():
    with Harness(app) as h:
        for hour in range(5):
            h.send(movements, *busy(hour, 50))
        assert h.advance_watermark(NOON_MS + 4 * HOUR_MS - 1).to(congestion_alerts) == []
        assert h.advance_watermark(NOON_MS + 4 * HOUR_MS).to(congestion_alerts) == [
            CongestionAlert("EWR", NOON_MS, hours=4, departures=40, delay_minutes=2_000)
        ]
        assert h.end_of_input().to(congestion_alerts) == []
        h.replay()


def test_a_better_hour_or_one_with_few_departures_stops_the_alert():
    nothing: list[Movement] = []
    for better in (busy(2, 44), busy(2, 50, flights=CONGESTED_DEPARTURES - 1), nothing):
        with Harness(app) as h:
            h.send(movements, *busy(0, 50), *busy(1, 50), *better, *busy(3, 50), *busy(4, 50))
            assert h.end_of_input().to(congestion_alerts) == [], better
