"""The demo of the flights on a few days: real processes, a real kill; and how a failure ends it."""

import re
from datetime import date
from xml.etree import ElementTree as ET

import pytest

from schemas.flights import Cancellation, Departure, HourlyStatistics, Movement
from services.demo import __main__ as command
from services.demo import explorations, flights, takeover
from services.demo.accounts import Accounts
from services.demo.console import Console
from services.demo.live import LiveRun
from services.demo.process import Folders, Service, ServiceFailed
from services.demo.process import kafka_url as kafka_url_of
from services.demo.rebuilds import Rebuilt, rebuild
from services.flights import aircraft, airport
from services.flights.history import Event, Fact, facts
from services.flights.load import load
from services.flights.results import Results
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog

# Storms; enough for the kill to come in between, at this interval.
DAYS = ["--since", "2013-07-13", "--until", "2013-07-27"]
HASTY = "tests.services.hasty_aircraft:app"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def shown(out):
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(Console, "say", lambda self, line="": lines.append(line))
        patch.setattr(explorations, "RECORDS", 1_500)
        code = command.main(["flights", *DAYS, "--out", str(out), "--commit-interval", "10ms"])
        assert code == 0, "\n".join(lines)
        return "\n".join(lines)


def test_both_services_run_one_is_killed_all_is_replayed_and_nothing_differs(shown, out):
    assert "is killed (SIGKILL)" in shown
    assert shown.count("rows of state: differences 0 ") == 2
    assert (
        shown.count("along the tape, with the spark engine, in")
        == shown.count("along the tape, with the local engine, in")
        == 1
    )
    assert (
        len(re.findall(r"compared with the log: [1-9][\d,]* rows, differences 0$", shown, re.MULTILINE)) == 2
    )
    assert "both start from the rebuilt snapshots" in shown
    assert len(re.findall(r"schedules of 1,500 events, \d[\d,]* keys: differences 0 ", shown)) == 2
    assert re.search(
        r"[1-9][\d,]* hours of airports, \d[\d,]* corrections by late departures: differences 0 ", shown
    )
    assert "was forwarded, counted and joined exactly once" in shown
    assert "100 aircraft asked for" in shown
    assert re.search(r"differences 0; N\w+ is (on|overdue)", shown)
    assert (out / "page.png").read_bytes()[:4] == b"\x89PNG"
    assert "version 1 differs from itself: nowhere" in shown
    assert re.search(r"alerts: [\d,]+ in version 1, [\d,]+ in version 2; by plain Python [\d,]+ and", shown)
    assert (out / "airport-ab.png").read_bytes()[:4] == b"\x89PNG"
    assert "<html" in (out / "airport-ab" / "report.html").read_text("utf-8")
    assert re.search(r"[1-9][\d,]* records appended meanwhile; no process of airport worked for \d", shown)
    assert re.search(r"[1-9][\d,]* hours in the state, compared with plain Python: differences 0 ", shown)
    assert "All checks passed" in shown
    ET.parse(out / "flights.svg")


def test_the_killed_service_had_committed_half_and_not_all(shown):
    line = next(line for line in shown.splitlines() if "SIGKILL)" in line)
    committed, whole = (int(word.replace(",", "")) for word in line.split() if "," in word)
    assert whole / 2 < committed < whole


def test_a_failure_makes_the_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(flights, "facts", lambda *_: (_ for _ in ()).throw(FileNotFoundError("no history")))
    assert flights.main(flights.Settings(out=tmp_path)) == 1
    assert "FAILED: no history" in capsys.readouterr().out


# --- the processes


class log_of:  # noqa: N801  # reads as a function
    """The services over the log of a run."""

    def __init__(self, out):
        self.folders = Folders(out / "flights-2013")

    def __enter__(self):
        self.log = EmbeddedLog(self.folders.log)
        return [
            Service(app, f"services.flights.{app.name}:app", self.folders, self.log, "10ms")
            for app in (aircraft.app, airport.app)
        ]

    def __exit__(self, *_):
        self.log.close()


