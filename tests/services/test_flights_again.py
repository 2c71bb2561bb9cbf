"""A chain of services rebuilt: the aircraft's topics written again, then the airports along their tape.

The services have lived once, on a few stormy days. Everything else here comes from their log.
"""

from contextlib import closing
from datetime import date

import pytest

from services.flights import aircraft, airport
from services.flights.history import facts
from services.flights.load import load
from tailrace.history.reading.stretches import scan
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.host import Host
from tailrace.runtime.options import ServiceOptions
from tailrace.state.snapshots import Snapshots
from tests.cli.commands import done
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
            end_of_input=True,
            log_format="json",
        )
        Host(options, app.plan()).run()
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


def test_airports_over_the_topics_as_they_were_go_along_their_tape_and_come_to_the_live_state(lived):
    report, _ = again(lived, AIRPORT, "tape")
    assert report.order == "tape"
    done("compare", AIRPORT, lived / "log", lived / "tape")
