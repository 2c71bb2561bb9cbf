"""The airports, whose input another service has written, rebuilt along their tape."""

from contextlib import closing
from datetime import date
from pathlib import Path

from services.flights import aircraft, airport
from services.flights.history import facts
from services.flights.load import load
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tests.cli.commands import done

AIRCRAFT, AIRPORT = "services.flights.aircraft:app", "services.flights.airport:app"


def test_airports_along_their_tape_come_to_the_live_state(tmp_path: Path) -> None:
    with closing(EmbeddedLog(tmp_path / "log")) as log:
        load(log, facts(date(2013, 7, 22), date(2013, 7, 25)))
    for reference, app in ((AIRCRAFT, aircraft.app), (AIRPORT, airport.app)):
        options = ServiceOptions(
            reference,
            tmp_path / "log",
            tmp_path / "state",
            commit_interval_ms=10,
            end_of_input=True,
            log_format="json",
        )
        Host(options, app.plan()).run()
    said = done("rebuild", AIRPORT, "--log", tmp_path / "log", "--to", tmp_path / "tape", "--workers", 1).out
    assert "rebuilt airport along the tape" in said
    assert "all equal, byte for byte" in said
