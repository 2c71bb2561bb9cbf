"""A rebuild splits its partitions where that saves time, says why, and comes to the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.core.errors import OffsetGoneError
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.splitting import choice
from tailrace.history.splitting.choice import FEWEST, choose
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived
from tests.history.rebuilding.lived import TALLY, done, live, rebuilt

_HOT = (1_000_000, 0, 0, 0)
_EVEN = (1_000_000,) * 8


@pytest.mark.parametrize(
    ("records", "workers", "event_us", "shards"),
    [
        (_HOT, 8, 50, 8),
        (_HOT, 100, 50, choice.MOST_SHARDS),
        (_HOT, 2, 100, 2),
        (_HOT, 2, 10, None),  # the first pass and the merge take what the second worker saves
        (_HOT, 8, 3, None),  # handlers that do hardly anything
        (_HOT, 1, 50, None),
        (_EVEN, 8, 50, None),  # every worker has a partition
        (_EVEN, 32, 50, 32),
        ((FEWEST - 1, 0), 8, 50, None),
        ((), 8, 50, None),
    ],
)
def test_a_split_is_chosen_where_one_partition_holds_up_workers_and_handlers_do_work(
    records: Sequence[int], workers: int, event_us: float, shards: int | None
) -> None:
    found = choose(records, workers, lambda _: event_us * 1e-6)
    assert (None if found is None else found.shards) == shards


def test_the_largest_partition_is_measured_and_only_where_a_split_is_considered() -> None:
    measured: list[int] = []

    def event_s(partition: int) -> float:
        measured.append(partition)
        return 50e-6

    choose((5, 500_000, 7), 4, event_s)
    choose((5, 500, 7), 4, event_s)
    assert measured == [1]
    assert choose(_HOT, 8, lambda _: None) is None


def test_a_rebuild_that_chooses_to_split_says_why_and_gives_the_same_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.serve_tallies(tmp_path, 40, 1)
    for name, value in (("FEWEST", 1), ("FIRST_PASS_S", 0.0), ("ROUNDS_S", 0.0)):
        monkeypatch.setattr(choice, name, value)
    monkeypatch.setattr(LocalEngine, "workers", 8)
    report, snapshot = done(tmp_path, processes=1, split=None)
    assert rebuilt(snapshot) == live(tmp_path, find_app(TALLY).plan())
    (note,) = report.notes
    assert note.startswith("each partition was split into 8 shards: one partition has ")
    assert report.phases.shuffle > 0
    asked, _ = done(tmp_path, processes=1, split=1)
    assert asked.notes == []
    assert asked.phases.shuffle == 0


def test_a_sample_that_fails_is_noted_and_the_rebuild_goes_on_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.serve_tallies(tmp_path, 40, 1)
    monkeypatch.setattr(choice, "FEWEST", 1)
    monkeypatch.setattr(LocalEngine, "workers", 8)

    def failing(*_: object) -> None:
        raise OffsetGoneError("the log has deleted it", topic="ticks", partition=2, offset=0)

    monkeypatch.setattr(choice, "replay", failing)
    report, snapshot = done(tmp_path, processes=1, split=None)
    assert rebuilt(snapshot) == live(tmp_path, find_app(TALLY).plan())
    assert report.notes == [
        "it was not split: a sample of its events could not be replayed: the log has deleted it"
    ]