def test_a_service_that_ends_by_itself_fails_the_run_with_its_last_words(tmp_path):
    folders = Folders(tmp_path / "flights-2013")
    folders.base.mkdir()
    opened = log_of(tmp_path)
    with opened as services:
        load(opened.log, facts(date(2013, 1, 1), date(2013, 1, 2)))
        services[0].reference = "services.flights.spacecraft:app"
        run = LiveRun(services[0], services[1], Console())
        with pytest.raises(ServiceFailed, match=r"there is no module 'services\.flights\.spacecraft'"):
            run.run(lambda: None)
        run.end()


@pytest.mark.parametrize(("same", "other", "fails"), [(12, 0, False), (11, 1, True), (0, 0, True)])
def test_rows_that_differ_from_the_log_fail_the_demo_and_so_does_no_comparison(same, other, fails):
    made = Rebuilt(
        "airport", "id", "tape", "local", 9, 0, 9, rows=10,
        keys=5, seconds=1, same_rows=same, other_rows=other,
    )  # fmt: skip
    assert bool(made.failures()) is fails


def test_a_rebuild_that_fails_fails_the_demo(shown, out):
    folders = Folders(out / "flights-2013")
    with log_of(out) as services:
        service = services[0]
        service.reference = HASTY
        with pytest.raises(ServiceFailed, match="tailrace rebuild of aircraft has exited with code"):
            rebuild(service, folders, "local")


def test_a_killed_process_is_gone_and_an_end_leaves_none(tmp_path):
    folders = Folders(tmp_path)
    log = EmbeddedLog(folders.log)
    service = Service(aircraft.app, "services.flights.aircraft:app", folders, log, "1s")
    load(log, [])
    service.start(end_of_input=False)
    assert service.kill()
    assert not service.kill()
    with pytest.raises(ServiceFailed, match="exited with code -9"):
        service.has_left()
    service.start(end_of_input=False)
    service.end()
    assert not service.kill()
    log.close()


# --- the accounts

DAY: list[Event] = [
    Departure("N1", "UA", 1, "EWR", "IAH", 1_000, 61_000, 9_000),
    Cancellation("JFK", "B6", 2, "MCO", 2_000),
]


@pytest.fixture
def small(tmp_path):
    log = EmbeddedLog(tmp_path / "log")
    load(log, [])
    yield log
    log.close()


def say(log, topic, *events):
    log.append_all([Output(topic.name, topic.encode_key(one), topic.encode(one), 0) for one in events])


def test_what_is_lost_or_said_twice_is_found(small):
    accounts = Accounts.of([Fact(0, event) for event in DAY])
    moved = Movement("EWR", "N1", "UA", 1, 1_000, 1, 0)
    joined = airport.in_weather(moved, None)
    hour = HourlyStatistics("EWR", 0, 1, 1, 0, 0, 1, 0, 1, None)
    results = Results([hour, HourlyStatistics("JFK", 0, 1, 0, 1, 0, 0, 0, None, None)], [], [])
    wanted = ["movements", "departures-in-weather", "hourly-statistics", "hourly-statistics"]
    assert [line.partition(":")[0] for line in accounts.errors(small, Results([], [], []))] == wanted
    say(small, aircraft.movements, moved)
    say(small, airport.departures_in_weather, joined)
    assert accounts.errors(small, results) == []
    say(small, aircraft.movements, moved)
    (error,) = accounts.errors(small, results)
    assert error.startswith("movements: 1 too many")


# --- the corrected version


def test_an_hour_that_is_not_as_counted_or_missing_is_found():
    due = takeover.counted([Fact(0, event) for event in DAY])
    assert due == {("EWR", 0): (1, 0, 0, 1), ("JFK", 0): (0, 1, 0, 0)}
    assert takeover.errors_of({**due, ("LGA", 0): (0, 0, 0, 0)}, due) == []
    assert len(takeover.errors_of({("EWR", 0): (1, 0, 0, 1)}, due)) == 1
    assert len(takeover.errors_of({**due, ("EWR", 0): (2, 0, 0, 1)}, due)) == 1
    assert len(takeover.errors_of({**due, ("LGA", 0): (1, 0, 0, 0)}, due)) == 1


def test_a_broker_without_a_prefix_gets_names_of_this_run() -> None:
    one, other = (kafka_url_of("kafka://broker:9092") for _ in range(2))
    assert one != other
    assert one.startswith("kafka://broker:9092/flights-2013-")
    assert kafka_url_of("kafka://broker:9092/mine.") == "kafka://broker:9092/mine."
    assert kafka_url_of("") == ""
