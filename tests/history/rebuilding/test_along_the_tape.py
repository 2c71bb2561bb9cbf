"""A rebuild along the tape gives what the service has: every row, and the cut, byte for byte."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from random import Random

import msgspec
import pytest

from schemas.sensors import Reading
from services.flights.history import facts
from services.flights.load import load
from tailrace.core.records import Output
from tailrace.log.embedded import EmbeddedLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, done, live, rebuilt


@pytest.fixture(scope="module")
def tally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tally")
    lived.serve_tallies(folder)
    return folder


@pytest.mark.parametrize("store", ["rocks", "memory"])
def test_a_rebuilt_snapshot_is_the_state_of_the_service_byte_for_byte(tally: Path, store: str) -> None:
    report, snapshot = done(tally, store=store)
    wanted = live(tally, find_app(TALLY).plan())
    assert rebuilt(snapshot) == wanted
    assert sum(len(one.rows) for one in wanted) == report.rows > 20
    assert report.events == 120  # 60 ticks, and the message that each of them sends
    assert report.keys == 23  # of 20 keys that count up to 3, told to as many auditors
    assert report.timers == sum(one.fired for one in lived.totals(snapshot.manifest)) > 0
    assert (snapshot.manifest.source, snapshot.manifest.notes) == ("tape", ())
    assert not (tally / "snapshots" / "tally" / "_work").exists()


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two services, one of which reads what the other writes."""
    folder = tmp_path_factory.mktemp("flights")
    log = EmbeddedLog(folder / "log")
    load(log, facts(date(2013, 7, 22), date(2013, 7, 24)))
    log.close()
    for app in ("aircraft", "airport"):
        lived.live_on(folder, f"services.flights.{app}:app")
    return folder


@pytest.mark.parametrize("name", ["aircraft", "airport"])
def test_the_flights_are_rebuilt_byte_for_byte(flights: Path, name: str) -> None:
    app = f"services.flights.{name}:app"
    report, snapshot = done(flights, app)
    assert rebuilt(snapshot) == live(flights, find_app(app).plan())
    assert snapshot.verify() == []
    assert report.timers > 0


def test_the_sensors_are_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    app = "services.sensors:app"
    plan = find_app(app).plan()
    chance = Random(7)
    for begun in range(3):
        readings = [
            Reading(
                f"s{chance.randrange(9)}",
                (begun + 1) * 40_000 + at * 40 - chance.randrange(3_000),
                chance.random() * 90,
            )
            for at in range(1_000)
        ]
        lived.append(
            tmp_path,
            [
                Output("readings", one.sensor.encode(), msgspec.json.encode(one), one.at_ms)
                for one in readings
            ],
            {"readings": plan.partitions},
        )
        lived.live_on(tmp_path, app)
    report, snapshot = done(tmp_path, app, processes=2)
    assert rebuilt(snapshot) == live(tmp_path, plan)
    assert report.events == 3_000
    assert report.late > 0
