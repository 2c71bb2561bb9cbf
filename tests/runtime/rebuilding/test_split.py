"""A partition dealt to several tasks by key comes to the same bytes as in one piece: rows, cut, and outputs in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.runtime.apps import find_app
from tests.runtime.rebuilding import lived
from tests.runtime.rebuilding.lived import TALLY, done, live, rebuilt


@pytest.fixture(scope="module")
def tally(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tally")
    for first in range(4):
        lived.serve_tallies(folder, 40, 1, first_round=first)
    return folder


@pytest.mark.parametrize(
    ("shards", "processes", "store"), [(2, 1, "rocks"), (3, 2, "memory"), (7, 2, "rocks")]
)
def test_split_or_not_the_snapshot_is_the_same(tally: Path, shards: int, processes: int, store: str) -> None:
    report, snapshot = done(tally, split=shards, processes=processes, store=store)
    assert rebuilt(snapshot) == live(tally, find_app(TALLY).plan())
    assert report.notes == []
    assert report.events == report.taken == 320
    assert report.phases.shuffle > 0
