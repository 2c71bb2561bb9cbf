"""All kinds of operators in one app, as real processes on a log: killed, started again, replayed, rebuilt; against plain Python."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tailrace.log import Log
from tailrace.log.embedded import EmbeddedLog
from tailrace.runtime.preparing import prepare_log
from tailrace.testing import CRASH, END, RELOAD, Harness, Item
from tests.cli.commands import done
from tests.library.everything import OUTPUTS, app, expected, history, records
from tests.runtime.bounded_run import read_all
from tests.runtime.processes import Running, wait_until

APP = "tests.library.everything:app"


def found(log: Log) -> dict[str, list[Any]]:
    """What the topics hold, sorted."""
    return {one.name: sorted(read_all(log, one.name, one.type), key=repr) for one in OUTPUTS}


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_in_the_harness(seed: int, checked: bool) -> None:
    events = history(seed, 400)
    items: list[Item] = [*events, END]
    for place, fault in ((350, RELOAD), (222, CRASH), (57, CRASH)):
        items.insert(place, fault)
    with Harness(app, checked=checked, slice_size=7) as h:
        h.run(items)
        wanted = expected(events)
        assert all(wanted.values())
        emitted: dict[str, list[Any]] = {one.name: h.emitted(one) for one in OUTPUTS}
        assert {name: sorted(some, key=repr) for name, some in emitted.items()} == wanted
        assert h.dropped == 0
        for name, actor in app.actors.items():
            cls: Any = actor
            assert h.keys(cls) == [], name
        h.replay()


def test_two_nights_equal_one(tmp_path: Path) -> None:
    """Runs that end with what is there leave their windows open, and the next one goes on with them."""
    events = history(7, 600)
    place = tmp_path / "log"
    run = ("run", APP, "--log", place, "--state", tmp_path / "state")
    with closing(EmbeddedLog(place)) as log:
        prepare_log(log, app.plan(), create_declared=True)
        for part in (events[:333], events[333:]):
            log.append_all(records(part))
            done(*run, "--until-end")
        assert found(log) != expected(events)
        done(*run, "--end-of-input")
        assert found(log) == expected(events)
    assert json.loads(done("replay", APP, "--log", place, "--compare", "--json").out)["differences"] == 0


def test_as_killed_processes_then_replayed_and_rebuilt(tmp_path: Path) -> None:
    events = history(11, 2_000)
    place = tmp_path / "log"
    with closing(EmbeddedLog(place)) as log:
        prepare_log(log, app.plan(), create_declared=True)
        run = ("run", APP, "--log", place, "--state", tmp_path / "state", "--commit-interval", "20ms")
        log.append_all(records(events[:900]))
        for part in (events[900:1_500], events[1_500:]):
            with Running(*run, "--workers", 2) as service:
                wait_until(lambda: sum(map(len, found(log).values())) > 0, "there are results")
                log.append_all(records(part))
                for worker in service.started_workers():
                    service.signal(signal.SIGKILL, worker)
                service.signal(signal.SIGKILL)
        done(*run, "--end-of-input")
        assert found(log) == expected(events)
    compared = json.loads(done("replay", APP, "--log", place, "--compare", "--json").out)
    assert compared["differences"] == 0
    to = tmp_path / "snapshots"
    done("rebuild", APP, "--log", place, "--to", to, "--workers", 2)
    assert json.loads(done("compare", APP, place, to, "--json").out)["differences"] == 0
