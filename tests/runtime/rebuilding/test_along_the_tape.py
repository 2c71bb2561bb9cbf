"""A rebuild along the tape gives what the service has: every row, and the cut, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.runtime.apps import find_app
from tests.runtime.rebuilding import lived
from tests.runtime.rebuilding.lived import TALLY, done, live, rebuilt


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
