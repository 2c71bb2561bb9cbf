"""A rebuild splits its partitions where that saves time, says why, and comes to the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.replay import Limits
from tailrace.core.errors import OffsetGoneError
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.replay.replaying import ReplayOptions, ReplayReport, replay
from tailrace.history.splitting import choice
from tailrace.history.splitting.choice import FEWEST, choose
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import OneCommitLog
from tailrace.processes.app_loading import find_app
from tests.history.rebuilding import lived, referring
from tests.history.rebuilding.lived import TALLY, done, live, rebuilt

REFERRING = "tests.history.rebuilding.referring:app"
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


@pytest.mark.parametrize(
    ("until", "counted"),
    [
        (Limits(offsets={"orders": {0: 1}}), 3),
        (Limits(offsets={"orders": {0: 15}, "prices": {0: 30}}), 31),
        (Limits(offsets={"prices": {0: 25}}), 50),
        (Limits(watermark_ms=250_000), 80),
        (Limits(clock_ms=1), 0),
    ],
)
def test_only_the_records_before_the_limit_count(
    tmp_path: Path, until: Limits, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prices and orders take turns; each of two commits has twenty of both."""
    for first in (0, referring.ROUNDS):
        lived.append(tmp_path, referring.records(first), {"prices": 1, "orders": 1})
        lived.live_on(tmp_path, REFERRING)
    for name, value in (("FEWEST", 1), ("FIRST_PASS_S", 0.0), ("ROUNDS_S", 0.0)):
        monkeypatch.setattr(choice, name, value)
    monkeypatch.setattr(LocalEngine, "workers", 8)
    report, _ = done(tmp_path, REFERRING, processes=1, split=None, until=until)
    chosen = [one for one in report.notes if "was split" in one]
    said = f"one partition has {counted} of {counted} records"
    assert [said in one for one in chosen] == ([True] if counted else [])
    if until.watermark_ms is None:
        assert report.events == counted


@pytest.mark.parametrize("until", [Limits(), Limits(offsets={"orders": {0: 15}})])
def test_the_sample_is_taken_where_the_history_begins(
    tmp_path: Path, until: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records before it were deleted when the service began."""
    lived.append(tmp_path, referring.records(), {"prices": 1, "orders": 1})
    log = EmbeddedLog(tmp_path / "log", create=False)
    for name in ("prices", "orders"):
        log.delete_before(name, 0, 10)
    log.close()
    lived.live_on(tmp_path, REFERRING)
    measured: list[int] = []

    def noted(plan: Plan, log: OneCommitLog, options: ReplayOptions) -> ReplayReport:
        report = replay(plan, log, options)
        measured.append(report.records)
        return report

    for name, value in (("FEWEST", 1), ("SAMPLE", 8)):
        monkeypatch.setattr(choice, name, value)
    monkeypatch.setattr(choice, "replay", noted)
    monkeypatch.setattr(LocalEngine, "workers", 8)
    done(tmp_path, REFERRING, processes=1, split=None, until=until)
    assert measured == [16 if not until.any else 11]


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
