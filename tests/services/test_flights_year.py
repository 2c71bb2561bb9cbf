"""Both services on real days, against what follows from the tables without them."""

from collections import Counter
from datetime import date
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from schemas.flights import HOUR_MS, Arrival, Cancellation, CongestionAlert, Departure, HourlyStatistics
from services.flights import __main__ as command
from services.flights import aircraft, airport
from services.flights.history import facts
from services.flights.picture import draw, means, picture
from services.flights.rehearsal import Rehearsal
from services.flights.results import Results

# Storms over the east coast; the second night brings many flights past midnight.
DAYS = date(2013, 7, 22), date(2013, 7, 24)


@pytest.fixture(scope="module")
def history():
    return facts(*DAYS)


@pytest.fixture(scope="module")
def played(history):
    with Rehearsal() as rehearsal:
        rehearsal.play(history)
        yield rehearsal


def test_replay_gives_every_byte_again(played, history):
    own = Counter(type(event).__name__ for _, event in history)
    report = played.aircraft.replay()
    assert report.records == own["Airframe"] + own["Departure"] + own["Arrival"]
    report = played.airport.replay()
    assert report.records == own["Departure"] + own["Weather"] + own["Cancellation"]
    assert played.aircraft.dead_letters() == played.airport.dead_letters() == []
    assert played.aircraft.late > 0
    assert played.airport.late > 0


def test_every_flight_is_in_the_last_word_on_its_hour(played, history):
    expected: dict[tuple[int, str], list[int]] = {}
    for _, event in history:
        if isinstance(event, (Departure, Cancellation)):
            name = event.origin if isinstance(event, Departure) else event.airport
            found = expected.setdefault((event.scheduled_ms - event.scheduled_ms % HOUR_MS, name), [0, 0, 0])
            if isinstance(event, Departure):
                found[0] += 1
                found[1] += event.delay_minutes
            else:
                found[2] += 1
    hours = played.results().hours
    assert {(h.hour_ms, h.airport): [h.departures, h.delay_minutes, h.cancelled] for h in hours} == expected


def test_every_departure_is_joined_with_the_weather_of_its_hour(played, history):
    weather = {(e.airport, e.hour_ms): e for _, e in history if type(e).__name__ == "Weather"}
    joined = played.airport.emitted(airport.departures_in_weather)
    departures = Counter((e.origin, e.leg) for _, e in history if isinstance(e, Departure))
    assert Counter((j.airport, f"{j.carrier}{j.flight}@{j.scheduled_ms}") for j in joined) == departures
    for one in joined:
        assert one.weather == weather.get((one.airport, one.scheduled_ms - one.scheduled_ms % HOUR_MS))


def test_those_are_overdue_of_whom_nothing_is_known_an_hour_after_they_were_expected(played, history):
    arrived = {(e.tail, e.leg): e.arrived_ms for _, e in history if isinstance(e, Arrival)}
    expected = [
        (e.tail, e.flight, e.departed_ms)
        for _, e in history
        if isinstance(e, Departure)
        and arrived.get((e.tail, e.leg), 1 << 60) > e.expected_ms + aircraft.GRACE_MS
    ]
    found = [(one.tail, one.flight, one.departed_ms) for one in played.results().overdue]
    assert sorted(found) == sorted(expected)
    assert len(found) > 100
    assert len(played.aircraft.emitted(aircraft.legs_finished)) == len(arrived)


# --- the picture


def test_the_picture_shows_every_hour_bar_and_alert_and_is_the_same_each_time(played, tmp_path):
    results = played.results()
    first = draw(results, tmp_path / "flights.svg").read_text("utf-8")
    assert first == picture(results)
    svg = ET.fromstring(first)
    texts = [one.text or "" for one in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{len(results.overdue):,} times" in " ".join(texts)
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}circle"))) == len(results.alerts)


def test_a_mean_is_over_all_departures_of_a_month_and_hour():
    five_in_the_morning_ms = 10 * HOUR_MS  # in New York, on the first day of 1970
    hours = [
        HourlyStatistics(name, five_in_the_morning_ms, 1, departures, 0, 0, minutes, 0, None, None)
        for name, departures, minutes in (("EWR", 3, 30), ("JFK", 1, -10), ("LGA", 0, 0))
    ]
    assert means(hours) == {(1, 5): (5.0, 4)}


def test_the_last_revision_counts_in_whatever_order_they_are_given():
    one, two = (HourlyStatistics("EWR", 0, revision, 1, 0, 0, 0, 0, None, None) for revision in (1, 2))
    alert = CongestionAlert("EWR", 0, 4, 40, 2_000)
    assert Results.of([two, alert, one, "anything else"]) == Results([two], [], [alert])


def test_the_command_plays_replays_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main(["2013-01-01", "2013-01-02"]) == 0
    shown = capsys.readouterr().out
    assert "equal in every byte" in shown
    assert (Path("out") / "flights.svg").exists()
