"""Chained services again: the aircraft's topics written anew, and the airports rebuilt from them.

The services have lived once, on a few stormy days. Everything else here comes from their log.
"""

from contextlib import closing
from datetime import date

import msgspec
import pytest

from services.flights import aircraft, airport
from services.flights.history import facts
from services.flights.load import load
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.stretches import scan
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.service import ServiceOptions, serve
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import done, run
from tests.history.rebuilding.lived import published
from tests.history.rebuilding.lived import request as asked

AIRCRAFT, AIRPORT = "services.flights.aircraft:app", "services.flights.airport:app"
WRITTEN = {
    AIRCRAFT: ("movements", "legs-finished", "aircraft-overdue"),
    AIRPORT: ("departures-in-weather", "hourly-statistics", "congestion-alerts"),
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    with closing(EmbeddedLog(folder / "log")) as log:
        load(log, facts(date(2013, 7, 22), date(2013, 7, 25)))
    for reference, app in ((AIRCRAFT, aircraft.app), (AIRPORT, airport.app)):
        options = ServiceOptions(
            reference,
            folder / "log",
            folder / "state",
            commit_interval_ms=10,
            until_end=True,
            log_format="json",
        )
        serve(options, app.plan())
    again(folder, AIRCRAFT, "aircraft-again", outputs="topic:-again")
    return folder


def again(folder, app, to, **options):
    """Rebuild, and open the snapshot."""
    request = asked(folder, app, uri=str(folder / to), **options)
    report = rebuild(request, LocalEngine(1))
    return report, Snapshots(request.to.uri, report.app).open(report.snapshot)


def records(folder, topic):
    with closing(EmbeddedLog(folder / "log", create=False)) as log:
        return [list(scan(log, topic, number)) for number in range(log.partitions(topic))]


def state(snapshot):
    return [list(snapshot.rows(one.partition)) for one in snapshot.manifest.tasks]


def test_the_same_code_writes_the_same_topics_record_by_record(lived):
    for topic in WRITTEN[AIRCRAFT]:
        assert records(lived, f"{topic}-again") == records(lived, topic)
    assert sum(map(len, records(lived, "movements-again"))) > 2_000


def test_with_the_topics_go_the_watermarks_that_the_service_published(lived):
    new, old = published(lived, "movements-again"), published(lived, "movements")
    assert [[one for one in some if one[0]] for some in new] == [
        [one for one in some if one[0]] for some in old
    ]
    # All publishers are known before the first record: nothing is taken for late because another had not begun.
    tasks = range(aircraft.app.plan().partitions)
    assert all({task for at, task, _ in some if at == 0} == {*tasks} for some in new)
    # How many commits there were depends on the machine.
    assert sum(map(len, new)) > len(new) * len(tasks), "and nothing after that"


def test_airports_rebuilt_from_the_new_topic_are_those_rebuilt_from_the_old_one(lived):
    old, of_old = again(lived, AIRPORT, "canonical", order="canonical", outputs="topic:-old")
    new, of_new = again(
        lived, AIRPORT, "again", read={"movements": "movements-again"}, outputs="topic:-again"
    )
    assert (old.order, new.order) == ("canonical", "canonical")
    assert (
        "movements is read as movements-again: in canonical order, as there is no tape of that" in new.notes
    )
    assert state(of_new) == state(of_old)
    assert (new.events, new.timers, new.late) == (old.events, old.timers, old.late)
    assert new.timers > 100
    for topic in WRITTEN[AIRPORT]:
        assert records(lived, f"{topic}-again") == records(lived, f"{topic}-old")


def test_airports_over_the_topics_as_they_were_go_along_their_tape_and_come_to_the_live_state(lived):
    report, _ = again(lived, AIRPORT, "tape")
    assert report.order == "tape"
    done("compare", AIRPORT, lived / "log", lived / "tape")


def test_changed_code_of_the_aircraft_is_seen_at_the_airports_key_by_key(lived, monkeypatch):
    where = ("--log", lived / "log", "--workers", 1)
    for name, rotation_ms in (("same", aircraft.ROTATION_MS), ("rested", -1)):
        to = ("--to", lived / name)
        with monkeypatch.context() as patch:
            patch.setattr(aircraft, "ROTATION_MS", rotation_ms)  # at -1 no delay is handed on
            canonical = ("--order", "canonical", "--outputs", f"topic:-{name}")
            done("rebuild", AIRCRAFT, *where, *to, *canonical)
        said = done("rebuild", AIRPORT, *where, *to, "--read", f"movements=movements-{name}")
        assert "in canonical order" in said.out
    compared = run("compare", AIRPORT, lived / "same", lived / "rested", "--json")
    assert compared.code == 1
    found = msgspec.json.decode(compared.out)
    assert {one["key"] for one in found["first"]} == {"'EWR'", "'JFK'", "'LGA'"}
    assert {one["actor"] for one in found["first"]} == {"Airport"}
